from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer.text.reasoning import ReasoningSplitter

TEXT = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</", "think>", "/think>", " ", "\n\n", "a", "b c", "\u3000", "é"]),
    max_size=10,
).map("".join)


def whole_answer(text: str, opens_think: bool) -> tuple[str, str]:
    """Model spec 15, read off the whole text."""
    if not opens_think:
        return "", text
    text = text.lstrip()
    rest = text.removeprefix("<think>")
    parts = []
    while True:
        part, closed, rest = rest.partition("</think>")
        parts.append(part.strip())
        reopened = re.match(r"\s*<think>", rest)
        if not reopened:
            break
        rest = rest[reopened.end() :]
    return "\n\n".join(filter(None, parts)), rest.lstrip() if closed else ""


def split(pieces: list[str], opens_think: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(opens_think)
    out = [delta for piece in pieces for delta in splitter.push(piece)] + splitter.finish()
    assert all(delta.text for delta in out)
    assert [delta.reasoning for delta in out] == sorted((delta.reasoning for delta in out), reverse=True)
    assert [delta.end for delta in out] == sorted(delta.end for delta in out)
    return "".join(d.text for d in out if d.reasoning), "".join(d.text for d in out if not d.reasoning)


@settings(deadline=None)
@given(TEXT, st.booleans(), st.data())
@example(" <think>\n</think>\n<think> b </think> c", True, None)
def test_every_split_gives_the_whole_answer(text: str, opens_think: bool, draw: st.DataObject | None) -> None:
    cuts = [] if draw is None else sorted(draw.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = whole_answer(text, opens_think)
    assert split(pieces, opens_think) == expected
    assert split(list(text), opens_think) == expected


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("Fine.\n</think>\n\nYes.", "Fine.", "Yes."),
        ("never closed \n", "never closed", ""),
        ("<think>\nOpened again.\n</think>\n\nHello.", "Opened again.", "Hello."),
        ("<think><think>x</think>y", "<think>x", "y"),
        ("a</think> \n<think>b\n</think>\n c ", "a\n\nb", "c "),
        ("</think><think>b</think>c", "b", "c"),
        ("a</think><think> </think>c", "a", "c"),
        ("a</think><think><think>b</think>c", "a\n\n<think>b", "c"),
        ("a</think>x<think>y</think>z", "a", "x<think>y</think>z"),
        ("a</think> <thin", "a", "<thin"),
        ("a </thin", "a </thin", ""),
        ("<thi", "<thi", ""),
        ("</think>", "", ""),
        ("", "", ""),
    ],
)
def test_table(text: str, reasoning: str, answer: str) -> None:
    assert split([text], True) == (reasoning, answer)


def test_only_what_may_belong_to_a_marker_or_to_the_margin_is_held() -> None:
    splitter = ReasoningSplitter(True)

    def push(text: str) -> list[tuple[bool, str, int]]:
        return [(delta.reasoning, delta.text, delta.end) for delta in splitter.push(text)]

    assert push("\n I see") == [(True, "I see", 7)]
    assert push(". \n</") == [(True, ".", 8)]
    assert splitter.reasoning
    assert push("thin") == []
    assert push("g") == [(True, " \n</thing", 17)]
    assert push(" ") == []
    assert push("</think>\n") == []
    assert not splitter.reasoning
    assert push("\nCaf") == [(False, "Caf", 31)]
    assert push("é <think>") == [(False, "é <think>", 40)]


def test_white_space_without_end_is_held_at_constant_cost() -> None:
    splitter = ReasoningSplitter(True)
    splitter.push("a")
    for _ in range(20_000):
        assert splitter.push("\n" * 8) == []
    assert [delta.text for delta in splitter.push("b")] == ["\n" * 160_000 + "b"]


@pytest.mark.parametrize("behind", ["\n\n  x", "\n\n\n\nx ", "\n\n<think>a</think>", "\n\n", "\n", ""], ids=repr)
def test_an_exact_answer_keeps_its_white_space_for_every_split(behind: str) -> None:
    text = f"why\n</think>{behind}"
    for cut in range(len(text) + 1):
        splitter = ReasoningSplitter(True, exact=True)
        pieces = [*splitter.push(text[:cut]), *splitter.push(text[cut:]), *splitter.finish()]
        assert "".join(piece.text for piece in pieces if piece.reasoning) == "why"
        assert "".join(piece.text for piece in pieces if not piece.reasoning) == behind[2:]
