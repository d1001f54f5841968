"""Rules without their linear recursion have the same texts, all of them up to a length, and become single terminals."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.constraints.gbnf import lark
from ninfer.constraints.gbnf_linear import without_linear_recursion
from ninfer.constraints.gbnf_nodes import Characters, Choice, Node, Reference, Repetition, Sequence

LONGEST = 5
EMPTY = Sequence(())

A, B = (Characters(((ord(c), ord(c)),)) for c in "ab")
R, S = Reference("r", 0), Reference("s", 0)


def joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    return frozenset(a + b for a in left for b in right if len(a) + len(b) <= LONGEST)


def texts_of(node: Node, known: dict[str, frozenset[str]]) -> frozenset[str]:
    match node:
        case Characters(chosen):
            return frozenset(chr(low) for low, _ in chosen)
        case Reference(name):
            return known[name]
        case Sequence(parts):
            return reduce(joined, (texts_of(part, known) for part in parts), frozenset(("",)))
        case Choice(options):
            return frozenset().union(*(texts_of(option, known) for option in options))
        case Repetition(body, low, high):
            one, all_ = texts_of(body, known), frozenset[str]()
            power = frozenset(("",))
            for times in range(max(low, LONGEST) + 1 if high is None else high + 1):
                all_ |= power if times >= low else frozenset()
                power = joined(power, one)
            return all_
    raise AssertionError(node)


def language(rules: dict[str, Node]) -> dict[str, frozenset[str]]:
    """The texts of every rule up to the longest length: the least sets that satisfy the rules."""
    known = dict.fromkeys(rules, frozenset[str]())
    while True:
        more = {name: texts_of(body, known) for name, body in rules.items()}
        if more == known:
            return known
        known = more


def nodes(names: list[Node]) -> st.SearchStrategy[Node]:
    return st.recursive(
        st.sampled_from([A, B, EMPTY, *names]),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: Sequence(tuple(parts))),
            st.lists(inner, min_size=1, max_size=3).map(lambda options: Choice(tuple(options))),
            st.builds(Repetition, inner, st.just(0), st.sampled_from([1, 2, None])),
        ),
        max_leaves=8,
    )


@settings(max_examples=150)
@given(nodes([R, R, S]), nodes([R, S]))
def test_the_texts_stay_the_same(first: Node, second: Node) -> None:
    rules = {"r": Choice((first, B)), "s": Choice((second, A))}  # every rule has a text
    assert language(without_linear_recursion(rules)) == language(rules)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= . root | ""',
        'root ::= root [^"] | "x"',
        'root ::= (a | b) root | ""\na ::= "1"\nb ::= "2" b | "3"',
        'root ::= "a" root?',
        'root ::= x\nx ::= x | "a" x | "" x | "b"',
        'root ::= ("a" ("b" root | "c") | "d")',
    ],
)
def test_recursion_that_repeats_becomes_one_terminal(text: str) -> None:
    assert lark(text, lambda _: True).startswith("gbnf: GBNF\n")


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "(" root ")" | "x"',
        'root ::= root root | "x"',
        'root ::= ("a" root)* "b"',
        'root ::= "a" other | ""\nother ::= "b" root',
        'root ::= "a" root | root "b" | "x"',
    ],
)
def test_other_recursion_stays(text: str) -> None:
    assert "g0: " in lark(text, lambda _: True)
