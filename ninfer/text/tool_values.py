"""What a tool declares, and what a raw value becomes in the JSON text of the arguments (serving spec, 7.5)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

_NESTING_MAX = 8
_TYPE_OF = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}

Types = frozenset[str] | None


class DeclaredTools:
    """The tools that a request may call, by name; declarations in the nested Chat form."""

    def __init__(self, declarations: Iterable[Mapping[str, object]]) -> None:
        self._properties: dict[str, Mapping[str, object]] = {}
        for declaration in declarations:
            function = _mapping(declaration.get("function"))
            name = function.get("name")
            if isinstance(name, str):
                self._properties[name] = _mapping(_mapping(function.get("parameters")).get("properties"))

    def __len__(self) -> int:
        return len(self._properties)

    def __contains__(self, name: str) -> bool:
        return name in self._properties

    def types(self, name: str, key: str) -> Types:
        """The types that a parameter may have, `null` aside; None where nothing says so."""
        return _types(self._properties.get(name, {}).get(key), _NESTING_MAX)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _types(schema: object, depth: int) -> Types:
    """Types from `type`, else from the branches of a union, else from the values that are allowed."""
    if not isinstance(schema, Mapping) or not depth:
        return None
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,)) - {"null"}
    if isinstance(kind, list) and kind and all(isinstance(word, str) for word in kind):
        return frozenset(kind) - {"null"}
    for union in ("anyOf", "oneOf"):
        branches = schema.get(union)
        if isinstance(branches, list) and branches:
            return _union([_types(branch, depth - 1) for branch in branches])
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return frozenset(_TYPE_OF[type(value)] for value in values if type(value) in _TYPE_OF)
    return None


def _union(branches: Sequence[Types]) -> Types:
    explicit = [types for types in branches if types is not None]
    return frozenset().union(*explicit) if len(explicit) == len(branches) else None


@dataclass(frozen=True, slots=True)
class Converted:
    """A value as JSON text.

    text         None for a parameter that is left out
    mismatched   it does not fit the declared type and is a string for the tool to reject
    """

    text: str | None
    mismatched: bool = False


def admits_string(types: Types) -> bool:
    """Whether a value of these types is a string just as it stands."""
    return types is not None and "string" in types


def converted(raw: str, types: Types) -> Converted:
    """A whole value of a parameter that admits no string, or of one without a declared type."""
    stripped = raw.strip()
    if types is not None and not stripped:
        return Converted(None)
    if types is not None and "boolean" in types and stripped.lower() in ("true", "false"):
        return Converted(stripped.lower())
    if is_json(stripped):
        return Converted(stripped)
    if types is not None and types & {"object", "array"} and stripped.startswith(("{", "[")):
        mended = _mended(stripped)
        if mended is not None:
            return Converted(mended)
    return Converted(f'"{string_inside(raw)}"', mismatched=types is not None)


def string_inside(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def is_json(text: str) -> bool:
    """Whether the text is one JSON value, nested at most as deeply as the interpreter can follow."""
    try:
        _read(text, strict=True)
    except (ValueError, RecursionError):
        return False
    return True


def _mended(text: str) -> str | None:
    """JSON whose strings hold line ends and the like as they are, with them escaped; None if that is not the fault."""
    try:
        return _written(_read(text, strict=False))
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as it was written: no digit gets lost."""

    spelling: str


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call in the JSON form.

    arguments   JSON text of one object
    repeated    keys of it that stood more than once
    """

    name: str
    arguments: str
    repeated: int


def read_json_call(text: str) -> JsonCall | None:
    """The call that ``{"name": …, "arguments": {…}}`` makes; None for anything else."""
    try:
        body = _read(text, strict=False)
        if not isinstance(body, _Members) or body.keys() - {"name", "arguments", "id", "type"}:
            return None
        name, arguments = body.get("name"), body.get("arguments")
        if isinstance(arguments, str):
            arguments = _read(arguments, strict=False)
        if arguments is None:
            arguments = _Members([])
        if not isinstance(name, str) or not isinstance(arguments, _Members):
            return None
        return JsonCall(name, _written(arguments), arguments.repeated)
    except (ValueError, RecursionError):
        return None


class _Members(dict[str, object]):
    """An object; of a repeated key the last value stands at the first place."""

    def __init__(self, pairs: Sequence[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated = len(pairs) - len(self)


def _read(text: str, *, strict: bool) -> object:
    return json.loads(
        text,
        strict=strict,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=_refuse_constant,
        object_pairs_hook=_Members,
    )


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _written(value: object) -> str:
    match value:
        case _Number():
            return value.spelling
        case dict():
            return "{" + ", ".join(f"{_written(key)}: {_written(member)}" for key, member in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_written, value)) + "]"
        case str():
            # An escaped half of a surrogate pair has no other form in well-formed text than its escape.
            return json.dumps(value, ensure_ascii=any("\ud800" <= letter <= "\udfff" for letter in value))
        case _:
            return json.dumps(value)
