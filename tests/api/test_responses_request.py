"""Fields and tools of the Responses API: what is taken, ignored, refused."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.api.responses_items import item_of
from ninfer.api.responses_request import ResponsesRequest, parse_input_tokens, parse_responses
from ninfer.api.responses_store import Record, ResponseStore
from ninfer.api.responses_tools import Target, parse_responses_tools
from ninfer.errors import RequestRejected


def message(item_id: str, role: str, text: str) -> Any:
    kind = "output_text" if role == "assistant" else "input_text"
    part = {"type": kind, "text": text}
    return item_of({"id": item_id, "type": "message", "role": role, "status": "completed", "content": [part]})


ASKED, SAID = message("msg_q", "user", "first"), message("msg_a", "assistant", "answer")


def store(preserve: bool | None = None) -> ResponseStore:
    found = ResponseStore(10, 1 << 20)
    found.put(Record("resp_1", b"{}", (ASKED,), (ASKED,), (SAID,), preserve))
    return found


def body(**fields: Any) -> dict[str, object]:
    return {"model": "m", "input": "Hi", **fields}


def parsed(preserve: bool | None = None, **fields: Any) -> ResponsesRequest:
    return parse_responses(body(**fields), store(preserve))


def refused(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(RequestRejected) as caught:
        parsed(**fields)
    return caught.value.code, caught.value.param


def test_silence() -> None:
    request = parsed()
    assert (request.model, request.max_tokens, request.stream, request.store) == ("m", None, False, True)
    assert (request.instructions, request.previous_response_id, request.metadata) == (None, None, {})
    assert request.stops_in_reasoning
    assert request.conversation.messages == ({"role": "user", "content": "Hi"},)
    assert not request.preserve_is_changed


def test_everything_said() -> None:
    request = parsed(
        instructions="I",
        max_output_tokens=0,
        temperature=0.5,
        top_p=0.9,
        stream=True,
        store=False,
        return_progress=True,
        reasoning={"effort": "max", "summary": "auto", "generate_summary": "auto"},
        text={"format": {"type": "text"}, "verbosity": "low"},
        preserve_thinking=False,
        metadata={"a": "b"},
        prompt_cache_key="k",
        chat_template_kwargs={"enable_thinking": True},
    )
    assert (request.instructions, request.max_tokens, request.stream, request.store) == ("I", 0, True, False)
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)
    thinking = request.thinking
    assert (thinking.enable, thinking.effort, thinking.preserve) == (True, "max", False)
    assert (request.metadata, request.cache_key, request.return_progress) == ({"a": "b"}, "k", True)
    assert request.conversation.messages[0] == {"role": "system", "content": "I"}


def test_what_agents_send_besides_is_ignored() -> None:
    request = parsed(
        client_metadata={"x": {}},
        include=["reasoning.encrypted_content"],
        service_tier="auto",
        stream_options={"include_obfuscation": False, "other": None},
        truncation="disabled",
        background=False,
        top_logprobs=0,
        max_tool_calls=3,
        safety_identifier="s",
        user="u",
        prompt_cache_retention="24h",
        prompt_cache_options={"mode": "implicit"},
        conversation=None,
        something_new=None,
    )
    assert request.conversation == parsed().conversation


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": None}, None, "model"),
        ({"input": None}, None, "input"),
        ({"input": ""}, None, "input"),
        ({"input": []}, None, "input"),
        ({"input": {}}, None, "input"),
        ({"stop": ["x"]}, "unknown_parameter", "stop"),
        ({"enable_thinking": False}, "unknown_parameter", "enable_thinking"),
        ({"ignore_eos": True}, "unknown_parameter", "ignore_eos"),
        ({"instructions": ["x"]}, None, "instructions"),
        ({"max_output_tokens": -1}, None, "max_output_tokens"),
        ({"temperature": 3}, None, "temperature"),
        ({"reasoning": {"taste": 1}}, "reasoning_option_not_supported", "reasoning.taste"),
        ({"reasoning": {"effort": "some"}}, "invalid_value", "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "invalid_value", "reasoning.summary"),
        (
            {"reasoning": {"summary": "auto", "generate_summary": "concise"}},
            "invalid_value",
            "reasoning.generate_summary",
        ),
        ({"text": {"taste": 1}}, "text_option_not_supported", "text.taste"),
        ({"text": {"verbosity": "none"}}, "invalid_value", "text.verbosity"),
        ({"text": {"format": {"type": "json_schema"}}}, "invalid_json_schema", "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, None, "text.format.name"),
        ({"text": {"format": {"type": "xml"}}}, "response_format_not_supported", "text.format.type"),
        ({"structured_outputs": {}}, None, "structured_outputs"),
        ({"thinking_budget": 0}, None, "thinking_budget"),
        ({"graft": "g"}, "unknown_graft", "graft"),
        ({"service_tier": "flex"}, "service_tier_not_supported", "service_tier"),
        ({"background": True}, "background_not_supported", "background"),
        ({"truncation": "auto"}, "truncation_not_supported", "truncation"),
        ({"top_logprobs": 21}, None, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include_not_supported", "include"),
        ({"stream_options": {"taste": 1}}, "stream_option_not_supported", "stream_options.taste"),
        ({"conversation": "c"}, "parameter_not_supported", "conversation"),
        ({"prompt": {"id": "p"}}, "parameter_not_supported", "prompt"),
        ({"context_management": []}, "parameter_not_supported", "context_management"),
        ({"moderation": {}}, "parameter_not_supported", "moderation"),
        ({"metadata": {"a": 1}}, None, "metadata"),
        ({"client_metadata": 1}, None, "client_metadata"),
        ({"max_tool_calls": -1}, None, "max_tool_calls"),
        ({"prompt_cache_options": {"mode": "x"}}, "invalid_value", "prompt_cache_options.mode"),
        ({"previous_response_id": "resp_x"}, "previous_response_not_found", "previous_response_id"),
        (
            {"reasoning": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"}},
            "conflicting_template_option",
            "reasoning.effort",
        ),
    ],
)
def test_refusals(fields: dict[str, Any], code: str | None, param: str) -> None:
    assert refused(**fields) == (code, param)


def test_a_continuation_has_the_parents_turns_and_its_own_instructions() -> None:
    request = parsed(previous_response_id="resp_1", instructions="new")
    assert [turn["content"] for turn in request.conversation.messages] == ["new", "first", "answer", "Hi"]
    assert [item.wire["role"] for item in request.input_items] == ["user"]
    assert request.items[:2] == (ASKED, SAID)


def test_a_continuation_may_say_nothing_new() -> None:
    request = parsed(previous_response_id="resp_1", input=None)
    assert request.conversation.prefill == "answer"
    found = ResponseStore(10, 1 << 20)
    found.put(Record("resp_1", b"{}", (), (SAID,), (), None))
    with pytest.raises(RequestRejected):
        parse_responses(body(previous_response_id="resp_1", input=[]), found)


def test_the_treatment_of_old_reasoning_is_inherited() -> None:
    def treated(parent: bool | None, **fields: Any) -> tuple[bool | None, bool]:
        request = parsed(parent, previous_response_id="resp_1", **fields)
        return request.thinking.preserve, request.preserve_is_changed

    assert treated(None) == (None, False)
    assert treated(True) == (True, False)
    assert treated(True, preserve_thinking=True) == (True, False)
    assert treated(True, preserve_thinking=False) == (False, True)
    assert treated(None, chat_template_kwargs={"preserve_thinking": False}) == (False, True)


def test_counting_has_fewer_fields() -> None:
    fields = body(instructions="I", reasoning={"effort": "low"}, previous_response_id="resp_1", truncation="disabled")
    assert parse_input_tokens(fields, store()).conversation == parse_responses(fields, store()).conversation
    for name, value in (("stream", False), ("thinking_budget", 1), ("max_output_tokens", 1), ("store", True)):
        with pytest.raises(RequestRejected) as caught:
            parse_input_tokens({**fields, name: value}, store())
        assert (caught.value.code, caught.value.param) == ("unknown_parameter", name)


SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}


def function(name: object = "look", **members: object) -> dict[str, object]:
    return {"type": "function", "name": name, **members}


def test_declarations_and_what_they_stand_for() -> None:
    tools = parse_responses_tools(
        {
            "tools": [
                function("b", description="d", parameters=SCHEMA, strict=False),
                {"type": "custom", "name": "patch", "description": "raw", "format": {"type": "text"}},
                {
                    "type": "namespace",
                    "name": "crew",
                    "description": "mates",
                    "tools": [function("b"), {"type": "mcp"}],
                },
                {"type": "namespace", "name": "mcp__x__", "tools": [function("b", parameters=None, other=None)]},
                {"type": "web_search", "anything": 1},
                function("late", defer_loading=True),
            ],
        }
    )
    empty = {"type": "object", "properties": {}}
    raw = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert tools.tools.declarations == (
        {"type": "function", "function": {"name": "b", "description": "d", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "patch", "description": "raw", "parameters": raw}},
        {"type": "function", "function": {"name": "crew__b", "parameters": empty}},
        {"type": "function", "function": {"name": "mcp__x__b", "parameters": empty}},
    )
    assert tools.tools.dropped == ("mcp", "web_search", "function")
    assert tools.target("crew__b") == Target("b", "crew")
    assert tools.target("mcp__x__b") == Target("b", "mcp__x__")
    assert tools.target("patch") == Target("patch", None, is_custom=True)
    assert tools.target("unknown") == Target("unknown")
    assert tools.wire == (
        {"type": "function", "name": "b", "description": "d", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "patch", "description": "raw", "format": {"type": "text"}},
        {
            "type": "namespace",
            "name": "crew",
            "description": "mates",
            "tools": [{"type": "function", "name": "b", "parameters": empty, "strict": False}],
        },
        {
            "type": "namespace",
            "name": "mcp__x__",
            "tools": [{"type": "function", "name": "b", "parameters": empty, "strict": False}],
        },
    )


def allowed(mode: str, *tools: object) -> dict[str, object]:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


def test_some_tools_may_be_allowed_alone() -> None:
    crew = {"type": "namespace", "name": "crew", "tools": [function("go")]}
    patch = {"type": "custom", "name": "patch"}
    choice = allowed("auto", patch, function("go", namespace="crew"), {"type": "web_search"})
    tools = parse_responses_tools(
        {"tools": [function(), patch, crew, {"type": "web_search"}], "tool_choice": choice},
    )
    assert tools.tools.allowed == frozenset({"patch", "crew__go"})
    assert len(tools.tools.declarations) == 3
    assert tools.choice == choice


def test_choices_without_constraints() -> None:
    def chosen(**fields: object) -> tuple[object, bool]:
        tools = parse_responses_tools({"tools": [function()], **fields})
        assert tools.choice == tools.tools.choice
        return tools.choice, tools.tools.one_call

    assert chosen() == chosen(tool_choice="auto") == chosen(tool_choice={"type": "auto"}) == ("auto", False)
    assert chosen(tool_choice="none", parallel_tool_calls=True) == ("none", False)
    assert chosen(parallel_tool_calls=False) == ("auto", True)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": {}}, None, "tools"),
        ({"tools": ["x"]}, None, "tools[0]"),
        ({"tools": [{"name": "x"}]}, None, "tools[0].type"),
        ({"tools": [function(None)]}, None, "tools[0].name"),
        ({"tools": [function("x" * 65)]}, None, "tools[0].name"),
        ({"tools": [function(taste=1)]}, "unknown_parameter", "tools[0].taste"),
        ({"tools": [function(parameters=[])]}, None, "tools[0].parameters"),
        ({"tools": [function(description=1)]}, None, "tools[0].description"),
        ({"tools": [function(), function()]}, "invalid_value", "tools[1].name"),
        ({"tools": [function(), {"type": "custom", "name": "look"}]}, "invalid_value", "tools[1].name"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [function(1)]}]}, None, "tools[0].tools[0].name"),
        (
            {"tools": [{"type": "namespace", "name": "n" * 64, "tools": [function("f" * 64)]}]},
            None,
            "tools[0].tools[0].name",
        ),
        ({"tools": [function()], "tool_choice": {"type": "allowed_tools"}}, None, "tool_choice.tools"),
        ({"tools": [function()], "tool_choice": allowed("auto", 1)}, None, "tool_choice.tools[0]"),
        ({"tools": [function()], "tool_choice": allowed("auto", function(""))}, None, "tool_choice.tools[0].name"),
        ({"tools": [function()], "tool_choice": allowed("auto", function("x"))}, "invalid_value", "tool_choice"),
        ({"tools": [function()], "tool_choice": allowed("some", function())}, "invalid_value", "tool_choice"),
        ({"tools": [function()], "tool_choice": function("x")}, "invalid_value", "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "function"}}, None, "tool_choice.name"),
        ({"tools": [function()], "tool_choice": "some"}, "tool_choice_not_supported", "tool_choice"),
        ({"tools": [function()], "tool_choice": 1}, "tool_choice_not_supported", "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "web_search"}}, "tool_choice_not_supported", "tool_choice"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_type_not_supported", "tool_choice"),
        (
            {"tools": [function(), {"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_type_not_supported",
            "tool_choice",
        ),
    ],
)
def test_refusals_of_tools(fields: dict[str, Any], code: str | None, param: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        parse_responses_tools(fields)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_forced_choice() -> None:
    fields = {"tools": [function("a", strict=True), function("b")]}
    required = parse_responses_tools(fields | {"tool_choice": "required"})
    assert (required.tools.choice, required.tools.allowed, required.choice) == ("required", None, "required")
    assert (set(required.tools.strict), required.tools.places["b"]) == ({"a"}, "tools[1].parameters")
    assert [entry["strict"] for entry in required.wire] == [True, False]
    named = parse_responses_tools(fields | {"tool_choice": function("b")})
    assert (named.tools.allowed, named.tools.one_call, named.choice) == (frozenset("b"), True, function("b"))
    some = parse_responses_tools(fields | {"tool_choice": allowed("required", function("a"))})
    assert (some.tools.choice, some.tools.allowed, some.tools.one_call) == ("required", frozenset("a"), False)
