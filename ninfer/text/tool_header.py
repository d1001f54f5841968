"""Damaged openers of a function inside ``<tool_call>`` (serving spec, 7.5: tolerant recovery)."""

from __future__ import annotations

import re

from ninfer.text.tool_markup import TAG_CHARACTERS_MAX, Kind, Lexeme

# A doubled or missing `<`, the word `function` missing, a `>` missing at the end of the line.
_DAMAGED = re.compile(r"<{0,2}(?:function)?=([A-Za-z0-9_-]+)(>?)")
_LEAK = re.compile(r"<\|im_start\|>(?:assistant)?")


class MangledHeader:
    """Reads lexemes until they give the name of a tool.

    name         that name, once it is known
    tag          word of the tag that closes the function
    keeps_last   the lexeme that made it known stands behind the header
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.tag = "function"
        self.keeps_last = False
        self._words = ""
        self._unclosed = ""  # a name without its `>`, which only a tag on another line confirms
        self._line_ended = False

    def push(self, lexeme: Lexeme) -> bool:
        """Read one; False when this is no opener, however damaged."""
        if self._unclosed:
            return self._confirm(lexeme, self._unclosed)
        if lexeme.kind is Kind.WORD:
            self._words += lexeme.text
            return len(self._words) <= TAG_CHARACTERS_MAX
        words, self._words = self._words, ""
        if lexeme.kind is Kind.FUNCTION_OPEN:
            return (words in ("", "<") or _LEAK.fullmatch(words) is not None) and self._open(lexeme)
        if not words or _LEAK.fullmatch(words):
            return lexeme.kind is Kind.WHITE
        found = _DAMAGED.fullmatch(words)
        if found is None:
            return False
        if not found[2]:
            self._unclosed = found[1]
            return self._confirm(lexeme, found[1])
        self.name, self.keeps_last = found[1], True
        return True

    def _open(self, lexeme: Lexeme) -> bool:
        if lexeme.name is None:
            self._unclosed = lexeme.text.rpartition("=")[2].strip()
            return bool(self._unclosed)
        self.name, self.tag = lexeme.name, lexeme.tag
        return True

    def _confirm(self, lexeme: Lexeme, name: str) -> bool:
        if lexeme.kind is Kind.WHITE:
            self._line_ended = self._line_ended or "\n" in lexeme.text
            return True
        tag = lexeme.kind in (Kind.PARAMETER_OPEN, Kind.FUNCTION_CLOSE, Kind.CALL_CLOSE)
        if not tag or not self._line_ended:
            return False
        self.name, self.keeps_last = name, True
        return True
