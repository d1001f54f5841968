"""JSON Schemas that can be enforced, and those that cannot (serving spec, 6.3).

A schema is checked keyword by keyword before the grammar library sees it, because the library passes over some of what
it does not know. What comes out says the same without annotations, with patterns in the library's notation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ninfer.constraints.regex import BadRegex, search
from ninfer.errors import RequestRejected

INVALID = "invalid_json_schema"
UNSUPPORTED = "unsupported_json_schema"
UNSATISFIABLE = "unsatisfiable_json_schema"

DEPTH_MAX = 256
NODES_MAX = 16384
LENGTH_MAX = 1 << 20
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "readOnly", "writeOnly", "deprecated")
)
_DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema": False,
    "http://json-schema.org/draft-07/schema": True,
    "https://json-schema.org/draft-07/schema": True,
}
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_BRANCHES = ("anyOf", "oneOf", "allOf")
_DEFINITIONS = ("$defs", "definitions")
# Signed 64-bit as far as binary64 bounds, of which the library needs the negatives as well, can say it.
_INTEGER_LOW, _INTEGER_HIGH = -(2**63 - 1024), 2**63 - 1024

Json = Mapping[str, object]


class SchemaError(ValueError):
    """A schema that is refused: the code of the catalogue, and the JSON Pointer of the place."""

    def __init__(self, code: str, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.pointer = pointer

    def rejection(self, field: str) -> RequestRejected:
        """The refusal of the request; `field` holds the schema. The message has the place as well (6.3, Messages)."""
        place = field + self.pointer
        return RequestRejected(f"{self} (at {place})", code=self.code, param=place)


def normalised(schema: object) -> object:
    """The schema as the library is given it; raises SchemaError."""
    return _Document(schema).root()


def resolve(root: object, reference: str) -> object:
    """What a reference inside a document points at; KeyError if there is nothing."""
    node = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            raise KeyError(reference)
    return node


def escaped(name: str) -> str:
    """A member name as a part of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


