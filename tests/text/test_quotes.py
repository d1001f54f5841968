"""Code in Markdown, judged by what stands before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.text.quotes import Quotes


def quoted(text: str, *, opens_line_alone: bool = False) -> bool:
    results = set()
    for pieces in ([text], list(text)):
        quotes = Quotes()
        for piece in pieces:
            quotes.push(piece)
        results.add(quotes.quotes(opens_line_alone=opens_line_alone))
    assert len(results) == 1
    return results.pop()


@pytest.mark.parametrize(
    "text", ["`", "a `b", "``", "`` a ` ", "```", "```py", "```py\n", "~~~\n`", "```\na\n", "  ```\n", "````\n```\n",
             "```\n``` x\n", "```\n~~~\n", "``` a `", "~~~ `\n", "x ``` `` ", "` a\nb ", "`\n```\n"]
)  # fmt: skip
def test_inside(text: str) -> None:
    assert quoted(text)


@pytest.mark.parametrize(
    "text", ["", "a", "`a`", "`` ` ``", "```\na\n```\n", "~~~\n~~~~ \n", "``` a ```", "` a\n\n", "~~", "a ~~~\n",
             "```a``` b", "```\n```\n`a`", "``` `` ```", "\n\n", "`a\n \nb"]
)  # fmt: skip
def test_outside(text: str) -> None:
    assert not quoted(text)


def test_a_span_does_not_reach_what_stands_at_the_beginning_of_a_line() -> None:
    assert not quoted("a ` b\n ", opens_line_alone=True)
    assert quoted("a ` b\n", opens_line_alone=False)
    assert quoted("a\n` b", opens_line_alone=True)
    assert quoted("```\n", opens_line_alone=True)


@given(st.lists(st.sampled_from(["`", "``", "```", "~~~", "\n", " ", "a", "\t", "é"]), max_size=16).map("".join))
def test_every_split_judges_alike(text: str) -> None:
    quoted(text)
