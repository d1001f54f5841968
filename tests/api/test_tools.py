"""Tool declarations and choice: what is rendered, dropped, refused."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.api.tools import Tools, parse_tools
from ninfer.errors import RequestRejected


def tool(name: object = "look", **function: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **function}}


def allowed(mode: str | None, **members: object) -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, **members}}


def test_nothing_is_nothing() -> None:
    assert parse_tools({}) == parse_tools({"tools": None}) == parse_tools({"tools": []}) == Tools()
    assert parse_tools({"tool_choice": "none"}).choice == "none"


def test_declarations_keep_their_order_and_get_parameters() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    tools = parse_tools({"tools": [tool("b", description="d", parameters=schema), tool("a", parameters=None)]})
    assert tools.declarations == (
        tool("b", description="d", parameters=schema),
        tool("a", parameters={"type": "object", "properties": {}}),
    )


def test_tools_of_other_servers_are_dropped() -> None:
    tools = parse_tools({"tools": [{"type": "web_search"}, tool(), {"type": "custom", "custom": {}}]})
    assert len(tools.declarations) == 1
    assert tools.dropped == ("web_search", "custom")


@pytest.mark.parametrize("choice", [None, "auto", {"type": "auto"}])
def test_free_choice(choice: object) -> None:
    assert parse_tools({"tools": [tool()], "tool_choice": choice}).choice == "auto"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": {}}, None, "tools"),
        ({"tools": ["x"]}, None, "tools[0]"),
        ({"tools": [{}]}, None, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, None, "tools[0].function"),
        ({"tools": [tool("")]}, None, "tools[0].function.name"),
        ({"tools": [tool("a b")]}, None, "tools[0].function.name"),
        ({"tools": [tool("x" * 65)]}, None, "tools[0].function.name"),
        ({"tools": [tool(parameters=[])]}, None, "tools[0].function.parameters"),
        ({"tools": [tool(description=1)]}, None, "tools[0].function.description"),
        ({"tools": [tool(), tool()]}, "invalid_value", "tools[1].function.name"),
        ({"tools": [tool()], "tool_choice": tool("other")}, "invalid_value", "tool_choice"),
        ({"tools": [tool()], "tool_choice": tool("")}, None, "tool_choice.function.name"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, None, "tool_choice.function.name"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "tool_type_not_supported", "tool_choice"),
        (
            {"tools": [tool(), {"type": "mcp"}], "tool_choice": {"type": "mcp"}},
            "tool_type_not_supported",
            "tool_choice",
        ),
        ({"tools": [tool()], "tool_choice": {}}, "tool_choice_not_supported", "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, None, "tool_choice.allowed_tools"),
        ({"tools": [tool()], "tool_choice": allowed("auto")}, None, "tool_choice.allowed_tools.tools"),
        ({"tools": [tool()], "tool_choice": allowed("auto", tools=[5])}, None, "tool_choice.allowed_tools.tools"),
        (
            {"tools": [tool()], "tool_choice": allowed("auto", tools=[{"type": "function"}])},
            None,
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        ({"tools": [tool()], "tool_choice": allowed("auto", tools=[tool("other")])}, "invalid_value", "tool_choice"),
        ({"tools": [tool()], "tool_choice": allowed("auto", tools=[{"type": "mcp"}])}, "invalid_value", "tool_choice"),
        ({"tools": [tool()], "tool_choice": allowed("maybe", tools=[tool()])}, "invalid_value", "tool_choice"),
        ({"tools": [tool()], "tool_choice": allowed(None, tools=[tool()])}, "invalid_value", "tool_choice"),
        ({"tools": [tool()], "tool_choice": "some"}, "tool_choice_not_supported", "tool_choice"),
        ({"tools": [tool()], "tool_choice": 1}, "tool_choice_not_supported", "tool_choice"),
        ({"tool_constraints": "all"}, "invalid_value", "tool_constraints"),
    ],
)
def test_refusals(fields: dict[str, Any], code: str | None, param: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        parse_tools(fields)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_hints_without_tools_or_without_effect_pass() -> None:
    assert parse_tools({"parallel_tool_calls": False, "tool_constraints": "basic"}).callable == ()
    assert parse_tools({"tools": [tool(strict=False)], "parallel_tool_calls": True, "tool_constraints": "auto"})


def test_which_tools_may_be_called() -> None:
    fields: dict[str, object] = {"tools": [tool("a"), tool("b"), {"type": "mcp"}]}
    every = parse_tools(fields)
    assert every.callable == every.declarations
    assert len(every.declarations) == 2
    none = parse_tools(fields | {"tool_choice": "none"})
    assert (none.callable, none.declarations) == ((), every.declarations)
    some = parse_tools(fields | {"tool_choice": allowed("auto", tools=[tool("b"), {"type": "mcp"}])})
    assert (some.choice, some.declarations) == ("auto", every.declarations)
    assert some.callable == every.declarations[1:]


@pytest.mark.parametrize(
    ("choice", "allowed_tools", "one_call"),
    [
        ("required", None, False),
        ({"type": "any"}, None, False),
        (tool("b"), {"b"}, True),
        (allowed("required", tools=[tool("a")]), {"a"}, False),
    ],
    ids=str,
)
def test_forced_choice(choice: object, allowed_tools: set[str] | None, one_call: bool) -> None:
    tools = parse_tools({"tools": [tool("a"), tool("b")], "tool_choice": choice})
    assert (tools.choice, tools.allowed, tools.one_call) == ("required", allowed_tools, one_call)


def test_what_is_asked_of_the_form_of_calls() -> None:
    fields = {"tools": [{"type": "mcp"}, tool("a", strict=True)], "tool_constraints": "basic"}
    tools = parse_tools(fields | {"parallel_tool_calls": False})
    assert (set(tools.strict), tools.structure, tools.one_call) == ({"a"}, "basic", True)
    assert tools.places == {"a": "tools[1].function.parameters"}
