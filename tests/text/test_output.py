from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.text.output import ContentDelta, Delta, OutputParser, ReasoningDelta
from ninfer.text.tokenizer import Tokenizer
from tests.text.vocabulary import tiny_json

TINY = Tokenizer.from_resources(tiny_json(), None, None)
END = TINY.control_id("<|im_end|>")


def parser(*, opens_think: bool = False, stops: list[str] | None = None, ignore_eos: bool = False) -> OutputParser:
    stop_ids = frozenset[int]() if ignore_eos else TINY.stop_ids
    return OutputParser(TINY.text_bytes, stop_ids=stop_ids, opens_think=opens_think, stops=stops or [])


def joined(deltas: list[Delta]) -> tuple[str, str]:
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    return reasoning, "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def bursts(*tokens: str) -> list[bytes]:
    return [token.encode() for token in tokens]


def test_a_stop_string_over_several_tokens() -> None:
    output = parser(stops=["own fox"])
    assert output.feed_bytes(bursts("The qu", "ick br")) == [ContentDelta("The quick br")]
    assert output.feed_bytes(bursts("own")) == []
    assert not output.ended
    assert output.feed_bytes(bursts(" fox", " jumps")) == []
    assert output.ended
    assert output.feed_bytes(bursts(" over")) == []
    assert output.finish() == []
    assert (output.stop_string, output.stop_id) == ("own fox", None)
    assert (output.completion_tokens, output.tokens_before_stop) == (4, 2)


def test_think_end_stop_string_and_tool_tag_in_two_bursts() -> None:
    output = parser(opens_think=True, stops=["END<"])
    assert output.feed_bytes(bursts("I see", ".\n</", "think", ">\n\nCaf")) == [
        ReasoningDelta("I see."),
        ContentDelta("Caf"),
    ]
    assert output.feed_bytes(bursts("é ", "EN", "D", "<tool", "_call>\n")) == [ContentDelta("é ")]
    assert output.finish() == []
    assert (output.completion_tokens, output.reasoning_tokens, output.tokens_before_stop) == (8, 4, 5)


def test_the_end_of_turn_inside_a_burst() -> None:
    output = parser(opens_think=True)
    ids = TINY.encode_with_control("Fi\n</think>\nYes<|im_end|>Also")
    output_deltas = output.feed(ids) + output.finish()
    assert joined(output_deltas) == ("Fi", "Yes")
    assert output.stop_id == END
    assert output.completion_tokens == ids.index(END) + 1 == output.tokens_before_stop + 1
    # F, i, the newline, and the token that closes the block.
    assert output.reasoning_tokens == 4


def test_ignored_stop_tokens_are_no_text() -> None:
    output = parser(ignore_eos=True)
    ids = TINY.encode_with_control("a<|im_end|><|endoftext|><|image_pad|>b")
    assert output.feed(ids) + output.finish() == [ContentDelta("ab")]
    assert (output.completion_tokens, output.tokens_before_stop) == (5, 5)
    assert not output.ended


def test_a_stop_string_never_matches_across_reasoning_and_answer() -> None:
    output = parser(opens_think=True, stops=["ab", "\n\n", "think"])
    assert joined(output.feed_bytes(bursts("a\n</think>\n\nb")) + output.finish()) == ("a", "b")
    assert not output.ended


def test_a_stop_string_in_reasoning() -> None:
    output = parser(opens_think=True, stops=["x\ny"])
    assert joined(output.feed_bytes(bursts("one x\n", "y two</think>answer")) + output.finish()) == ("one ", "")
    assert output.in_reasoning
    assert output.stop_string == "x\ny"
    assert (output.completion_tokens, output.reasoning_tokens, output.tokens_before_stop) == (2, 2, 0)


def test_stop_strings_that_count_in_the_answer_alone() -> None:
    output = OutputParser(
        TINY.text_bytes, stop_ids=TINY.stop_ids, opens_think=True, stops=["END"], stops_in_reasoning=False
    )
    assert joined(output.feed_bytes(bursts("not the END", " yet</think>the END of it")) + output.finish()) == (
        "not the END yet",
        "the ",
    )
    assert output.stop_string == "END"


def test_a_stop_string_in_what_only_the_end_releases() -> None:
    for tokens, stop, text in (
        ([b"a", b"\xf0\x9f"], "\ufffd", "a"),
        (bursts("a", "</th"), "</t", "a"),
    ):
        output = parser(opens_think=True, stops=[stop])
        assert joined(output.feed_bytes(tokens) + output.finish()) == (text, "")
        assert output.stop_string == stop
        assert (output.completion_tokens, output.tokens_before_stop) == (2, 1)


def test_text_behind_a_stop_string_in_the_same_piece_is_gone() -> None:
    output = parser(opens_think=True, stops=["S"])
    assert joined(output.feed_bytes(bursts("rSx</think>answer")) + output.finish()) == ("r", "")


def test_a_token_that_begins_a_character_of_the_stop_string_is_not_before_it() -> None:
    euro = "€".encode()
    output = parser(stops=["€"])
    assert output.feed_bytes([b"a", b"b" + euro[:1], euro[1:]]) == [ContentDelta("ab")]
    assert (output.completion_tokens, output.tokens_before_stop) == (3, 1)


def test_held_text_is_released_at_the_end() -> None:
    output = parser(stops=["END"])
    assert output.feed_bytes(bursts("the EN")) == [ContentDelta("the ")]
    assert output.finish() == [ContentDelta("EN")]
    assert output.tokens_before_stop == output.completion_tokens == 1


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        parser(stops=[""])


PIECES = st.sampled_from(["<think>", "</think>", "</thi", "a", "ab", " ", "\n\n", "é", "🎉", "END", "EN", "<|im_end|>"])


@settings(deadline=None)
@given(
    st.lists(PIECES, max_size=14).map("".join),
    st.booleans(),
    st.lists(st.sampled_from(["END", "ab", "a\n", "<"])),
    st.data(),
)
def test_every_grouping_of_the_ids_gives_the_same(
    text: str, opens_think: bool, stops: list[str], draw: st.DataObject
) -> None:
    ids = TINY.encode_with_control(text)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    results = []
    for groups in (
        [ids],
        [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)],
        [[token_id] for token_id in ids],
    ):
        output = parser(opens_think=opens_think, stops=stops)
        deltas = [delta for group in groups for delta in output.feed(group)] + output.finish()
        assert all(delta.text for delta in deltas)
        ended = (output.stop_string, output.stop_id, output.completion_tokens, output.reasoning_tokens)
        results.append((joined(deltas), ended, output.tokens_before_stop))
    assert results[0] == results[1] == results[2]
    (reasoning, content), (stop_string, _, completion, reasoned), before = results[0]
    assert 0 <= reasoned <= completion <= len(ids)
    assert before <= completion
    if stop_string is not None:
        assert not any(stop in reasoning or stop in content for stop in stops)
