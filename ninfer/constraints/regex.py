"""ECMAScript regular expressions, as far as whole-content matches need them (serving spec, 6.4).

They are parsed and written anew for the grammar library, whose own syntax means other things in places: classes are
spelled out as code points, anchors disappear into the shape of the expression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from ninfer.constraints.characters import (
    ANY,
    Interval,
    class_text,
    complement,
    literal_text,
    merged,
    single,
)

# Beyond it an automaton gets too large to be useful (spec 6.3, explicit lengths).
REPEAT_MAX = 8192
_NESTING_MAX = 100

_DIGIT = ((ord("0"), ord("9")),)
_WORD = (*_DIGIT, (ord("A"), ord("Z")), (ord("a"), ord("z")), (ord("_"), ord("_")))
_SPACE = merged(
    (*single("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), (0x2000, 0x200A)),
)
_CLASSES: dict[str, tuple[Interval, ...]] = {
    "d": _DIGIT,
    "D": complement(_DIGIT),
    "w": _WORD,
    "W": complement(_WORD),
    "s": _SPACE,
    "S": complement(_SPACE),
}
_DOT = complement(single("\n\r\u2028\u2029"))
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")


class BadRegex(ValueError):
    """An expression that is malformed or beyond what is supported; the message says where and why."""


@dataclass(frozen=True, slots=True)
class _Alternative:
    starts: bool
    ends: bool
    body: str


def whole(pattern: str) -> str:
    """The expression of the texts that the pattern matches from end to end, for the library. Raises BadRegex."""
    return "|".join(f"(?:{alternative.body})" for alternative in _Parser(pattern).top())


def search(pattern: str) -> str:
    """The expression of the texts in which the pattern is found, for the library. Raises BadRegex."""
    pad = f"{ANY}*"
    return "|".join(
        f"(?:{'' if alternative.starts else pad}{alternative.body}{'' if alternative.ends else pad})"
        for alternative in _Parser(pattern).top()
    )


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def top(self) -> list[_Alternative]:
        """The alternatives of the whole pattern; the anchors may stand at their ends."""
        found = []
        while True:
            starts = self._take("^")
            body = self._sequence()
            ends = self._take("$")
            found.append(_Alternative(starts, ends, body))
            if self._take("|"):
                continue
            if self._at < len(self._text):
                self._fail(f"unexpected {self._peek()!r}")
            return found

    def _fail(self, what: str) -> NoReturn:
        raise BadRegex(f"{what} at offset {self._at}")

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _take(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def _sequence(self) -> str:
        parts = []
        while (c := self._peek()) and c not in "|)$":
            parts.append(self._quantified())
        return "".join(parts)

    def _group(self) -> str:
        if self._take("?"):
            if self._peek() == "<" and self._peek(1) not in ("=", "!"):
                close = self._text.find(">", self._at)
                if close < 0 or not self._text[self._at + 1 : close].isidentifier():
                    self._fail("bad group name")
                self._at = close + 1
            elif not self._take(":"):
                self._fail("lookaround and flags are not supported")
        self._depth += 1
        if self._depth > _NESTING_MAX:
            self._fail("groups are nested too deeply")
        alternatives = [self._sequence()]
        while self._take("|"):
            alternatives.append(self._sequence())
        if self._peek() == "$":
            self._fail("anchors are supported only at the ends of top-level alternatives")
        if not self._take(")"):
            self._fail("unclosed group")
        self._depth -= 1
        return f"(?:{'|'.join(alternatives)})"

    def _quantified(self) -> str:
        atom = self._atom()
        c = self._peek()
        if c in ("*", "+", "?"):
            self._at += 1
            suffix = c
        elif c == "{":
            self._at += 1
            low, high = self._bounds()
            if high is not None and high < low:
                self._fail("the bounds of a repetition are out of order")
            if max(low, high or 0) > REPEAT_MAX:
                self._fail(f"repetition of more than {REPEAT_MAX}")
            suffix = f"{{{low},{'' if high is None else high}}}"
        else:
            return atom
        self._take("?")  # lazy repetition matches the same texts
        if self._peek() in ("*", "+", "?", "{") and self._peek():
            self._fail("nothing to repeat")
        return f"(?:{atom}){suffix}"

    def _bounds(self) -> tuple[int, int | None]:
        low = self._number()
        if low is None:
            self._fail("bad repetition")
        high: int | None = low
        if self._take(","):
            high = self._number()
        if not self._take("}"):
            self._fail("bad repetition")
        return low, high

    def _number(self) -> int | None:
        start = self._at
        while self._peek() and self._peek() in "0123456789":
            self._at += 1
        digits = self._text[start : self._at]
        if len(digits) > 9:
            self._fail("a number is too large")
        return int(digits) if digits else None

    def _atom(self) -> str:
        c = self._peek()
        if c in "*+?{":
            self._fail("nothing to repeat")
        if c in "]}":
            self._fail(f"unescaped {c!r}")
        if c == "^":
            self._fail("anchors are supported only at the ends of top-level alternatives")
        self._at += 1
        if c == "(":
            return self._group()
        if c == "[":
            return self._class()
        if c == ".":
            return class_text(_DOT)
        if c == "\\":
            return class_text(self._escape(in_class=False))
        return literal_text(self._character(c))

    def _character(self, c: str) -> str:
        if 0xD800 <= ord(c) <= 0xDFFF:
            self._fail("surrogates are no characters")
        return c

    def _escape(self, *, in_class: bool) -> tuple[Interval, ...]:
        c = self._peek()
        self._at += 1
        if c and c in _CLASSES:
            return _CLASSES[c]
        if c and c in _CONTROLS and not (c == "0" and self._peek().isdigit()):
            return single(_CONTROLS[c])
        if c == "x" or c == "u":
            digits = self._text[self._at : self._at + (2 if c == "x" else 4)]
            if len(digits) != (2 if c == "x" else 4) or any(d not in "0123456789abcdefABCDEF" for d in digits):
                self._fail(f"bad \\{c} escape")
            self._at += len(digits)
            return single(self._character(chr(int(digits, 16))))
        if c and (c in _SYNTAX or (in_class and c == "-")):
            return single(c)
        if in_class and c == "b":
            return single("\b")
        self._at -= 1
        return self._fail(f"unsupported escape \\{c}")

    def _class(self) -> str:
        negated = self._take("^")
        found: list[Interval] = []
        while True:
            if not self._peek():
                self._fail("unclosed character class")
            if self._take("]"):
                break
            low = self._class_item()
            if self._peek() == "-" and self._peek(1) not in ("]", ""):
                self._at += 1
                high = self._class_item()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                    self._fail("a range needs single characters at its ends")
                if high[0][0] < low[0][0]:
                    self._fail("a range is out of order")
                found.append((low[0][0], high[0][0]))
            else:
                found += low
        chosen = complement(found) if negated else merged(found)
        if not chosen:
            self._fail("an empty character class matches nothing")
        return class_text(chosen)

    def _class_item(self) -> tuple[Interval, ...]:
        c = self._peek()
        self._at += 1
        return self._escape(in_class=True) if c == "\\" else single(self._character(c))
