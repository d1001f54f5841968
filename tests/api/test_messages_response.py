"""Messages built from pieces, whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from ninfer.actors.messages import Admitted, Finished, TextDelta, Usage
from ninfer.api.envelopes import fault_of
from ninfer.api.messages_response import MessageStream, signature_of, whole_message
from ninfer.errors import QueueTimeout
from ninfer.text.output import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallStarted,
)
from ninfer.types import FinishReason
from tests.support.http import events

CALL: list[Delta] = [
    ToolCallStarted(0, "call_a", "f"),
    ToolCallArguments(0, "{"),
    ToolCallArguments(0, '"n": 12345678901234567890123'),
    ToolCallArguments(0, "}"),
    ToolCallEnded(0),
]
EMPTY_CALL: list[Delta] = [ToolCallStarted(1, "call_b", "g"), ToolCallArguments(1, "{}"), ToolCallEnded(1)]
CUT_CALL: list[Delta] = [ToolCallStarted(1, "call_c", "h"), ToolCallArguments(1, '{"a": "b')]
SAID: list[Delta] = [ReasoningDelta("think "), ReasoningDelta("hard"), ContentDelta("Six "), ContentDelta("times")]

ANSWERS: list[list[Delta]] = [
    [],
    SAID,
    SAID[:2],
    SAID[2:],
    [*SAID, *CALL],
    [*SAID[:2], *CALL, *EMPTY_CALL],
    [*CALL, *CUT_CALL],
]


def finished(reason: FinishReason = FinishReason.STOP_TOKEN, stop: str | None = None) -> Finished:
    return Finished(reason, Usage(10, 4, 6, 2), 0, 1.0, 2.0, 3.0, stop_string=stop)


def streamed(deltas: Sequence[Delta], end: Finished, *, admitted: bool = True) -> list[dict[str, Any]]:
    stream = MessageStream("label", 10, "req_1")
    frames = stream.opening()
    if admitted:
        frames += stream.frames_of(Admitted(0, 4, 1.0))
    for delta in deltas:
        frames += stream.frames_of(TextDelta((delta,), 1, None, None))
    return events(frames + stream.frames_of(end))


def rebuilt(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream."""
    message = dict(parts[0]["message"])
    blocks: list[dict[str, Any]] = []
    for part in parts[1:]:
        if part["type"] == "content_block_start":
            assert part["index"] == len(blocks)
            blocks.append({**part["content_block"], "_json": ""})
        elif part["type"] == "content_block_delta":
            assert part["index"] == len(blocks) - 1
            delta = part["delta"]
            member = {"thinking_delta": "thinking", "text_delta": "text", "signature_delta": "signature"}
            name = member.get(delta["type"], "_json")
            blocks[-1][name] += delta[name if name != "_json" else "partial_json"]
        elif part["type"] == "message_delta":
            message |= part["delta"]
            message["usage"] = part["usage"]
    for block in blocks:
        text = block.pop("_json")
        if block["type"] == "tool_use":
            try:
                block["input"] = orjson.loads(text)
            except orjson.JSONDecodeError:
                block["input"] = {}
    message["content"] = blocks
    return message


def without_id(message: dict[str, Any]) -> dict[str, Any]:
    assert message["id"].startswith("msg_")
    assert len(message["id"]) == 20
    return {name: value for name, value in message.items() if name != "id"}


@pytest.mark.parametrize("deltas", ANSWERS)
def test_streamed_and_whole_messages_are_equal(deltas: list[Delta]) -> None:
    whole = orjson.loads(orjson.dumps(whole_message("label", deltas, finished())))
    assert without_id(rebuilt(streamed(deltas, finished()))) == without_id(whole)


def test_a_request_that_ends_before_it_is_admitted_has_its_message_too() -> None:
    parts = streamed([], finished(), admitted=False)
    assert parts[0]["type"] == "message_start"
    assert rebuilt(parts)["content"] == [{"type": "text", "text": ""}]


def test_a_whole_message() -> None:
    message = without_id(orjson.loads(orjson.dumps(whole_message("label", [*SAID, *EMPTY_CALL], finished()))))
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "label",
        "content": [
            {"type": "thinking", "thinking": "think hard", "signature": signature_of("think hard")},
            {"type": "text", "text": "Six times"},
            {"type": "tool_use", "id": "call_b", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 6,
        },
    }
    assert signature_of("think hard").startswith("nf1:")
    assert int(signature_of("think hard").removeprefix("nf1:"), 16)


def test_arguments_keep_numbers_that_no_float_holds() -> None:
    assert b'"n": 12345678901234567890123' in orjson.dumps(whole_message("label", CALL, finished()))


def test_an_empty_answer_is_one_empty_text_block() -> None:
    assert whole_message("label", [], finished())["content"] == [{"type": "text", "text": ""}]


def test_the_order_of_events() -> None:
    parts = streamed([*SAID, *CALL, *EMPTY_CALL], finished())
    kinds = [part.get("delta", part).get("type", part["type"]) for part in parts]
    assert kinds == [
        *("message_start", "content_block_start", "thinking_delta", "thinking_delta", "signature_delta"),
        *("content_block_stop", "content_block_start", "text_delta", "text_delta", "content_block_stop"),
        *("content_block_start", *["input_json_delta"] * 3, "content_block_stop"),
        *("content_block_start", "input_json_delta", "content_block_stop", "message_delta", "message_stop"),
    ]
    start = parts[0]["message"]
    assert (start["content"], start["stop_reason"], start["stop_sequence"]) == ([], None, None)
    assert start["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 0,
    }
    assert parts[1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert parts[-1] == {"type": "message_stop"}


@pytest.mark.parametrize(
    ("deltas", "reason", "stop", "expected"),
    [
        (SAID, FinishReason.STOP_TOKEN, None, ("end_turn", None)),
        (SAID, FinishReason.STOP_STRING, "xy", ("stop_sequence", "xy")),
        (SAID, FinishReason.OUTPUT_LIMIT, None, ("max_tokens", None)),
        (SAID, FinishReason.CONTEXT_CAPACITY, None, ("model_context_window_exceeded", None)),
        (CALL, FinishReason.STOP_TOKEN, None, ("tool_use", None)),
        (CALL, FinishReason.STOP_STRING, "xy", ("tool_use", None)),
        ([*CALL, *CUT_CALL], FinishReason.STOP_TOKEN, None, ("max_tokens", None)),
    ],
)
def test_why_a_message_ends(
    deltas: list[Delta], reason: FinishReason, stop: str | None, expected: tuple[str, str | None]
) -> None:
    whole = whole_message("label", deltas, finished(reason, stop))
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected
    change = streamed(deltas, finished(reason, stop))[-2]["delta"]
    assert (change["stop_reason"], change["stop_sequence"]) == expected


def test_a_stream_that_breaks_off() -> None:
    stream = MessageStream("label", 10, "req_1")
    (error,) = events(stream.failure(fault_of(QueueTimeout())))
    assert error["type"] == "error"
    assert error["error"]["type"] == "timeout_error"
    assert error["request_id"] == "req_1"
