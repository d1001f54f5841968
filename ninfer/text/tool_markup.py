"""The markup of tool calls as a stream of lexemes, whatever the split of the text (serving spec, 7.5).

What a tag is does not depend on where it stands: inside a value, in a fence or in prose the same letters give the same
lexeme, and the reader decides what it means there. So a region that turns out to be no call is read again from its
lexemes. Tags stand on one line and are short; everything else is white space and words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from ninfer.text.prompt import TOOL_CALL_CLOSE, TOOL_CALL_OPEN

# Names have at most 128 characters (serving spec, 7.1); keys of schemas and attributes beside a name get as much again.
TAG_CHARACTERS_MAX = 320


class Kind(Enum):
    """What a lexeme is."""

    WHITE = auto()
    WORD = auto()
    CALL_OPEN = auto()
    CALL_CLOSE = auto()
    WRAPPER_OPEN = auto()
    WRAPPER_CLOSE = auto()
    FUNCTION_OPEN = auto()
    FUNCTION_CLOSE = auto()
    PARAMETER_OPEN = auto()
    PARAMETER_CLOSE = auto()


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A piece of the text; white space and words may come in several pieces, a tag is always whole.

    text   as the model wrote it, not empty
    tag    word of a function's or parameter's tag: `function` or `invoke`, `parameter` or `param`
    name   that an opener gives; None for an opener without an end on its own line
    """

    kind: Kind
    text: str
    tag: str = ""
    name: str | None = None


_FIXED = {
    TOOL_CALL_OPEN: (Kind.CALL_OPEN, ""),
    TOOL_CALL_CLOSE: (Kind.CALL_CLOSE, ""),
    "<function_calls>": (Kind.WRAPPER_OPEN, ""),
    "</function_calls>": (Kind.WRAPPER_CLOSE, ""),
    "</function>": (Kind.FUNCTION_CLOSE, "function"),
    "</invoke>": (Kind.FUNCTION_CLOSE, "invoke"),
    "</parameter>": (Kind.PARAMETER_CLOSE, "parameter"),
    "</param>": (Kind.PARAMETER_CLOSE, "param"),
}
_NAMED = {
    "<function": Kind.FUNCTION_OPEN,
    "<invoke": Kind.FUNCTION_OPEN,
    "<parameter": Kind.PARAMETER_OPEN,
    "<param": Kind.PARAMETER_OPEN,
}
_SPELLINGS = (*_FIXED, *_NAMED)
_PLAIN = re.compile(r"\s+|[^\s<]+")
_NAME_END = re.compile(r"[<>\n]")
_NAME_ATTRIBUTE = re.compile(r"""\sname\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_NAME_ATTRIBUTE_BEGUN = re.compile(r"\s+name\s*=")


class Lexer:
    """Cuts a text that arrives in pieces; holds what may still become a tag."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Lexeme]:
        """The lexemes that are certain by now."""
        text = self._held + text
        self._held = ""
        lexemes: list[Lexeme] = []
        position = 0
        while position < len(text):
            plain = _PLAIN.match(text, position)
            if plain is not None:
                lexeme = _plain(plain.group())
            else:
                tag = _tag(text, position)
                if tag is None:
                    self._held = text[position:]
                    break
                lexeme = tag
            lexemes.append(lexeme)
            position += len(lexeme.text)
        return lexemes

    def finish(self) -> list[Lexeme]:
        """What was held for a tag that did not come to its end."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [Lexeme(Kind.WORD, "<"), *(_plain(found.group()) for found in _PLAIN.finditer(held, 1))]


def _plain(text: str) -> Lexeme:
    return Lexeme(Kind.WHITE if text.isspace() else Kind.WORD, text)


def _tag(text: str, start: int) -> Lexeme | None:
    """The lexeme at a `<`: a tag, or the sign alone as a word; None while more text can decide it."""
    for spelling, (kind, word) in _FIXED.items():
        if text.startswith(spelling, start):
            return Lexeme(kind, spelling, word)
    for head, kind in _NAMED.items():
        behind = start + len(head)
        if text.startswith(head, start) and text[behind : behind + 1] in ("=", " ", "\t"):
            return _opener(text, start, behind, kind, head[1:])
    rest = text[start : start + TAG_CHARACTERS_MAX]
    if any(spelling.startswith(rest) for spelling in _SPELLINGS):
        return None
    return Lexeme(Kind.WORD, "<")


def _opener(text: str, start: int, behind: int, kind: Kind, word: str) -> Lexeme | None:
    limit = start + TAG_CHARACTERS_MAX
    end = _NAME_END.search(text, behind, limit)
    if end is None and len(text) < limit:
        return None
    inner = text[behind : end.start() if end is not None else limit]
    if end is not None and end.group() == ">":
        name = _name(inner)
        return Lexeme(Kind.WORD, "<") if name is None else Lexeme(kind, text[start : end.end()], word, name)
    if inner.startswith("=") or _NAME_ATTRIBUTE_BEGUN.match(inner):
        return Lexeme(kind, text[start : behind + len(inner)], word)
    return Lexeme(Kind.WORD, "<")


def _name(inner: str) -> str | None:
    """The name in `=NAME` or in ` name="NAME"`; None for markup of another kind, such as an element without content."""
    if inner.startswith("="):
        return inner[1:].strip() or None
    found = _NAME_ATTRIBUTE.search(inner)
    if found is None or inner.rstrip().endswith("/"):
        return None
    return found[1] or found[2] or None