class _Document:
    def __init__(self, schema: object) -> None:
        self._schema = schema
        self._nodes = 0
        self._is_draft_07 = False

    def root(self) -> object:
        if isinstance(self._schema, Mapping):
            dialect = self._schema.get("$schema")
            if dialect is not None:
                if not isinstance(dialect, str):
                    raise SchemaError(INVALID, "$schema must be a string", "/$schema")
                known = _DIALECTS.get(dialect.rstrip("#"))
                if known is None:
                    raise SchemaError(UNSUPPORTED, "this dialect of JSON Schema is not supported", "/$schema")
                self._is_draft_07 = known
        found = self._node(self._schema, "", 0, frozenset())
        self._check_cycles(found)
        return _without_endless(found)

    def _node(self, schema: object, at: str, depth: int, declared: frozenset[str]) -> object:
        """One schema. `declared` are the properties that the schemas have that apply to the same value."""
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            raise SchemaError(UNSUPPORTED, "the schema is nested too deeply or has too many parts", at)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise SchemaError(INVALID, "a schema must be an object or a boolean", at)
        out: dict[str, object] = {}
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            declared = declared | properties.keys()
        for name, value in schema.items():
            if name in _ANNOTATIONS or (name in ("$schema", "$id") and at == ""):
                continue
            self._keyword(schema, out, name, value, f"{at}/{escaped(name)}", depth, declared)
        if self._is_draft_07 and "$ref" in out and len(out.keys() - {"$ref", *_DEFINITIONS}):
            raise SchemaError(UNSUPPORTED, "draft-07 does not look at what stands beside $ref", at)
        _bound_integers(out)
        return out

    def _keyword(
        self,
        schema: Json,
        out: dict[str, object],
        name: str,
        value: object,
        at: str,
        depth: int,
        declared: frozenset[str],
    ) -> None:
        match name:
            case "type":
                out[name] = _types(value, at)
            case "properties" | "$defs" | "definitions":
                if not isinstance(value, Mapping):
                    raise SchemaError(INVALID, f"{name} must be an object", at)
                out[name] = {
                    key: self._node(part, f"{at}/{escaped(key)}", depth + 1, frozenset()) for key, part in value.items()
                }
            case "required":
                out[name] = _required(value, declared, at)
            case "additionalProperties":
                out[name] = self._node(value, at, depth + 1, frozenset())
            case "items" | "prefixItems" | "additionalItems":
                self._items(schema, out, name, value, at, depth)
            case "anyOf" | "oneOf" | "allOf":
                if not isinstance(value, list) or not value:
                    raise SchemaError(INVALID, f"{name} must be a non-empty array", at)
                out[name] = [self._node(part, f"{at}/{n}", depth + 1, declared) for n, part in enumerate(value)]
            case "pattern":
                out[name] = _pattern(value, at)
            case "const":
                out[name] = _checked_value(value, at)
            case "enum":
                if not isinstance(value, list) or not value:
                    raise SchemaError(INVALID, "enum must be a non-empty array", at)
                out[name] = [_checked_value(member, at) for member in value]
            case "$ref":
                out[name] = self._reference(value, at)
            case _ if name in _LENGTHS:
                out[name] = _length(value, name, at)
            case _ if name in _BOUNDS:
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise SchemaError(INVALID, f"{name} must be a number", at)
                out[name] = value
            case _:
                raise SchemaError(UNSUPPORTED, f"the keyword {name} is not supported", at)

    def _items(self, schema: Json, out: dict[str, object], name: str, value: object, at: str, depth: int) -> None:
        """`prefixItems` and `items`, of both dialects, in the words of the newer one."""
        if name == "prefixItems" or (name == "items" and isinstance(value, list)):
            if not isinstance(value, list) or not value:
                raise SchemaError(INVALID, f"{name} must be a non-empty array", at)
            if "prefixItems" in out:
                raise SchemaError(UNSUPPORTED, "an array of items beside prefixItems is not supported", at)
            out["prefixItems"] = [self._node(part, f"{at}/{n}", depth + 1, frozenset()) for n, part in enumerate(value)]
        elif name == "items" or isinstance(schema.get("items"), list):
            out["items"] = self._node(value, at, depth + 1, frozenset())
        else:
            self._node(value, at, depth + 1, frozenset())  # without an array of items it says nothing

    def _reference(self, value: object, at: str) -> str:
        if not isinstance(value, str):
            raise SchemaError(INVALID, "$ref must be a string", at)
        if value != "#" and not value.startswith("#/"):
            raise SchemaError(UNSUPPORTED, "only references inside the document are supported", at)
        if "%" in value:
            raise SchemaError(UNSUPPORTED, "escapes in references are not supported", at)
        try:
            target = resolve(self._schema, value)
        except KeyError:
            raise SchemaError(INVALID, f"{value} points at nothing", at) from None
        if not isinstance(target, Mapping | bool):
            raise SchemaError(INVALID, f"{value} points at no schema", at)
        return value

    def _check_cycles(self, root: object) -> None:
        """A schema that applies to a value only by way of itself says nothing about it, and has no end."""
        done: set[int] = set()
        for start in _all_nodes(root):
            stack: list[tuple[object, bool]] = [(start, False)]
            path: set[int] = set()
            while stack:
                node, leaving = stack.pop()
                if leaving:
                    path.discard(id(node))
                    done.add(id(node))
                    continue
                if not isinstance(node, Mapping) or id(node) in done:
                    continue
                if id(node) in path:
                    raise SchemaError(UNSUPPORTED, "a reference leads back to itself")
                path.add(id(node))
                stack.append((node, True))
                stack += [(part, False) for part in _in_place(root, node)]


def _in_place(root: object, node: Json) -> list[object]:
    """The schemas that apply to the same value."""
    found: list[object] = []
    for name in _BRANCHES:
        branches = node.get(name, [])
        assert isinstance(branches, list)
        found += branches
    reference = node.get("$ref")
    if isinstance(reference, str):
        try:
            found.append(resolve(root, reference))
        except KeyError:
            raise SchemaError(UNSUPPORTED, f"{reference} points into what is not a schema") from None
    return found


def _all_nodes(root: object) -> list[object]:
    found, index = [root], 0
    while index < len(found):
        node = found[index]
        index += 1
        if not isinstance(node, Mapping):
            continue
        for name in ("properties", *_DEFINITIONS):
            parts = node.get(name)
            if isinstance(parts, Mapping):
                found += parts.values()
        for name in (*_BRANCHES, "prefixItems"):
            branches = node.get(name)
            if isinstance(branches, list):
                found += branches
        found += [node[name] for name in ("items", "additionalProperties") if name in node]
    return found


