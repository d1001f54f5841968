"""What requests ask of the form of their output, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.api.chat_request import parse_chat
from ninfer.api.constraints import structured_outputs
from ninfer.api.messages_request import parse_messages
from ninfer.api.responses_request import parse_responses
from ninfer.api.responses_store import ResponseStore
from ninfer.constraints.calls import Tool
from ninfer.constraints.constraint import (
    Calls,
    ChoiceAnswer,
    Constraint,
    GrammarAnswer,
    JsonAnswer,
    RegexAnswer,
)
from ninfer.errors import RequestRejected

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
EMPTY = {"type": "object", "properties": {}}
JSON = JsonAnswer(SCHEMA, "response_format.json_schema.schema")
FORMAT = {"type": "json_schema", "json_schema": {"name": "out", "strict": True, "schema": SCHEMA}}


def tool(name: str = "look", **members: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **members}}


def chat(**fields: object) -> Constraint | None:
    return parse_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).constraint


def declared(name: str = "look", n: int = 0, *, strict: bool = False) -> Tool:
    return Tool(name, EMPTY, strict=strict, where=f"tools[{n}].function.parameters")


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}},
         Constraint(JsonAnswer({"type": "object"}, "response_format"))),
        ({"response_format": FORMAT}, Constraint(JSON)),
        ({"structured_outputs": {"choice": ["a", "b", "a"]}},
         Constraint(ChoiceAnswer(("a", "b"), "structured_outputs.choice"))),
        ({"tools": [tool()]}, None),
        ({"tools": [tool()], "stop": "x", "ignore_eos": True}, None),
        ({"tools": [tool()], "tool_constraints": "auto"}, None),
        ({"tools": [tool()], "tool_constraints": "basic"}, Constraint(calls=Calls((declared(),)))),
        ({"tools": [tool()], "tool_constraints": "basic", "tool_choice": "none"}, None),
        ({"tools": [tool()], "parallel_tool_calls": False}, Constraint(calls=Calls((declared(),), most_one=True))),
        ({"tools": [tool(), tool("b", strict=True)]},
         Constraint(calls=Calls((declared(), declared("b", 1, strict=True))))),
        ({"tools": [tool(), tool("b")], "tool_choice": tool("b")},
         Constraint(calls=Calls((declared("b", 1),), forced=True, most_one=True))),
        ({"tools": [tool()], "tool_choice": "required"}, Constraint(calls=Calls((declared(),), forced=True))),
        ({"tools": [tool()], "response_format": FORMAT}, Constraint(JSON, Calls((declared(),)))),
        ({"tools": [tool()], "response_format": FORMAT, "tool_choice": "none"}, Constraint(JSON)),
        ({"tools": [tool()], "structured_outputs": {"regex": "a"}, "tool_choice": "none"},
         Constraint(RegexAnswer("a", "structured_outputs.regex"))),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_chat_request_asks(fields: dict[str, Any], constraint: Constraint | None) -> None:
    assert chat(**fields) == constraint


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"response_format": FORMAT, "structured_outputs": {"regex": "a"}}, "constraint_conflict",
         "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "constraint_conflict", "structured_outputs"),
        ({"response_format": FORMAT, "stop": "x"}, "constraint_conflict", "stop"),
        ({"response_format": FORMAT, "ignore_eos": True}, "constraint_conflict", "ignore_eos"),
        ({"tools": [tool()], "structured_outputs": {"regex": "a"}}, "constraint_conflict", "structured_outputs"),
        ({"tools": [tool()], "tool_choice": "required", "stop": ["x"]}, "constraint_conflict", "stop"),
        ({"tools": [tool()], "tool_constraints": "basic", "stop": ["x"]}, "constraint_conflict", "stop"),
        ({"tools": [tool(strict=True)], "ignore_eos": True}, "constraint_conflict", "ignore_eos"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}, None,
         "response_format.json_schema.name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "invalid_json_schema",
         "response_format.json_schema.schema"),
        ({"structured_outputs": {"choice": []}}, "invalid_choice", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "invalid_choice", "structured_outputs.choice"),
        ({"structured_outputs": {"choice": "a"}}, "invalid_choice", "structured_outputs.choice"),
        ({"structured_outputs": {"json": {}}}, "parameter_not_supported", "structured_outputs.json"),
        ({"structured_outputs": {"grammar": 1}}, None, "structured_outputs.grammar"),
        ({"structured_outputs": "a"}, None, "structured_outputs"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_go_together_or_is_malformed(fields: dict[str, Any], code: str | None, param: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        chat(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_grammar_of_any_kind() -> None:
    assert structured_outputs({"structured_outputs": {"grammar": "g", "regex": None}}) == GrammarAnswer(
        "g", "structured_outputs.grammar"
    )
    assert structured_outputs({"structured_outputs": None}) is None


def test_what_a_responses_request_asks() -> None:
    def asked(**fields: object) -> Constraint | None:
        return parse_responses({"model": "m", "input": "hi", **fields}, ResponseStore(1, 1 << 20)).constraint

    output = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": False}
    assert asked(text={"format": output}) == Constraint(JsonAnswer(SCHEMA, "text.format.schema"))
    assert asked(text={"verbosity": "low"}) is None
    function = {"type": "function", "name": "look"}
    calls = Calls((Tool("look", EMPTY, strict=False, where="tools[0].parameters"),), most_one=True)
    assert asked(tools=[function], parallel_tool_calls=False) == Constraint(calls=calls)


def test_what_a_messages_request_asks() -> None:
    def asked(**fields: object) -> Constraint | None:
        messages = [{"role": "user", "content": "hi"}]
        return parse_messages({"model": "m", "max_tokens": 9, "messages": messages, **fields}).constraint

    output = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert asked(output_config=output) == Constraint(JsonAnswer(SCHEMA, "output_config.format.schema"))
    assert asked(output_config={"effort": "low"}) is None
    tools = [{"name": "look", "input_schema": EMPTY}]
    calls = Calls((Tool("look", EMPTY, strict=False, where="tools[0].input_schema"),), forced=True)
    assert asked(tools=tools, tool_choice={"type": "any"}) == Constraint(calls=calls)
