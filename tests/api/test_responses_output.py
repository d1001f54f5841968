"""Output items and their events: order, indices, joined deltas, what a history takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ninfer.api.responses_output import OutputItems
from ninfer.api.responses_tools import parse_responses_tools
from ninfer.text.output import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallStarted,
)
from tests.support.system import TOKENIZER

TOOLS = parse_responses_tools(
    {
        "tools": [
            {"type": "function", "name": "f"},
            {"type": "custom", "name": "patch"},
            {"type": "namespace", "name": "crew", "tools": [{"type": "function", "name": "go"}]},
        ]
    }
)
SAID: list[Delta] = [ReasoningDelta("think "), ReasoningDelta("hard"), ContentDelta("Six "), ContentDelta("times")]


def call(index: int, name: str, *arguments: str, ended: bool = True) -> list[Delta]:
    pieces = [ToolCallArguments(index, piece) for piece in arguments]
    end = [ToolCallEnded(index)] if ended else []
    return [ToolCallStarted(index, f"call_{index}", name), *pieces, *end]


def run(deltas: Sequence[Delta], status: str = "completed") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events, and the items at the end."""
    output = OutputItems(TOOLS, TOKENIZER)
    events = [event for delta in deltas for event in output.add(delta)]
    events += output.finish(status)
    check(events, output.closed)
    return events, output.closed


def check(events: Sequence[dict[str, Any]], items: Sequence[dict[str, Any]]) -> None:
    """One item after the other, each begun, told in pieces that join to it, and done."""
    at = -1
    joined = ""
    for event in events:
        if event["type"] == "response.output_item.added":
            at += 1
            joined = ""
            assert event["item"]["status"] == "in_progress"
        assert event["output_index"] == at
        if event["type"].endswith(".delta"):
            joined += event["delta"]
        if event["type"] == "response.output_item.done":
            assert event["item"] == items[at]
        elif "item_id" in event:
            assert event["item_id"] == items[at]["id"]
        for member in ("text", "arguments", "input"):
            if event["type"].endswith(".done") and member in event:
                assert event[member] == joined
    assert at == len(items) - 1


ANSWERS: list[list[Delta]] = [
    [],
    SAID,
    SAID[:2],
    [*SAID, *call(0, "f", "{", '"a": 1', "}"), *call(1, "crew__go", "{}")],
    [*SAID[:2], *call(0, "patch", '{"in', 'put": "a\\n', 'b"}')],
    call(0, "f", '{"a": "b', ended=False),
]


@pytest.mark.parametrize("deltas", ANSWERS)
@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_every_answer_is_told_in_order(deltas: list[Delta], status: str) -> None:
    run(deltas, status)


def test_the_events_of_an_answer() -> None:
    events, items = run([*SAID, *call(0, "f", "{", "}")])
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
    ]
    assert events[1]["part"] == {"type": "reasoning_text", "text": ""}
    assert events[8]["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert events[9]["logprobs"] == []
    assert events[-2]["name"] == "f"
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    assert items[0] | {"id": ""} == {
        "id": "",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "think hard"}],
    }
    assert items[1] | {"id": ""} == {
        "id": "",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Six times", "annotations": [], "logprobs": []}],
    }
    assert items[2] | {"id": ""} == {
        "id": "",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_0",
        "name": "f",
        "arguments": "{}",
    }
    assert [item["id"].partition("_")[0] for item in items] == ["rs", "msg", "fc"]


def test_calls_come_back_as_they_were_declared() -> None:
    _, items = run([*call(0, "patch", '{"input": "a\\nb"}'), *call(1, "crew__go", "{}"), *call(2, "new", "{}")])
    assert (items[0]["type"], items[0]["name"], items[0]["input"]) == ("custom_tool_call", "patch", "a\nb")
    assert items[0]["id"].startswith("ctc_")
    assert (items[1]["namespace"], items[1]["name"]) == ("crew", "go")
    assert ("namespace" in items[2], items[2]["name"]) == (False, "new")
    events, _ = run(call(0, "patch", '{"input": "a"}'))
    assert events[1]["type"] == "response.custom_tool_call_input.delta"
    assert events[2] | {"item_id": ""} == {
        "type": "response.custom_tool_call_input.done",
        "item_id": "",
        "output_index": 0,
        "input": "a",
    }


def test_no_output_is_an_empty_message_and_reasoning_alone_gets_none() -> None:
    _, items = run([], "incomplete")
    assert [(item["type"], item["status"], item["content"][0]["text"]) for item in items] == [
        ("message", "incomplete", "")
    ]
    _, items = run(SAID[:2], "incomplete")
    assert [(item["type"], item["status"]) for item in items] == [("reasoning", "incomplete")]


def test_only_the_last_item_may_be_incomplete() -> None:
    _, items = run([*SAID, *call(0, "f", "{}"), *call(1, "f", "{", ended=False)], "incomplete")
    assert [item["status"] for item in items] == ["completed", "completed", "completed", "incomplete"]
    assert items[-1]["arguments"] == "{"


def test_what_a_history_takes() -> None:
    def taken(deltas: Sequence[Delta], status: str = "completed") -> list[str]:
        output = OutputItems(TOOLS, TOKENIZER)
        for delta in deltas:
            list(output.add(delta))
        output.finish(status)
        history = output.history()
        assert all(item.wire["status"] == "completed" for item in history)
        return [str(item.wire["type"]) for item in history]

    assert taken([]) == []
    assert taken(SAID, "incomplete") == ["reasoning", "message"]
    assert taken([*call(0, "f", "{}"), *call(1, "f", "{", ended=False)], "incomplete") == ["function_call"]
    assert taken([*call(0, "f", "[]"), *call(1, "patch", '{"input": "x"}')]) == ["custom_tool_call"]
