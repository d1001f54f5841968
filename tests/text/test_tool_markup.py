"""Lexemes of markup: what is a tag, and what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.text.tool_markup import TAG_CHARACTERS_MAX, Kind, Lexeme, Lexer


def lexemes(pieces: list[str]) -> list[Lexeme]:
    """The lexemes of a text, white space and words joined."""
    lexer = Lexer()
    joined: list[Lexeme] = []
    for lexeme in [lexeme for piece in pieces for lexeme in lexer.push(piece)] + lexer.finish():
        assert lexeme.text
        if joined and lexeme.kind in (Kind.WHITE, Kind.WORD) and lexeme.kind is joined[-1].kind:
            joined[-1] = Lexeme(lexeme.kind, joined[-1].text + lexeme.text)
        else:
            joined.append(lexeme)
    return joined


@pytest.mark.parametrize(
    ("text", "kind", "tag", "name"),
    [
        ("<tool_call>", Kind.CALL_OPEN, "", None),
        ("</tool_call>", Kind.CALL_CLOSE, "", None),
        ("<function_calls>", Kind.WRAPPER_OPEN, "", None),
        ("</function_calls>", Kind.WRAPPER_CLOSE, "", None),
        ("<function=f>", Kind.FUNCTION_OPEN, "function", "f"),
        ("<function= f >", Kind.FUNCTION_OPEN, "function", "f"),
        ("<function name='f'>", Kind.FUNCTION_OPEN, "function", "f"),
        ('<invoke id="3" name = "f" x>', Kind.FUNCTION_OPEN, "invoke", "f"),
        ("</invoke>", Kind.FUNCTION_CLOSE, "invoke", None),
        ("<parameter=a b>", Kind.PARAMETER_OPEN, "parameter", "a b"),
        ("<param\tname='k'>", Kind.PARAMETER_OPEN, "param", "k"),
        ("</param>", Kind.PARAMETER_CLOSE, "param", None),
    ],
)
def test_tags(text: str, kind: Kind, tag: str, name: str | None) -> None:
    expected = [Lexeme(kind, text, tag, name), Lexeme(Kind.WORD, "x")]
    assert lexemes([f"{text}x"]) == lexemes(list(f"{text}x")) == expected


NO_TAGS = ["<", "<tool_call", "<tool_call >", "<function>", "<function=>", "<param name=''>", "<param name='k'/>",
           "<param id='k'>", "<function na\n", "<funct", "<parameterx"]  # fmt: skip


@pytest.mark.parametrize("text", NO_TAGS)
def test_what_is_no_tag(text: str) -> None:
    kinds = {lexeme.kind for lexeme in lexemes([text])}
    assert kinds <= {Kind.WHITE, Kind.WORD}
    assert lexemes(list(text)) == lexemes([text])


@pytest.mark.parametrize("end", ["\n", "<"])
@pytest.mark.parametrize("opener", ["<parameter=k", "<function=f g", "<param name='k'", "<parameter="])
def test_an_opener_without_an_end_on_its_line(opener: str, end: str) -> None:
    first = lexemes([opener + end])[0]
    assert (first.text, first.name) == (opener, None)
    assert first.kind in (Kind.PARAMETER_OPEN, Kind.FUNCTION_OPEN)


def test_a_tag_has_a_greatest_length() -> None:
    text = "<parameter=" + "k" * TAG_CHARACTERS_MAX + ">"
    first = lexemes([text])[0]
    assert (first.kind, len(first.text), first.name) == (Kind.PARAMETER_OPEN, TAG_CHARACTERS_MAX, None)
    assert lexemes(list(text)) == lexemes([text])
    blank = "<parameter " + " " * TAG_CHARACTERS_MAX
    assert lexemes([blank])[0] == Lexeme(Kind.WORD, "<parameter")


PIECES = [
    "<",
    ">",
    "</",
    "tool_call",
    "function",
    "_calls",
    "parameter",
    "param",
    "invoke",
    "=",
    " name=",
    "'k'",
    "\n",
    " ",
]


@given(st.lists(st.sampled_from(PIECES), max_size=14), st.data())
def test_every_split_gives_the_same(parts: list[str], draw: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = lexemes([text])
    assert "".join(lexeme.text for lexeme in whole) == text
    assert lexemes(pieces) == lexemes(list(text)) == whole
