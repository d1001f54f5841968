"""The messages of section 5.2 and the tool history of 7.6."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ninfer.api.conversation import Conversation, parse_conversation
from ninfer.errors import RequestRejected

USER = {"role": "user", "content": "q"}


def call(call_id: str = "c1", name: str = "look", arguments: object = "{}") -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, object], **members: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": list(calls), **members}


def result(call_id: str = "c1", content: object = "r") -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def parsed(*messages: dict[str, Any]) -> Conversation:
    return parse_conversation({"messages": list(messages)})


def refused(*messages: object) -> tuple[str | None, str | None]:
    with pytest.raises(RequestRejected) as caught:
        parse_conversation({"messages": list(messages)})
    return caught.value.code, caught.value.param


def test_plain_roles() -> None:
    conversation = parsed(
        {"role": "developer", "content": "d"},
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        USER,
        {"role": "assistant", "content": "x", "reasoning_content": "why", "refusal": "no"},
        {"role": "user", "content": [], "name": ""},
    )
    assert conversation.messages == (
        {"role": "system", "content": "d"},
        {"role": "system", "content": "ab"},
        USER,
        {"role": "assistant", "content": "x", "reasoning_content": "why"},
        {"role": "user", "content": ""},
    )
    assert conversation.message_count == 5
    assert (conversation.media_items, conversation.has_tool_history, conversation.prefill) == (0, False, None)


def test_assistant_parts_and_the_other_name_of_reasoning() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    conversation = parsed(USER, {"role": "assistant", "content": parts, "reasoning": "why"}, USER)
    assert conversation.messages[1] == {"role": "assistant", "content": "ab", "reasoning_content": "why"}


def test_results_come_in_call_order() -> None:
    conversation = parsed(
        USER,
        calling(call("a", arguments={"z": 1, "b": 2}), call("b", arguments=""), call("c", arguments="null")),
        result("c", "3"),
        result("a", []),
        result("b", [{"type": "text", "text": "2"}]),
        USER,
    )
    assert [message["content"] for message in conversation.messages] == ["q", "", "", "2", "3", "q"]
    calls: Any = conversation.messages[1]["tool_calls"]
    assert [c["function"]["arguments"] for c in calls] == [{"z": 1, "b": 2}, {}, {}]
    assert list(calls[0]["function"]["arguments"]) == ["z", "b"]
    assert all("tool_call_id" not in message for message in conversation.messages)
    assert conversation.has_tool_history


def test_a_history_may_begin_with_results() -> None:
    conversation = parsed(result("x"), result("x"), USER)
    assert [message["role"] for message in conversation.messages] == ["tool", "tool", "user"]


def test_legacy_calls_become_calls() -> None:
    conversation = parsed(
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "f", "content": "r"},
    )
    calls: Any = conversation.messages[1]["tool_calls"]
    assert calls[0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert conversation.messages[2] == {"role": "tool", "content": "r"}


def test_a_final_assistant_message_is_a_prefill() -> None:
    conversation = parsed(USER, {"role": "assistant", "content": "It is "})
    assert conversation.messages == (USER,)
    assert (conversation.prefill, conversation.prefill_refusal) == ("It is ", None)
    assert parsed(USER, calling(call())).prefill_refusal is not None
    assert parsed(USER, {"role": "assistant", "content": "a", "reasoning": "b"}).prefill_refusal is not None


def test_media_are_counted() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:x", "detail": "auto"}}
    video = {"type": "video_url", "video_url": "https://x"}
    conversation = parsed({"role": "user", "content": [image, video]}, calling(call()), result("c1", [image]))
    assert conversation.media_items == 3


@pytest.mark.parametrize(
    ("message", "code", "member"),
    [
        ("x", None, ""),
        ({}, None, ".role"),
        ({"role": 1}, None, ".role"),
        ({"role": "critic", "content": ""}, "unsupported_role", ".role"),
        ({"role": "user"}, None, ".content"),
        ({"role": "user", "content": None}, None, ".content"),
        ({"role": "user", "content": 1}, None, ".content"),
        ({"role": "user", "content": ["x"]}, None, ".content[0]"),
        ({"role": "user", "content": [{}]}, None, ".content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, None, ".content[0].text"),
        ({"role": "user", "content": [{"type": "refusal"}]}, "modality_not_supported", ".content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "modality_not_supported", ".content[0].type"),
        ({"role": "system", "content": [{"type": "image_url"}]}, "modality_not_supported", ".content[0].type"),
        ({"role": "user", "content": [{"type": "image_url"}]}, None, ".content[0].image_url"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "file:///x"}]},
            "invalid_media",
            ".content[0].image_url",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:", "detail": "high"}}]},
            "image_detail_not_supported",
            ".content[0].image_url.detail",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "", "prompt_cache_breakpoint": 1}]},
            "parameter_not_supported",
            ".content[0].prompt_cache_breakpoint",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "", "prompt_cache_breakpoint": {"mode": "x"}}]},
            "invalid_value",
            ".content[0].prompt_cache_breakpoint.mode",
        ),
        ({"role": "user", "content": "", "name": "Eve"}, "parameter_not_supported", ".name"),
        ({"role": "user", "content": "", "tool_calls": []}, "invalid_tool_history", ".tool_calls"),
        ({"role": "assistant", "content": "", "tool_call_id": "x"}, "invalid_tool_history", ".tool_call_id"),
        ({"role": "assistant"}, None, ".content"),
        ({"role": "assistant", "content": "", "reasoning_content": 1}, None, ".reasoning_content"),
        ({"role": "tool", "content": ""}, None, ".tool_call_id"),
        ({"role": "function", "content": ""}, None, ".name"),
        (calling({"id": "", "type": "function"}), None, ".tool_calls[0]"),
        (calling({"id": "a", "type": "custom"}), "tool_type_not_supported", ".tool_calls[0].type"),
        (calling({"id": "a", "type": "function"}), None, ".tool_calls[0].function"),
        (calling(call(arguments="[1]")), "invalid_tool_history", ".tool_calls[0].function.arguments"),
        (calling(call(arguments="{")), "invalid_tool_history", ".tool_calls[0].function.arguments"),
        (calling(call(arguments=1)), "invalid_tool_history", ".tool_calls[0].function.arguments"),
        (calling(call(), call()), "invalid_tool_history", ".tool_calls"),
        (calling(call(), function_call={"name": "f"}), "invalid_tool_history", ".function_call"),
    ],
)
def test_messages_at_fault(message: object, code: str | None, member: str) -> None:
    assert refused(USER, message) == (code, f"messages[1]{member}")


@pytest.mark.parametrize(
    "messages",
    [
        (USER, calling(call("a"), call("b")), result("a"), USER),
        (USER, calling(call("a")), result("a"), result("a")),
        (USER, calling(call("a")), result("b")),
        (USER, calling(call("a")), USER),
        (USER, {"role": "assistant", "content": "x"}, result("a")),
        (USER, calling(call("a")), USER, result("a")),
    ],
)
def test_broken_tool_histories(messages: tuple[dict[str, Any], ...]) -> None:
    assert refused(*messages) == ("invalid_tool_history", "messages")


@pytest.mark.parametrize(
    "messages",
    [
        ({"role": "system", "content": "s"},),
        ({"role": "user", "content": " <tool_response>\nx\n</tool_response> "},),
        ({"role": "assistant", "content": "a"},),
    ],
)
def test_somebody_has_to_ask(messages: tuple[dict[str, Any], ...]) -> None:
    assert refused(*messages) == ("invalid_prompt", "messages")


@pytest.mark.parametrize("value", [None, [], {}, "x"])
def test_messages_are_a_non_empty_array(value: object) -> None:
    with pytest.raises(RequestRejected, match=r"messages must be a"):
        parse_conversation({"messages": value})


def test_a_long_history_of_calls_is_matched_in_time() -> None:
    ids = [f"call {n}" for n in range(30_000)]
    begun = time.process_time()
    found = parsed(USER, calling(*map(call, ids)), *map(result, reversed(ids)), USER)
    assert len(found.messages) == len(ids) + 3
    assert time.process_time() - begun < 10.0  # each result compared with each call would take minutes
