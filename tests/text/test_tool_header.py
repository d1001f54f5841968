"""What a tolerant server mends, and what a strict one makes of the same."""

from __future__ import annotations

import pytest

from tests.text.calling import call, read

READ = call("read", path="a.txt")
CALLED = ("read", '{"path": "a.txt"}', True)
REST = "<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    "header",
    [
        "function=read>\n",
        "<<function=read>\n",
        "<=read>\n",
        "=read>\n",
        "<function=read\n",
        "function=read\n",
        "<|im_start|><function=read>\n",
        "<|im_start|>\n<function=read>\n",
        "<|im_start|>assistant\n<function=read>\n",
        "<|im_start|> function=read>\n",
        "<function=read>",
        "<=read>",
    ],
)
def test_damaged_openers(header: str) -> None:
    text = f"<tool_call>\n{header}{REST}"
    mended = read(text, tolerant=True)
    assert (mended.content, mended.calls) == ("", (CALLED,))
    assert mended.seen is not None
    whole = header == "<function=read>"
    assert mended.seen.tolerant_recovered == (not whole)
    strict = read(text)
    if whole or header.endswith("<function=read>\n"):
        assert strict.calls == (CALLED,)
    else:
        assert (strict.content, strict.calls) == (text, ())


@pytest.mark.parametrize(
    "header",
    [
        "prose about it\n",
        "function=read>more\n",
        "function=re ad>\n",
        "<function=read ",
        "<function=read\n\n",
        "function=read>",
        "<function=\n",
        "<|im_start|>",
        "word<function=nope>",
        "</function>",
        "x" * 400,
    ],
)
def test_what_cannot_be_mended_is_text(header: str) -> None:
    text = f"<tool_call>\n{header}tail"
    result = read(text, tolerant=True)
    assert (result.content, result.calls) == (text, ())
    assert result.seen is not None
    assert not result.seen.tolerant_recovered


@pytest.mark.parametrize(
    "text",
    [
        READ.removesuffix("\n</tool_call>"),
        READ.removesuffix("\n</function>\n</tool_call>"),
        READ.removesuffix("/function>\n</tool_call>"),
        '<tool_call>{"name": "read", "arguments": {"path": "a.txt"}}',
    ],
)
def test_closers_that_are_missing_at_the_end_of_a_turn(text: str) -> None:
    assert read(text, tolerant=True).calls == (CALLED,)
    limited = read(text, tolerant=True, own_stop=False)
    assert [ended for *_, ended in limited.calls] in ([], [False]) or text.endswith("</function>")


def test_a_value_that_was_cut_is_never_kept() -> None:
    result = read(READ[: READ.index("\n</parameter>")], tolerant=True)
    assert result.calls == (("read", '{"path": "a.txt', False),)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (call("nope", x="5") + "\n", '{"x": 5}'),
        ('<tool_call>{"name": "nope", "arguments": {"x": 5}}</tool_call>', '{"x": 5}'),
        (call("nope", x="5").removesuffix("\n</function>\n</tool_call>"), '{"x": 5}'),
        ("<tool_call>\n=nope>\n</function>", "{}"),
    ],
)
def test_a_complete_call_to_an_undeclared_tool_is_returned(text: str, arguments: str) -> None:
    result = read("So.\n" + text, tolerant=True)
    assert (result.content, result.calls) == ("So.", (("nope", arguments, True),))
    assert result.seen is not None
    assert (result.seen.tolerant_recovered, result.seen.discarded_bytes) == (True, 0)


def test_an_incomplete_call_to_an_undeclared_tool_is_text() -> None:
    for text in (call("nope", x="5")[:40], "<tool_call>\n<function=nope>\n<tool_call> x"):
        assert read(text, tolerant=True).content == text
    later = read("<tool_call>\n<function=nope>\n" + READ, tolerant=True)
    assert (later.content, later.calls) == ("<tool_call>\n<function=nope>", (CALLED,))


@pytest.mark.parametrize("tolerant", [True, False])
def test_complete_calls_are_kept_whatever_follows(tolerant: bool) -> None:
    for text in (
        f"{READ}\nNow I wait.",
        f"{READ}\n<tool_call>\n<function=re",
        f"{READ}</function></tool_call></tool_call>",
        f"<function_calls>\n{READ}\n",
        READ.replace("</function>\n", "</function>\nbecause\n"),
    ):
        result = read(text, tolerant=tolerant)
        assert (result.content, result.calls) == ("", (CALLED,))
