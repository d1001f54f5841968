"""Items of the Responses API: their normal form, the turns that they become, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.api.conversation import Conversation
from ninfer.api.responses_conversation import conversation_of
from ninfer.api.responses_items import Item, item_of, parse_items, redacted
from ninfer.errors import RequestRejected

STORED = item_of({"id": "msg_9", "type": "message", "role": "user", "status": "completed", "content": []})


def find(item_id: str) -> Item | None:
    return STORED if item_id == STORED.id else None


def wires(*items: object) -> list[dict[str, Any]]:
    return [dict(item.wire) for item in parse_items(items, find)]


def said(*items: object, instructions: str | None = None) -> Conversation:
    return conversation_of(instructions, parse_items(items, find), len(items))


def turns(*items: object, instructions: str | None = None) -> list[tuple[object, object]]:
    return [(turn["role"], turn["content"]) for turn in said(*items, instructions=instructions).messages]


def refused(*items: object) -> tuple[str | None, str | None]:
    with pytest.raises(RequestRejected) as caught:
        said(*items)
    return caught.value.code, caught.value.param


def user(content: object = "q", **members: object) -> dict[str, object]:
    return {"role": "user", "content": content, **members}


def assistant(content: object, **members: object) -> dict[str, object]:
    return {"type": "message", "role": "assistant", "content": content, **members}


def call(call_id: str, **members: object) -> dict[str, object]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": '{"a": 1}', **members}


def output(call_id: str, said: object = "r", **members: object) -> dict[str, object]:
    return {"type": "function_call_output", "call_id": call_id, "output": said, **members}


def thought(text: str, **members: object) -> dict[str, object]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}], **members}


def test_the_normal_form() -> None:
    (message, reasoning, function, result) = wires(
        user("Hi", id="msg_1", status="completed", phase=None, unknown=None),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "x",
        },
        call("c", id="fc_1", namespace="crew", status="completed"),
        output("c", [{"type": "input_text", "text": "r"}], id="fco_1"),
    )
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}],
        "status": "completed",
    }
    assert reasoning == {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "s"}],
        "content": [],
        "status": "completed",
    }
    assert function == {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "namespace": "crew",
        "arguments": '{"a": 1}',
        "status": "completed",
    }
    assert result["output"] == [{"type": "input_text", "text": "r"}]


def test_what_was_normal_stays_as_it_is() -> None:
    sent = [
        user([{"type": "input_text", "text": "a"}]),
        thought("t"),
        assistant(
            [
                {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "no"},
            ]
        ),
        call("c"),
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "raw"},
        output("c"),
        {"type": "custom_tool_call_output", "call_id": "d", "output": "done"},
    ]
    once = wires(*sent)
    assert wires(*once) == once


def test_ids_are_kept_or_made() -> None:
    made = [wire["id"] for wire in wires(user(), thought("t"), call("c"), output("c"))]
    assert [name.partition("_")[0] for name in made] == ["msg", "rs", "fc", "fco"]
    assert {len(name.partition("_")[2]) for name in made} == {32}
    assert refused(user(id="x"), user(id="x")) == ("invalid_value", "input")


def test_references_are_replaced_in_place() -> None:
    assert wires(user(id="a"), {"type": "item_reference", "id": "msg_9"}, user(id="b"))[1] == STORED.wire
    with pytest.raises(RequestRejected) as caught:
        wires({"type": "item_reference", "id": "gone"})
    assert (caught.value.http_status, caught.value.code, caught.value.param) == (404, "item_not_found", "input")


def test_roles_and_instructions() -> None:
    items = [user("a"), {"role": "developer", "content": "d"}, {"role": "system", "content": "s"}, user("b")]
    expected = [("user", "a"), ("system", "d"), ("system", "s"), ("user", "b")]
    assert turns(*items) == expected
    assert turns(*items, instructions="I") == [("system", "I"), *expected]


def test_items_of_the_assistant_are_one_turn() -> None:
    conversation = said(
        user(),
        thought("a", summary=[{"type": "summary_text", "text": "told"}]),
        {"type": "reasoning", "content": [], "summary": [{"type": "summary_text", "text": "b"}]},
        {"type": "reasoning", "encrypted_content": "x"},
        assistant("c"),
        assistant([{"type": "output_text", "text": "d"}, {"type": "refusal", "refusal": "e"}]),
        call("1"),
        {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "raw"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "two"},
        output("1", [{"type": "input_text", "text": "o"}, {"type": "input_text", "text": "ne"}]),
        user("next"),
    )
    assert conversation.messages[1] == {
        "role": "assistant",
        "content": "cde",
        "reasoning_content": "a\n\nb",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": "2", "type": "function", "function": {"name": "patch", "arguments": {"input": "raw"}}},
        ],
    }
    assert [turn["content"] for turn in conversation.messages[2:]] == ["one", "two", "next"]
    assert conversation.has_tool_history


def test_reasoning_alone_is_a_turn() -> None:
    assert turns(user(), thought("t"), user("n")) == [("user", "q"), ("assistant", ""), ("user", "n")]


def test_calls_of_a_namespace_get_the_name_that_the_model_knows() -> None:
    conversation = said(user(), call("1", namespace="crew", arguments=""), output("1"))
    calls: Any = conversation.messages[1]["tool_calls"]
    assert calls[0]["function"] == {"name": "crew__f", "arguments": {}}


def test_pictures_are_counted_and_hidden() -> None:
    picture = {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"}
    (item, result) = parse_items(
        [user([picture, {"type": "input_video", "video_url": "data:,"}]), output("c", [picture])], find
    )
    assert conversation_of(None, [item], 1).media_items == 2
    for hidden in (redacted(item.wire), redacted(result.wire)):
        assert "https" not in str(hidden)
    assert redacted(parse_items([user("x")], find)[0].wire)["content"] == [{"type": "input_text", "text": "x"}]
    assert redacted(parse_items([output("c", "x")], find)[0].wire)["output"] == "x"


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ("x", None, "input[0]"),
        ({}, None, "input[0].type"),
        ({"type": "web_search_call"}, "item_type_not_supported", "input[0].type"),
        ({"type": "input_file"}, "file_inputs_not_supported", "input[0].type"),
        ({"type": "input_audio"}, "audio_inputs_not_supported", "input[0].type"),
        ({"type": "item_reference"}, None, "input[0].id"),
        (user(taste=1), "unknown_parameter", "input[0].taste"),
        (user(id=""), None, "input[0].id"),
        (user(id=1), None, "input[0].id"),
        (user(status=1), None, "input[0].status"),
        (user(None), None, "input[0].content"),
        (user(["x"]), None, "input[0].content[0]"),
        ({"role": "tool", "content": "x"}, "unsupported_role", "input[0].role"),
        ({"type": "message", "content": "x"}, None, "input[0].role"),
        (user([{"text": "x"}]), None, "input[0].content[0].type"),
        (user([{"type": "input_text"}]), None, "input[0].content[0].text"),
        (user([{"type": "input_text", "text": "x", "taste": 1}]), "unknown_parameter", "input[0].content[0].taste"),
        (
            user([{"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "no"}}]),
            "invalid_value",
            "input[0].content[0].prompt_cache_breakpoint.mode",
        ),
        (user([{"type": "output_text", "text": "x"}]), "modality_not_supported", "input[0].content[0].type"),
        (user([{"type": "input_file"}]), "file_inputs_not_supported", "input[0].content[0].type"),
        (user([{"type": "input_audio"}]), "audio_inputs_not_supported", "input[0].content[0].type"),
        (user([{"type": "input_image"}]), None, "input[0].content[0].image_url"),
        (
            user([{"type": "input_image", "file_id": "f"}]),
            "file_inputs_not_supported",
            "input[0].content[0].file_id",
        ),
        (user([{"type": "input_image", "image_url": "file:x"}]), "invalid_media", "input[0].content[0].image_url"),
        (
            user([{"type": "input_image", "image_url": "data:,", "detail": "high"}]),
            "image_detail_not_supported",
            "input[0].content[0].detail",
        ),
        (
            assistant([{"type": "output_text", "text": "x", "annotations": [{}]}]),
            "parameter_not_supported",
            "input[0].content[0].annotations",
        ),
        (thought("t", content=[{"type": "summary_text", "text": "x"}]), None, "input[0].content[0]"),
        (call("c", arguments="[]"), "invalid_tool_history", "input[0].arguments"),
        (call("c", arguments="{"), "invalid_tool_history", "input[0].arguments"),
        (call("c", arguments={}), None, "input[0].arguments"),
        (call("c", status="incomplete"), "invalid_tool_history", "input[0].status"),
        (call(""), None, "input[0].call_id"),
        (call("c", name=None), None, "input[0].name"),
        (output("c", []), None, "input[0].output"),
        (output("c", None), None, "input[0].output"),
        (output("c", [{"type": "output_text", "text": "x"}]), "modality_not_supported", "input[0].output[0].type"),
    ],
)
def test_refusals_of_an_item(item: object, code: str | None, param: str) -> None:
    assert refused(item) == (code, param)


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([assistant("a"), thought("late")], "invalid_assistant_history"),
        ([call("c"), assistant("late"), output("c")], "invalid_assistant_history"),
        ([call("c"), thought("late"), call("d")], "invalid_assistant_history"),
        ([call("c"), call("c"), output("c")], "invalid_tool_history"),
        ([call("c"), user("no result")], "invalid_tool_history"),
        ([call("c"), output("d")], "invalid_tool_history"),
        ([assistant("a"), output("d")], "invalid_tool_history"),
    ],
)
def test_refusals_of_a_history(items: list[object], code: str) -> None:
    assert refused(user(), *items) == (code, "input")


def test_a_history_without_a_user_is_refused() -> None:
    assert refused({"role": "developer", "content": "x"}) == ("invalid_prompt", "input")
