"""Which schemas are refused, with which code and at which place, and what the others become."""

from __future__ import annotations

import pytest

from ninfer.constraints.schema import INVALID, UNSATISFIABLE, UNSUPPORTED, SchemaError, normalised

OBJECT = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "code", "pointer"),
    [
        (3, INVALID, ""),
        ({"type": "text"}, INVALID, "/type"),
        ({"type": []}, INVALID, "/type"),
        ({"properties": {"a/b": {"type": 1}}}, INVALID, "/properties/a~1b/type"),
        ({"properties": []}, INVALID, "/properties"),
        ({"required": "a"}, INVALID, "/required"),
        ({"properties": {"a": {}}, "required": ["a", "a"]}, INVALID, "/required"),
        ({"properties": {"a": {}}, "required": ["b"]}, UNSUPPORTED, "/required/0"),
        ({"anyOf": []}, INVALID, "/anyOf"),
        ({"anyOf": [True, {"minLength": -1}]}, INVALID, "/anyOf/1/minLength"),
        ({"enum": []}, INVALID, "/enum"),
        ({"minimum": "1"}, INVALID, "/minimum"),
        ({"exclusiveMinimum": True}, INVALID, "/exclusiveMinimum"),
        ({"pattern": 1}, INVALID, "/pattern"),
        ({"pattern": "^(?!x).*$"}, UNSUPPORTED, "/pattern"),
        ({"pattern": "["}, UNSUPPORTED, "/pattern"),
        ({"items": {"$ref": "#/$defs/missing"}}, INVALID, "/items/$ref"),
        ({"$ref": "https://example.org/s"}, UNSUPPORTED, "/$ref"),
        ({"$ref": "#/required", "required": []}, INVALID, "/$ref"),
        ({"$ref": "#"}, UNSUPPORTED, ""),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, True]}}, "$ref": "#/$defs/a"}, UNSUPPORTED, ""),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, UNSUPPORTED, "/$schema"),
        ({"$schema": 4}, INVALID, "/$schema"),
        ({"properties": {"a": {"$id": "x"}}}, UNSUPPORTED, "/properties/a/$id"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "type": "string",
          "definitions": {"a": True}}, UNSUPPORTED, ""),
        ({"prefixItems": [True], "items": [True]}, UNSUPPORTED, "/items"),
        ({"maxLength": 1 << 30}, UNSUPPORTED, "/maxLength"),
        *(({"properties": {"p": {key: value}}}, UNSUPPORTED, f"/properties/p/{key}") for key, value in {
            "if": True, "then": True, "else": True, "not": {}, "dependentRequired": {}, "dependencies": {},
            "uniqueItems": True, "contains": {}, "patternProperties": {}, "propertyNames": {}, "minProperties": 1,
            "maxProperties": 1, "unevaluatedProperties": False, "unevaluatedItems": False, "format": "date",
            "multipleOf": 2, "x-guidance": {}, "anything": 1,
        }.items()),
    ],
    ids=str,
)  # fmt: skip
def test_refused(schema: object, code: str, pointer: str) -> None:
    with pytest.raises(SchemaError) as refused:
        normalised(schema)
    assert (refused.value.code, refused.value.pointer) == (code, pointer)


@pytest.mark.parametrize(
    ("schema", "becomes"),
    [
        (True, True),
        ({"title": "t", "description": "d", "default": 1, "examples": [], "$comment": "", "type": "null"},
         {"type": "null"}),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "x", **OBJECT}, OBJECT),
        ({"items": [{"type": "null"}], "additionalItems": False}, {"prefixItems": [{"type": "null"}], "items": False}),
        ({"items": {"type": "null"}, "additionalItems": False}, {"items": {"type": "null"}}),
        ({"pattern": "^a$"}, {"pattern": "^(?:(?:a))$"}),
        ({"minItems": 1.0}, {"minItems": 1}),
        ({"properties": {"title": {"const": {"title": 1}}}}, {"properties": {"title": {"const": {"title": 1}}}}),
        ({"properties": {"a": True}, "anyOf": [{"required": ["a"]}]},
         {"properties": {"a": True}, "anyOf": [{"required": ["a"]}]}),
        ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 1, "maximum": 2**63 - 1024}),
        ({"type": ["integer", "number"]}, {"type": ["integer", "number"]}),
    ],
    ids=str,
)  # fmt: skip
def test_what_says_nothing_is_left_out(schema: object, becomes: object) -> None:
    assert normalised(schema) == becomes


ENDLESS = {"properties": {"n": {"$ref": "#"}}, "required": ["n"], "type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        ENDLESS,
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
        {"$defs": {"a": {**ENDLESS, "properties": {"n": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"},
        {"anyOf": [ENDLESS, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
        {"allOf": [{"type": "object"}, ENDLESS]},
        {"type": "object", "properties": {"a": {"oneOf": [{"$ref": "#"}]}, "b": True}, "required": ["a", "b"]},
    ],
    ids=str,
)
def test_recursion_without_an_end_is_refused(schema: object) -> None:
    with pytest.raises(SchemaError, match="none that comes to an end") as refused:
        normalised(schema)
    assert (refused.value.code, refused.value.pointer) == (UNSATISFIABLE, "")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"n": {"$ref": "#"}}, "type": "object"},
        {**ENDLESS, "type": ["object", "null"]},
        {"properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 1},
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 0},
        {**ENDLESS, "properties": {"n": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {**ENDLESS, "enum": [{"n": 1}]},
    ],
    ids=str,
)
def test_recursion_with_an_end_stays_as_it_is(schema: object) -> None:
    assert normalised(schema) == schema


def test_what_has_no_end_is_left_out_where_something_else_will_do() -> None:
    endless = {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1}
    schema = {
        "$defs": {"e": endless},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/e"}, "b": {"anyOf": [endless, {"type": "null"}]}},
        "required": ["b"],
        "additionalProperties": {"$ref": "#/$defs/e"},
    }
    assert normalised(schema) == {
        "$defs": {"e": False},
        "type": "object",
        "properties": {"a": False, "b": {"anyOf": [False, {"type": "null"}]}},
        "required": ["b"],
        "additionalProperties": False,
    }


def test_nesting_and_size_are_bounded() -> None:
    deep: object = True
    for _ in range(300):
        deep = {"items": deep}
    with pytest.raises(SchemaError, match="nested"):
        normalised(deep)
    with pytest.raises(SchemaError, match="many parts"):
        normalised({"properties": {str(n): True for n in range(20_000)}})


def test_recursion_by_way_of_a_property_is_no_cycle() -> None:
    schema = {"properties": {"next": {"$ref": "#"}}}
    assert normalised(schema) == schema
