"""The text of a custom tool call inside the JSON arguments that the model's call has, while they arrive. Pure.

A custom tool is declared as a function with the one string parameter `input`; its call is ``{"input": "…"}``, and the
client wants the text alone. Other members are passed over, and a value that is no string is taken as it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum, auto

from ninfer.api.responses_tools import CUSTOM_PARAMETER

# Characters and escapes that are complete; a pair of surrogates only together.
_COMPLETE = re.compile(
    r"(?:[^\\\"]+|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*"
)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN = re.compile(r'[^"\[\]{},]+')
_BLANK = " \t\n\r"


class _State(Enum):
    BETWEEN = auto()  # before a member or at the end
    KEY = auto()  # inside the name of a member
    COLON = auto()  # behind the name, before its value
    TEXT = auto()  # inside the string that is wanted
    VALUE = auto()  # inside a value of another kind or another member


class CustomInput:
    """Fed with the fragments of the arguments; gives the pieces of the text."""

    def __init__(self) -> None:
        self._state = _State.BETWEEN
        self._pending = ""
        self._key = ""
        self._depth = 0
        self._found = False
        self._steps: dict[_State, Callable[[], str | None]] = {
            _State.BETWEEN: self._between,
            _State.KEY: self._read_key,
            _State.COLON: self._colon,
            _State.TEXT: self._text,
            _State.VALUE: self._value,
        }

    def feed(self, fragment: str) -> str:
        """The text that a fragment completes."""
        self._pending += fragment
        pieces: list[str] = []
        while self._pending and (piece := self._steps[self._state]()) is not None:
            pieces.append(piece)
        return "".join(pieces)

    def _between(self) -> str | None:
        self._pending = self._pending.lstrip(_BLANK + "{},")
        if not self._pending:
            return None
        self._take(1)
        self._state = _State.KEY
        return ""

    def _read_key(self) -> str | None:
        end = _COMPLETE.match(self._pending)
        assert end is not None, "it matches nothing at worst"
        if not self._pending[end.end() :].startswith('"'):
            return None
        self._key = _decoded(self._take(end.end()))
        self._take(1)
        self._state = _State.COLON
        return ""

    def _colon(self) -> str | None:
        self._pending = self._pending.lstrip(_BLANK + ":")
        if not self._pending:
            return None
        wanted = self._key == CUSTOM_PARAMETER and not self._found
        if wanted and self._pending.startswith('"'):
            self._take(1)
            self._state = _State.TEXT
        else:
            self._state = _State.VALUE
        return ""

    def _text(self) -> str | None:
        end = _COMPLETE.match(self._pending)
        assert end is not None, "it matches nothing at worst"
        raw = self._take(end.end())
        if self._pending.startswith('"'):
            self._take(1)
            self._found = True
            self._state = _State.BETWEEN
        elif not raw:
            return None
        return _decoded(raw)

    def _value(self) -> str | None:
        wanted = self._key == CUSTOM_PARAMETER and not self._found
        first = self._pending[0]
        if not self._depth and first in ",}":
            self._found = self._found or wanted
            self._state = _State.BETWEEN
            return ""
        token = (_STRING if first == '"' else _PLAIN).match(self._pending)
        if first == '"' and token is None:
            return None
        self._depth += (first in "[{") - (first in "]}")
        taken = self._take(token.end() if token is not None else 1)
        return taken if wanted else ""

    def _take(self, length: int) -> str:
        taken, self._pending = self._pending[:length], self._pending[length:]
        return taken


def _decoded(raw: str) -> str:
    return str(json.loads(f'"{raw}"', strict=False))
