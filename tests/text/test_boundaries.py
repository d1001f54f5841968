"""Where turns begin, and which of these places are worth a stored state."""

from __future__ import annotations

import pytest

from ninfer.text.boundaries import ROLLING_TOOL, STABLE_TURN, Turn, marks_of, turns_of
from ninfer.text.prompt import IM_END, IM_START, RenderedPrompt, Segment
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer
from ninfer.types import Marks

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
LOOP: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Old."},
    {"role": "assistant", "content": "Old answer."},
    {"role": "user", "content": "Look it up."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "found"},
]


def rendered(template: ChatTemplate, tiny: Tokenizer, messages: list[dict[str, object]]) -> tuple[list[Turn], int]:
    prompt = template.render(messages, tools=None, enable_thinking=False, reasoning_effort=None, preserve_thinking=None)
    ids, starts = tiny.encode_segments(prompt)
    assert ids == tiny.encode_prompt(prompt)
    return turns_of(prompt, starts), len(ids)


def test_turns_of_a_conversation_with_tools(qwen3_8: ChatTemplate, tiny: Tokenizer) -> None:
    turns, _ = rendered(qwen3_8, tiny, LOOP)
    roles = [(turn.role, turn.is_tool_result) for turn in turns]
    assert roles == [
        ("system", False), ("user", False), ("assistant", False), ("user", False), ("assistant", False),
        ("user", True), ("assistant", False),
    ]  # fmt: skip
    assert [turn.begin for turn in turns] == sorted({turn.begin for turn in turns})


@pytest.mark.parametrize("policy", [ROLLING_TOOL, STABLE_TURN])
def test_marks_of_a_tool_loop(qwen3_8: ChatTemplate, tiny: Tokenizer, policy: str) -> None:
    turns, tokens = rendered(qwen3_8, tiny, LOOP)
    first_answer, newest = turns[4].begin, turns[6].begin
    assert marks_of(turns, tokens, policy) == Marks(
        turn=newest if policy == ROLLING_TOOL else first_answer,
        message_begin=turns[3].begin,
        message_end=first_answer,
        preamble=turns[1].begin,
    )


def test_a_prompt_without_turns_has_its_end() -> None:
    assert turns_of(RenderedPrompt((Segment("plain", False),)), (0,)) == []
    assert marks_of([], 77, ROLLING_TOOL) == Marks(turn=77)


def test_turns_that_nobody_answers() -> None:
    only_system = [Turn("system", 0, False)]
    assert marks_of(only_system, 9, STABLE_TURN) == Marks(turn=9, preamble=9)
    unanswered = [Turn("user", 0, False)]
    assert marks_of(unanswered, 9, ROLLING_TOOL) == Marks(turn=9, message_end=9)


def test_an_opener_at_the_very_end_is_no_turn() -> None:
    prompt = RenderedPrompt(
        (Segment(IM_START, True), Segment("user\nHi", False), Segment(IM_END, True), Segment(IM_START, True))
    )
    assert turns_of(prompt, (0, 1, 5, 6)) == [Turn("user", 0, False)]
