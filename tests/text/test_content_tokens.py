"""Which tokens belong to the published answer: those whose text it is made of, told once and with it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.text.output import ContentDelta, Delta, OutputParser, ToolUse
from ninfer.text.tool_values import DeclaredTools
from tests.text.calling import TOOLS

CALL = "<tool_call>\n<function=read>\n<parameter=path>\na.c\n</parameter>\n</function>\n</tool_call>"
# Prompts that open a think block, and what is said behind them.
OUTPUTS = (
    (False, "Once upon a time, there was END of it."),
    (True, "I see.\n</think>\n\nYes, of course. END no"),
    (True, f"so\n</think>\n\n  Let me look.\n\n{CALL}\n"),
    (True, "never closed"),
    (True, f"calls in thinking {CALL}"),
    (False, f"{CALL}\n{CALL} words behind"),
    (False, "A <tool_call> that is none, and < too"),
    (False, "<tool_call>\n<function=unknown>\n</function>\n</tool_call> is quoted"),
    (False, "\n Leading white space"),
    (True, "</think>\n\n\n grüß dich \U0001f642 EN"),
    (True, "<think>\nx</think>\n <think>y</think>\n\nz"),
    (False, ""),
)


def parser(
    opens_think: bool, *, stops: tuple[str, ...] = (), tools: bool = False, exclusive: bool = False
) -> OutputParser:
    use = ToolUse(DeclaredTools(TOOLS), lambda: "call_0123456789abcdef", exclusive=exclusive) if tools else None
    return OutputParser(lambda _: b"", stop_ids=frozenset(), opens_think=opens_think, stops=stops, tool_use=use)


def content_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def read(output: OutputParser, tokens: list[bytes], burst: int) -> tuple[str, list[int]]:
    """The answer, and the tokens told of."""
    content, told = "", list[int]()
    for begin in range(0, len(tokens), burst):
        new = content_of(output.feed_bytes(tokens[begin : begin + burst]))
        content += new
        added = list(output.take_content_tokens())
        assert new or not added
        assert output.tokens_told >= (added[-1] + 1 if added else 0)
        told += added
    content += content_of(output.finish())
    told += output.take_content_tokens()
    assert not output.take_content_tokens()
    return content, told


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_answer_begins_in_the_first_and_ends_in_the_last(data: st.DataObject) -> None:
    opens_think, text = data.draw(st.sampled_from(OUTPUTS))
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(raw) - 1, 1)))))
    tokens = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    stops = data.draw(st.sampled_from([(), ("END",), ("dich",)]))
    tools, exclusive = data.draw(st.sampled_from([(False, False), (True, False), (True, True)]))
    output = parser(opens_think, stops=stops, tools=tools, exclusive=exclusive)
    content, told = read(output, tokens, data.draw(st.integers(1, 9)))
    if not content:
        assert told == []
        return
    assert told == list(range(told[0], told[-1] + 1))
    said, wanted = b"".join(tokens[n] for n in told), content.encode()
    at = said.find(wanted)
    assert 0 <= at < len(tokens[told[0]])
    assert at + len(wanted) > len(said) - len(tokens[told[-1]])


@pytest.mark.parametrize("burst", [1, 2, 9])
def test_parts_of_a_character_are_told_of_with_it(burst: int) -> None:
    tokens = [b"a", b"\xf0\x9f", b"\x99", b"\x82", b"b", b"\xc3"]
    assert read(parser(False), tokens, burst) == ("a\U0001f642b�", [0, 1, 2, 3, 4, 5])


def test_a_stop_token_is_none_of_the_answer() -> None:
    output = OutputParser(lambda token: b"" if token == 9 else b"\xc3", stop_ids=frozenset({9}), opens_think=False)
    assert content_of(output.feed([0, 9])) == ""
    assert content_of(output.finish()) == "�"
    assert output.take_content_tokens() == range(1)


def test_what_a_stop_string_may_begin_is_held_with_its_tokens() -> None:
    output = parser(False, stops=("own fox",))
    assert content_of(output.feed_bytes([b"The qu", b"ick br", b"own"])) == "The quick br"
    assert output.take_content_tokens() == range(2)
    assert content_of(output.feed_bytes([b" cat"])) == "own cat"
    assert output.take_content_tokens() == range(2, 4)
    output.feed_bytes([b" br", b"own", b" fox"])
    assert output.take_content_tokens() == range(4, 5)
    assert output.stop_string == "own fox"
