"""Declared types of parameters."""

from __future__ import annotations

import pytest

from ninfer.text.tool_values import DeclaredTools, Types
from tests.text.calling import tool

DEEP: dict[str, object] = {"type": "integer"}
for _ in range(8):
    DEEP = {"anyOf": [DEEP]}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string"}),
        ({"type": ["integer", "boolean"]}, {"integer", "boolean"}),
        ({"type": "null"}, set()),
        ({"type": []}, None),
        ({"type": [5]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string"}),
        ({"oneOf": [{"type": "object"}, {"enum": [1, 2.5]}]}, {"object", "integer", "number"}),
        ({"anyOf": [{"$ref": "#/x"}, {"type": "string"}]}, None),
        ({"anyOf": []}, None),
        ({"const": "a"}, {"string"}),
        ({"const": None}, set()),
        ({"enum": [True, None, [], {}]}, {"boolean", "array", "object"}),
        ({"enum": []}, None),
        (DEEP["anyOf"][0], {"integer"}),  # type: ignore[index]
        (DEEP, None),
        ({}, None),
        (True, None),
        (None, None),
    ],
)
def test_types(schema: object, types: set[str] | None) -> None:
    expected: Types = None if types is None else frozenset(types)
    assert DeclaredTools([tool("f", k=schema)]).types("f", "k") == expected


def test_what_is_not_declared_has_no_type() -> None:
    tools = DeclaredTools([tool("f", k={"type": "string"}), {"type": "function", "function": {"name": "g"}}])
    assert tools.types("f", "other") is None
    assert tools.types("g", "k") is None
    assert tools.types("h", "k") is None
    assert (len(tools), "f" in tools, "h" in tools) == (2, True, False)
