"""Grammars in GBNF notation (serving spec, 6.4), parsed and written anew for the grammar library.

The library reads terminals longest first, GBNF reads character by character. The two agree in two cases, and every
grammar is made into one of them: a grammar without recursion is a single terminal, and one with recursion has terminals
of one character each. The second kind costs tens of milliseconds for a mask over a large vocabulary, and hundreds where
it is ambiguous; so recursion that is but another spelling of a repetition is taken out first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ninfer.constraints.characters import Interval, class_text, complement, merged
from ninfer.constraints.gbnf_linear import without_linear_recursion
from ninfer.constraints.gbnf_nodes import Characters, Choice, Node, Reference, Repetition, Sequence, Tokens
from ninfer.constraints.regex import REPEAT_MAX

# A grammar without recursion that grows beyond it when its rules are put into each other is kept as rules.
_EXPANDED_MAX = 2_000_000
_NESTING_MAX = 100
_HEX = "0123456789abcdefABCDEF"
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^"}
_WORDS = {"x": 2, "u": 4, "U": 8}


class BadGrammar(ValueError):
    """A grammar that cannot be read; `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")


class EmptyLanguage(ValueError):
    """A grammar that no text fits, because its recursion has no end."""


def lark(text: str, is_ordinary: Callable[[int], bool]) -> str:
    """The grammar, entry `root`, in the library's notation with entry `gbnf`.

    is_ordinary   whether an id is that of a token that a grammar may name
    raises        BadGrammar, and EmptyLanguage if no text fits it
    """
    rules = without_linear_recursion(_productive(_Parser(text, is_ordinary).rules()))
    expanded = _as_regex(rules)
    if expanded is not None:
        return f"gbnf: GBNF\nGBNF: /{expanded}/\n"
    names = {name: f"g{n}" for n, name in enumerate(rules)}
    lines = [f"{names[name]}: {_as_rule(body, names)}" for name, body in rules.items()]
    return "\n".join((f"gbnf: {names['root']}", *lines)) + "\n"


def _productive(rules: dict[str, Node]) -> dict[str, Node]:
    """The rules without what never comes to an end: the library would find out only when it is there."""
    ends: frozenset[str] = frozenset()
    while True:
        kept = {name: body for name, rule in rules.items() if (body := _pruned(rule, ends)) is not None}
        if kept.keys() == ends:
            break
        ends = frozenset(kept)
    if "root" not in kept:
        raise EmptyLanguage("no text fits the grammar: its recursion has no end")
    return kept


def _pruned(node: Node, ends: frozenset[str]) -> Node | None:
    match node:
        case Reference(name):
            return node if name in ends else None
        case Repetition(body, low, high):
            inner = _pruned(body, ends)
            if inner is not None:
                return Repetition(inner, low, high)
            return Sequence(()) if low == 0 else None
        case Sequence(parts):
            pruned = [_pruned(part, ends) for part in parts]
            return None if None in pruned else Sequence(tuple(part for part in pruned if part is not None))
        case Choice(options):
            left = tuple(option for part in options if (option := _pruned(part, ends)) is not None)
            return Choice(left) if left else None
    return node


class _TooLong(Exception):
    pass


def _as_regex(rules: dict[str, Node]) -> str | None:
    """The language as one regular expression; None if rules are recursive, name tokens, or grow too long."""
    done: dict[str, str | None] = {}
    try:
        return _expanded(rules["root"], rules, done, frozenset(("root",)))
    except _TooLong:
        return None


def _expanded(node: Node, rules: dict[str, Node], done: dict[str, str | None], path: frozenset[str]) -> str:
    match node:
        case Characters(chosen):
            text = class_text(chosen)
        case Tokens():
            raise _TooLong
        case Reference(name):
            if name in path:
                raise _TooLong
            known = done.get(name)
            text = known if known is not None else _expanded(rules[name], rules, done, path | {name})
            done[name] = text
        case Repetition(body, low, high):
            text = f"(?:{_expanded(body, rules, done, path)}){{{low},{'' if high is None else high}}}"
        case Sequence(parts):
            text = "".join(_expanded(part, rules, done, path) for part in parts)
        case Choice(options):
            text = f"(?:{'|'.join(_expanded(option, rules, done, path) for option in options)})"
    if len(text) > _EXPANDED_MAX:
        raise _TooLong
    return text


def _as_rule(node: Node, names: dict[str, str]) -> str:
    match node:
        case Characters(chosen):
            return f"/{class_text(chosen)}/"
        case Tokens(ids, excluded):
            return f"<[{'^' if excluded else ''}{','.join(map(str, ids))}]>"
        case Reference(name):
            return names[name]
        case Repetition(body, low, high):
            return f"({_as_rule(body, names)}){{{low},{'' if high is None else high}}}"
        case Sequence(parts):
            return " ".join(_as_rule(part, names) for part in parts) if parts else '""'
        case Choice(options):
            return f"({' | '.join(_as_rule(option, names) for option in options)})"


class _Parser:
    def __init__(self, text: str, is_ordinary: Callable[[int], bool]) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._is_ordinary = is_ordinary
        self._references: list[Reference] = []

    def rules(self) -> dict[str, Node]:
        """Every rule by its name."""
        found: dict[str, Node] = {}
        self._space(newlines=True)
        while self._peek():
            start = self._at
            name = self._name()
            if name in found:
                self._fail(f"the rule {name} is defined twice", start)
            self._space(newlines=False)
            if not self._take("::="):
                self._fail("expected ::=")
            self._space(newlines=True)
            found[name] = self._choice(nested=False)
            if self._peek() not in ("", "\n", "\r"):
                self._fail(f"unexpected {self._peek()!r}")
            self._space(newlines=True)
        if "root" not in found:
            self._fail("there is no rule root")
        for reference in self._references:
            if reference.name not in found:
                self._fail(f"there is no rule {reference.name}", reference.at)
        return found

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        before = self._text[: self._at if at is None else at]
        raise BadGrammar(what, before.count("\n") + 1, len(before) - before.rfind("\n"))

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def _space(self, *, newlines: bool) -> None:
        while c := self._peek():
            if c == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif c in " \t" or (newlines and c in "\r\n"):
                self._at += 1
            else:
                return

    def _name(self) -> str:
        start = self._at
        while (c := self._peek()) and c.isascii() and (c.isalnum() or c in "-_"):
            self._at += 1
        if start == self._at:
            self._fail("expected the name of a rule")
        return self._text[start : self._at]

    def _choice(self, *, nested: bool) -> Node:
        options = [self._sequence(nested=nested)]
        while self._continues():
            self._space(newlines=True)
            options.append(self._sequence(nested=nested))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _continues(self) -> bool:
        """Whether another option follows; it may stand on the next line."""
        start = self._at
        self._space(newlines=True)
        if self._take("|"):
            return True
        self._at = start
        return False

    def _sequence(self, *, nested: bool) -> Node:
        parts: list[Node] = []
        while (c := self._peek()) and c not in "|)" and (nested or c not in "\r\n"):
            parts += self._repeated(self._element())
            self._space(newlines=nested)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _element(self) -> list[Node]:
        """A literal gives one node for each of its characters; what follows repeats all of them."""
        c = self._peek()
        if c == '"':
            return self._literal()
        if c == "[":
            return [self._class()]
        if self._take("."):
            return [Characters(complement(()))]
        if self._take("("):
            self._depth += 1
            if self._depth > _NESTING_MAX:
                self._fail("groups are nested too deeply")
            self._space(newlines=True)
            inner = self._choice(nested=True)
            if not self._take(")"):
                self._fail("unclosed group")
            self._depth -= 1
            return [inner]
        start = self._at
        name = self._name()
        if name in ("Token", "ExcludeToken") and self._peek() == "(":
            return [self._tokens(excluded=name == "ExcludeToken")]
        reference = Reference(name, start)
        self._references.append(reference)
        return [reference]

    def _repeated(self, element: list[Node]) -> list[Node]:
        bounds: list[tuple[int, int | None]] = []
        while (c := self._peek()) and c in "*+?{":
            self._at += 1
            bounds.append({"*": (0, None), "+": (1, None), "?": (0, 1)}[c] if c != "{" else self._bounds())
        if not bounds:
            return element
        body = element[0] if len(element) == 1 else Sequence(tuple(element))
        for low, high in bounds:
            body = Repetition(body, low, high)
        return [body]

    def _bounds(self) -> tuple[int, int | None]:
        low = self._number()
        high: int | None = low
        self._space(newlines=False)
        if self._take(","):
            self._space(newlines=False)
            high = self._number() if self._peek() != "}" else None
        if not self._take("}"):
            self._fail("expected }")
        if high is not None and high < low:
            self._fail("the bounds of a repetition are out of order")
        if max(low, high or 0) > REPEAT_MAX:
            self._fail(f"repetition of more than {REPEAT_MAX}")
        return low, high

    def _number(self) -> int:
        start = self._at
        while (c := self._peek()) and c in "0123456789":
            self._at += 1
        if not 0 < self._at - start <= 9:
            self._fail("expected a number", start)
        return int(self._text[start : self._at])

    def _tokens(self, *, excluded: bool) -> Node:
        assert self._take("(")
        ids = []
        while True:
            self._space(newlines=True)
            start = self._at
            ids.append(self._number())
            if not self._is_ordinary(ids[-1]):
                self._fail(f"{ids[-1]} is not the id of an ordinary token", start)
            self._space(newlines=True)
            if self._take(")"):
                return Tokens(tuple(ids), excluded)
            if not self._take(","):
                self._fail("expected , or )")

    def _literal(self) -> list[Node]:
        assert self._take('"')
        found: list[Node] = []
        while not self._take('"'):
            point = self._point("unclosed literal")
            found.append(Characters(((point, point),)))
        return found or [Sequence(())]

    def _class(self) -> Node:
        start = self._at
        assert self._take("[")
        negated = self._take("^")
        found: list[Interval] = []
        while not self._take("]"):
            low = high = self._point("unclosed character class")
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._point("unclosed character class")
            if high < low:
                self._fail("a range is out of order")
            found.append((low, high))
        chosen = complement(found) if negated else merged(found)
        if not chosen:
            self._fail("an empty character class matches nothing", start)
        return Characters(chosen)

    def _point(self, unclosed: str) -> int:
        c = self._peek()
        if not c or c in "\r\n":
            self._fail(unclosed)
        self._at += 1
        if c != "\\":
            point = ord(c)
        else:
            start = self._at
            word = self._peek()
            self._at += 1
            if word and word in _ESCAPES:
                return ord(_ESCAPES[word])
            if not word or word not in _WORDS:
                self._fail("unknown escape", start)
            digits = self._text[self._at : self._at + _WORDS[word]]
            if len(digits) != _WORDS[word] or any(d not in _HEX for d in digits):
                self._fail("bad escape", start)
            self._at += len(digits)
            point = int(digits, 16)
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            self._fail("not a character")
        return point
