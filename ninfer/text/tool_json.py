"""The end of a JSON object in a text that arrives in pieces (serving spec, 7.5: the JSON body of a call)."""

from __future__ import annotations

import re

NESTING_MAX = 256

_OUTSIDE = re.compile(r'[\s0-9A-Za-z+\-.,:]+|["{}\[\]]')
_INSIDE = re.compile(r'[^"\\]+|\\.|"|\\$', re.DOTALL)
_OPENER_OF = {"}": "{", "]": "["}


class ObjectEnd:
    """Looks for the bracket that closes the first one. It does not say whether the object is JSON, but it gives up at
    the first character that shows it is not, so that markup is never held for the sake of a brace in prose.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False
        self.failed = False
        self.ended = False

    def push(self, text: str) -> int:
        """Read more; returns how many characters belong to the object. All of them unless it has failed or ended."""
        position = 0
        while position < len(text) and not (self.failed or self.ended):
            position = self._inside(text, position) if self._in_string else self._outside(text, position)
        return position

    def _inside(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        found = _INSIDE.match(text, position)
        assert found is not None
        self._in_string = found.group() != '"'
        self._escaped = found.group() == "\\"
        return found.end()

    def _outside(self, text: str, position: int) -> int:
        found = _OUTSIDE.match(text, position)
        if found is None:
            self.failed = True
            return position
        sign = found.group()
        if sign == '"':
            self._in_string = True
        elif sign in ("{", "["):
            self._open.append(sign)
            self.failed = len(self._open) > NESTING_MAX
        elif sign in _OPENER_OF:
            self.failed = self._open.pop() != _OPENER_OF[sign]
            self.ended = not self._open
        return found.end()
