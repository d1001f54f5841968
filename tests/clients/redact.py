"""Recorded requests without what is a person's or another's text: their structure stays, character for character.

Long texts (prompts) and descriptions become their length, identifiers become numbers, and folders of the machine
one that is nobody's. Names, types, schemas and everything short stay.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

FOLDER = "/home/user/task"
HEADERS = ("accept", "anthropic-beta", "anthropic-version", "content-type", "user-agent")
_LONGEST = 48
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_VERBATIM = ("arguments", "pattern", "$schema", "signature")
_BOOKKEEPING = "x-anthropic-billing-header:"


class Redaction:
    """Of the requests of one run, so that an identifier is the same in all of them.

    folder   of the run, which stands for everything that tells of the machine
    said     texts that the test itself has put there
    """

    def __init__(self, folder: str, said: Collection[str]) -> None:
        self._folder = folder
        self._said = said
        self._ids: dict[str, int] = {}

    def body(self, value: object, key: str = "") -> object:
        """A JSON value without them."""
        if isinstance(value, dict):
            return {name: self.body(member, name) for name, member in value.items()}
        if isinstance(value, list):
            return [self.body(item, key) for item in value]
        return self._text(value, key) if isinstance(value, str) else value

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Those that say how the client speaks."""
        return {name: headers[name] for name in HEADERS if name in headers}

    def _text(self, text: str, key: str) -> str:
        text = text.replace(self._folder, FOLDER)
        text = _UUID.sub(lambda found: f"id-{self._ids.setdefault(found[0], len(self._ids) + 1)}", text)
        if key in _VERBATIM or text.strip('"\n') in self._said:
            return text
        if text.startswith(_BOOKKEEPING):
            return f"{_BOOKKEEPING} a text of {len(text)} characters"
        if len(text) > _LONGEST or "\n" in text or key == "description":
            return f"a text of {len(text)} characters"
        return text
