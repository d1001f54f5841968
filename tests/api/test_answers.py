"""What the pieces of an answer add up to."""

from __future__ import annotations

import pytest

from ninfer.api.answers import Answer, Call, answer_of, first_call_only
from ninfer.text.output import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallStarted,
)

DELTAS: list[Delta] = [
    ReasoningDelta("a"),
    ReasoningDelta("b"),
    ContentDelta("c"),
    ToolCallStarted(0, "call_0", "f"),
    ToolCallArguments(0, "{"),
    ToolCallArguments(0, "}"),
    ToolCallEnded(0),
    ToolCallStarted(1, "call_1", "g"),
    ToolCallArguments(1, "{"),
]


def test_pieces_join() -> None:
    answer = answer_of(DELTAS)
    assert answer == Answer("ab", "c", (Call("call_0", "f", "{}", True), Call("call_1", "g", "{", False)))
    assert answer.is_cut
    assert answer_of([]) == Answer("", "", ())
    assert not answer_of([]).is_cut


@pytest.mark.parametrize(
    ("arguments", "is_complete", "has_object"),
    [('{"a": 1}', True, True), ('{"a": 1}', False, False), ("[]", True, False), ("{", True, False)],
)
def test_only_a_whole_object_counts_as_arguments(arguments: str, is_complete: bool, has_object: bool) -> None:
    assert Call("i", "f", arguments, is_complete).has_object is has_object


def test_later_calls_can_be_left_out() -> None:
    assert first_call_only(DELTAS) == tuple(DELTAS[:7])