def _without_endless(root: object) -> object:
    """The schema without what every value of would hold another value of, and so on: none of them has an end, and the
    library would write one for ever.
    """
    # What stands deeper comes last, so that a schema without recursion takes one pass.
    nodes = [node for node in reversed(_all_nodes(root)) if isinstance(node, dict)]
    ends: set[int] = set()
    grown = True
    while grown:
        grown = False
        for node in nodes:
            if id(node) not in ends and _may_end(root, node, ends):
                ends.add(id(node))
                grown = True
    if isinstance(root, dict) and id(root) not in ends:
        raise SchemaError(UNSATISFIABLE, "no value satisfies the schema, or none that comes to an end")
    if any(id(node) not in ends for node in nodes):
        for node in nodes:
            _cut(node, lambda part: isinstance(part, dict) and id(part) not in ends)
    return root


def _cut(node: dict[str, Any], is_endless: Callable[[object], bool]) -> None:
    """Put what no value satisfies in place of what is endless."""
    for holder in (node.get(name, {}) for name in ("properties", *_DEFINITIONS)):
        holder.update({name: False for name, part in holder.items() if is_endless(part)})
    for name in (*_BRANCHES, "prefixItems"):
        if name in node:
            node[name] = [False if is_endless(part) else part for part in node[name]]
    node.update({name: False for name in ("items", "additionalProperties") if is_endless(node.get(name))})


def _may_end(root: object, node: dict[str, Any], ends: set[int]) -> bool:
    """Whether there may be a value of the schema, as far as `ends` are schemas of which there may be one."""

    def has_end(part: object) -> bool:
        return part is not False and (not isinstance(part, dict) or id(part) in ends)

    if not all(any(has_end(branch) for branch in node[name]) for name in ("anyOf", "oneOf") if name in node):
        return False
    together = [*node.get("allOf", ()), *([resolve(root, node["$ref"])] if "$ref" in node else ())]
    if not all(has_end(part) for part in together):
        return False
    if node.keys() & {"const", "enum"}:
        return True
    kinds = node.get("type", TYPES)
    return any(_kind_may_end(kind, node, has_end) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _kind_may_end(kind: str, node: dict[str, Any], has_end: Callable[[object], bool]) -> bool:
    """The same of the values of one type."""
    if kind == "object":
        properties = node.get("properties", {})
        return all(has_end(properties[name]) for name in node.get("required", ()) if name in properties)
    if kind == "array":
        first, least = node.get("prefixItems", ()), node.get("minItems", 0)
        behind = (node.get("items", True),) if least > len(first) else ()
        return all(has_end(part) for part in (*first[:least], *behind))
    return True


def _types(value: object, at: str) -> object:
    listed = value if isinstance(value, list) else [value]
    if not listed or any(kind not in TYPES for kind in listed) or len(set(listed)) != len(listed):
        raise SchemaError(INVALID, f"type must be of {', '.join(TYPES)}", at)
    return value


def _required(value: object, declared: frozenset[str], at: str) -> object:
    if not isinstance(value, list) or any(not isinstance(name, str) for name in value):
        raise SchemaError(INVALID, "required must be an array of strings", at)
    if len(set(value)) != len(value):
        raise SchemaError(INVALID, "required names a property twice", at)
    for n, name in enumerate(value):
        if name not in declared:
            raise SchemaError(UNSUPPORTED, f"required names '{name}', which is not declared in properties", f"{at}/{n}")
    return value


def _length(value: object, name: str, at: str) -> int:
    whole_number = value if not isinstance(value, float) else int(value) if value.is_integer() else None
    if isinstance(whole_number, bool) or not isinstance(whole_number, int) or whole_number < 0:
        raise SchemaError(INVALID, f"{name} must be a whole number of at least 0", at)
    if whole_number > LENGTH_MAX:
        raise SchemaError(UNSUPPORTED, f"{name} beyond {LENGTH_MAX} is not supported", at)
    return whole_number


def _pattern(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise SchemaError(INVALID, "pattern must be a string", at)
    try:
        return f"^(?:{search(value)})$"
    except BadRegex as error:
        raise SchemaError(UNSUPPORTED, f"pattern: {error}", at) from None


def _checked_value(value: object, at: str, depth: int = 0) -> object:
    if depth > DEPTH_MAX:
        raise SchemaError(UNSUPPORTED, "a value is nested too deeply", at)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for part in parts:
        _checked_value(part, at, depth + 1)
    return value


def _bound_integers(out: dict[str, object]) -> None:
    kinds = out.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    if "integer" in listed and "number" not in listed:
        if not out.keys() & {"minimum", "exclusiveMinimum"}:
            out["minimum"] = _INTEGER_LOW
        if not out.keys() & {"maximum", "exclusiveMaximum"}:
            out["maximum"] = _INTEGER_HIGH
