"""Recursion of a GBNF rule that stands only at the ends, or only at the beginnings, of its options is a repetition.

    r ::= a r | b r | c   is   (a | b)* c          r ::= r a | r b | c   is   c (a | b)*

By Arden's lemma these are the least solutions, which is what a grammar means, also where `a` may be empty. Rules that
name each other in a circle stay as they are.
"""

from __future__ import annotations

from ninfer.constraints.gbnf_nodes import Choice, Node, Reference, Repetition, Sequence

EMPTY = Sequence(())


def without_linear_recursion(rules: dict[str, Node]) -> dict[str, Node]:
    """Rules of the same languages; every rule has a text that fits it."""
    return {name: _repeated(name, body) for name, body in rules.items()}


def _repeated(name: str, body: Node) -> Node:
    if not _names(body, name):
        return body
    for at_end in (True, False):
        options = _options(name, body, at_end)
        if options is None:
            continue
        loops = tuple(rest for rest, again in options if again and rest != EMPTY)  # `r ::= r` adds nothing
        ends = tuple(rest for rest, again in options if not again)
        assert ends, "a rule that never ends has been taken out before"
        loop = Repetition(Choice(loops), 0, None) if loops else EMPTY
        return Sequence((loop, Choice(ends)) if at_end else (Choice(ends), loop))
    return body


def _names(node: Node, name: str) -> bool:
    match node:
        case Reference(other):
            return other == name
        case Repetition(body):
            return _names(body, name)
        case Sequence(parts) | Choice(parts):
            return any(_names(part, name) for part in parts)
    return False


def _options(name: str, node: Node, at_end: bool) -> list[tuple[Node, bool]] | None:
    """What stands beside the rule's own name in each option, and whether it is named; None if it stands elsewhere."""
    if not _names(node, name):
        return [(node, False)]
    match node:
        case Reference():
            return [(EMPTY, True)]
        case Repetition(body, 0, 1):
            inner = _options(name, body, at_end)
            return None if inner is None else [*inner, (EMPTY, False)]
        case Choice(options):
            found: list[tuple[Node, bool]] = []
            for option in options:
                inner = _options(name, option, at_end)
                if inner is None:
                    return None
                found += inner
            return found
        case Sequence(parts):
            outer, rest = (parts[-1], parts[:-1]) if at_end else (parts[0], parts[1:])
            if any(_names(part, name) for part in rest):
                return None
            inner = _options(name, outer, at_end)
            if inner is None:
                return None
            return [(_joined((*rest, tail) if at_end else (tail, *rest)), again) for tail, again in inner]
    return None


def _joined(parts: tuple[Node, ...]) -> Node:
    """One behind the other, without what is empty."""
    left = tuple(part for part in parts if part != EMPTY)
    return left[0] if len(left) == 1 else Sequence(left)
