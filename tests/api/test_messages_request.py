"""Fields of the Messages API: what is taken, ignored, refused."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.api.messages_request import MessagesRequest, parse_count, parse_messages
from ninfer.api.messages_tools import parse_messages_tools
from ninfer.api.presets import SamplingRequest
from ninfer.api.thinking import ThinkingRequest
from ninfer.api.tools import Tools
from ninfer.errors import RequestRejected

EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}


def body(**fields: object) -> dict[str, object]:
    return {"model": "any", "max_tokens": 2048, "messages": [{"role": "user", "content": "Hi"}], **fields}


def parsed(**fields: object) -> MessagesRequest:
    return parse_messages(body(**fields))


def refused(**fields: object) -> tuple[str | None, str | None]:
    with pytest.raises(RequestRejected) as caught:
        parsed(**fields)
    return caught.value.code, caught.value.param


def tool(name: object = "look", **members: object) -> dict[str, object]:
    return {"name": name, "input_schema": {"type": "object", "properties": {}}, **members}


def test_silence() -> None:
    request = parsed()
    assert (request.model, request.max_tokens, request.stream, request.stops) == ("any", 2048, False, ())
    assert request.sampling == SamplingRequest()
    assert request.thinking == ThinkingRequest()
    assert not request.stops_in_reasoning
    assert not request.ignore_eos
    assert request.tools == Tools()


def test_everything_said() -> None:
    request = parsed(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stop_sequences=["a", "", "b", "c", "d", "e"],
        stream=True,
        output_config={"effort": "max", "format": None},
        preserve_thinking=True,
    )
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 5)
    assert request.stops == ("a", "b", "c", "d", "e")
    assert (request.thinking.effort, request.thinking.preserve, request.stream) == ("max", True, True)


@pytest.mark.parametrize(
    ("thinking", "enable", "budget"),
    [
        (None, None, None),
        ({"type": "disabled"}, False, None),
        ({"type": "adaptive"}, True, None),
        ({"type": "adaptive", "display": "summarized"}, True, None),
        ({"type": "something new"}, True, None),
        ({"type": "enabled", "budget_tokens": 1024}, True, 1024),
        ({"type": "enabled", "budget_tokens": 2047}, True, 2047),
    ],
)
def test_thinking(thinking: object, enable: bool | None, budget: int | None) -> None:
    request = parsed(thinking=thinking)
    assert (request.thinking.enable, request.thinking_budget) == (enable, budget)


def test_what_agents_send_besides_is_ignored() -> None:
    request = parsed(
        metadata={"user_id": "u", "other": 1},
        service_tier="auto",
        context_management={"edits": []},
        container=None,
        mcp_servers=[],
        cache_control=EPHEMERAL,
        betas=["x"],
        inference_geo="eu",
        seed="no field of this API",
        stop="nor this",
        thinking_budget=17,
    )
    assert request == parsed()


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": ""}, None, "model"),
        ({"model": None}, None, "model"),
        ({"max_tokens": None}, None, "max_tokens"),
        ({"max_tokens": 0}, None, "max_tokens"),
        ({"max_tokens": 1.5}, None, "max_tokens"),
        ({"messages": None}, None, "messages"),
        ({"temperature": 2.1}, None, "temperature"),
        ({"top_p": -1}, None, "top_p"),
        ({"top_k": -2}, None, "top_k"),
        ({"stop_sequences": "x"}, None, "stop_sequences"),
        ({"stop_sequences": [1]}, None, "stop_sequences"),
        ({"stop_sequences": ["x"] * 65}, None, "stop_sequences"),
        ({"stream": "yes"}, None, "stream"),
        ({"thinking": "on"}, None, "thinking"),
        ({"thinking": {}}, None, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "parameter_not_supported", "thinking.display"),
        ({"thinking": {"type": "enabled"}}, None, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, None, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, None, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, None, "thinking.budget_tokens"),
        ({"output_config": {"effort": "minimal"}}, "invalid_value", "output_config.effort"),
        ({"output_config": {"taste": 1}}, "output_config_option_not_supported", "output_config.taste"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "invalid_json_schema", "output_config.format.schema"),
        ({"output_config": {"format": {"type": "text"}}}, "response_format_not_supported", "output_config.format.type"),
        ({"structured_outputs": {"regex": 1}}, None, "structured_outputs.regex"),
        (
            {"structured_outputs": {"regex": "x"}, "stop_sequences": ["a"]},
            "constraint_conflict",
            "stop_sequences",
        ),
        ({"graft": "g"}, "unknown_graft", "graft"),
        ({"container": "c"}, "parameter_not_supported", "container"),
        ({"mcp_servers": [{}]}, "parameter_not_supported", "mcp_servers"),
        ({"mcp_servers": {}}, None, "mcp_servers"),
        ({"container": False}, None, "container"),
        ({"metadata": 1}, None, "metadata"),
        ({"cache_control": "x"}, "parameter_not_supported", "cache_control"),
        ({"cache_control": {"type": "forever"}}, "invalid_value", "cache_control.type"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_option_not_supported", "chat_template_kwargs.x"),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
            "conflicting_template_option",
            "thinking",
        ),
        (
            {"output_config": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"}},
            "conflicting_template_option",
            "output_config.effort",
        ),
    ],
)
def test_refusals(fields: dict[str, Any], code: str | None, param: str) -> None:
    assert refused(**fields) == (code, param)


def test_counting_looks_at_the_prompt_alone() -> None:
    source = body(temperature="hot", stop_sequences=1, stream=1, thinking={"type": "enabled", "budget_tokens": 9999})
    del source["max_tokens"]
    request = parse_count(source)
    assert request.conversation == parsed().conversation
    assert request.thinking.enable is True
    with pytest.raises(RequestRejected):
        parse_count({**source, "thinking": {"type": "enabled", "budget_tokens": 1}})


def test_declarations_take_the_nested_form() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}, "additionalProperties": False}
    tools = parse_messages_tools(
        {
            "tools": [
                {
                    "input_schema": schema,
                    "name": "b",
                    "description": "d",
                    "cache_control": EPHEMERAL,
                    "input_examples": [{}],
                    "strict": False,
                    "type": "custom",
                },
                {"name": "a" * 128},
            ]
        }
    )
    assert tools.declarations == (
        {"type": "function", "function": {"name": "b", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "a" * 128, "parameters": {"type": "object", "properties": {}}}},
    )


def test_tools_of_other_servers_are_dropped() -> None:
    tools = parse_messages_tools(
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}, tool("late", defer_loading=True), tool()]}
    )
    assert [declared["function"]["name"] for declared in tools.declarations] == ["look"]  # type: ignore[index]
    assert tools.dropped == ("web_search_20250305", "deferred")


def test_choices_without_constraints() -> None:
    def chosen(choice: object) -> tuple[str, bool]:
        tools = parse_messages_tools({"tools": [tool()], "tool_choice": choice})
        return tools.choice, tools.one_call

    assert chosen(None) == chosen({"type": "auto"}) == ("auto", False)
    assert chosen({"type": "none"}) == ("none", False)
    assert chosen({"type": "auto", "disable_parallel_tool_use": True}) == ("auto", True)


SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": ["x"]}, None, "tools[0]"),
        ({"tools": [tool(None)]}, None, "tools[0].name"),
        ({"tools": [tool("a b")]}, None, "tools[0].name"),
        ({"tools": [tool("x" * 129)]}, None, "tools[0].name"),
        ({"tools": [tool(input_schema=[])]}, None, "tools[0].input_schema"),
        ({"tools": [tool(description=1)]}, None, "tools[0].description"),
        ({"tools": [tool(), tool()]}, "invalid_value", "tools[1].name"),
        ({"tools": [tool(cache_control={"type": "x"})]}, "invalid_value", "tools[0].cache_control.type"),
        ({"tools": [tool()], "tool_choice": {"type": "tool", "name": "x"}}, "invalid_value", "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "tool"}}, None, "tool_choice.name"),
        ({"tools": [tool()], "tool_choice": {"type": "some"}}, "tool_choice_not_supported", "tool_choice.type"),
        ({"tools": [tool()], "tool_choice": "auto"}, None, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_type_not_supported", "tool_choice"),
        (
            {"tools": [SEARCH, tool()], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tool_type_not_supported",
            "tool_choice",
        ),
    ],
)
def test_refusals_of_tools(fields: dict[str, Any], code: str | None, param: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        parse_messages_tools(fields)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("choice", "allowed", "one_call"),
    [
        ({"type": "any"}, None, False),
        ({"type": "any", "disable_parallel_tool_use": True}, None, True),
        ({"type": "tool", "name": "look"}, {"look"}, False),
    ],
    ids=str,
)
def test_forced_choice(choice: object, allowed: set[str] | None, one_call: bool) -> None:
    tools = parse_messages_tools({"tools": [tool(strict=True), tool("b")], "tool_choice": choice})
    assert (tools.choice, tools.allowed, tools.one_call) == ("required", allowed, one_call)
    assert (set(tools.strict), tools.places["look"]) == ({"look"}, "tools[0].input_schema")
