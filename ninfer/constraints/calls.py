"""Tool calls in the family's markup as a grammar (serving spec, 7.3 and 7.5).

A string parameter is raw text between its tags. To be read back for certain it must not hold the tags of the markup
itself: the parser counts them. Every other parameter is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ninfer.constraints.characters import literal_text
from ninfer.constraints.schema import TYPES, UNSUPPORTED, SchemaError, escaped, normalised, resolve
from ninfer.text.prompt import TOOL_CALL_CLOSE, TOOL_CALL_OPEN

_VALUE_END = "\n</parameter>\n"
_MARKUP = ("<parameter=", "</parameter>", "<function=", "</function>", TOOL_CALL_OPEN, TOOL_CALL_CLOSE)
_ROOT_KEYWORDS = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
_NESTED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called.

    schema   of its arguments, as the client declared it
    strict   whether the arguments must satisfy it
    where    the request field that holds the schema
    """

    name: str
    schema: object = field(repr=False)
    strict: bool
    where: str


def lark(tools: tuple[Tool, ...], *, most_one: bool) -> str:
    """Rules with the entry `calls`: at least one call, one newline between two. Raises SchemaError by way of `where`.

    most_one   whether a second call may follow
    """
    lines = [
        "calls: call" if most_one else 'calls: call ("\\n" call)*',
        f"call: {' | '.join(f't{n}' for n in range(len(tools)))}",
        f"RAW: /(?s:.*)/ & ~/(?s:.*)(?:{'|'.join(map(literal_text, _MARKUP))})(?s:.*)/",
        f"RAW_END: RAW {quoted(_VALUE_END)}",
        f"free: {quoted('<parameter=')} /[^\\n<>]{{1,256}}/ {quoted('>' + chr(10))} RAW_END",
    ]
    for n, tool in enumerate(tools):
        arguments = _Arguments(f"t{n}", tool.schema) if tool.strict else None
        body = " ".join(arguments.parts) if arguments is not None else "free*"
        opener, closer = quoted(f"\n<function={tool.name}>\n"), quoted("</function>\n")
        lines.append(f"t{n}: {TOOL_CALL_OPEN} {opener} {body} {closer} {TOOL_CALL_CLOSE}")
        lines += arguments.lines if arguments is not None else ()
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A literal of the library's notation."""
    return json.dumps(text, ensure_ascii=False)


class _Arguments:
    """The parameters of one strict tool: the parts of its body, and the rules that they name."""

    def __init__(self, prefix: str, schema: object) -> None:
        document = normalised(schema)
        if not isinstance(document, Mapping):
            raise SchemaError(UNSUPPORTED, "the arguments of a strict tool must be an object")
        self._document: Mapping[str, object] = document
        self._prefix = prefix
        self.lines: list[str] = []
        root: object = document
        while isinstance(root, Mapping) and "$ref" in root and not root.keys() - {"$ref", *_DEFINITIONS}:
            root = self._target(root)
        if not isinstance(root, Mapping) or root.get("type") != "object" or root.keys() - _ROOT_KEYWORDS:
            raise SchemaError(UNSUPPORTED, "the arguments of a strict tool must be an object with plain properties")
        if root.get("additionalProperties") is not False:
            raise SchemaError(UNSUPPORTED, "a strict tool needs additionalProperties: false")
        properties, required = root.get("properties", {}), root.get("required", [])
        assert isinstance(properties, Mapping)
        assert isinstance(required, list)
        self.parts = [
            self._parameter(n, name, part, is_optional=name not in required)
            for n, (name, part) in enumerate(properties.items())
            if part is not False  # never written; one that is required was refused
        ]

    def _target(self, node: Mapping[str, object]) -> object:
        return resolve(self._document, str(node["$ref"]))

    def _parameter(self, n: int, name: str, schema: object, *, is_optional: bool) -> str:
        at = f"/properties/{escaped(name)}"
        if not name or any(c in "<>\n" for c in name):
            raise SchemaError(UNSUPPORTED, "the name of a parameter cannot be written in the markup of calls", at)
        kinds = self._kinds(schema)
        rule, opener = f"{self._prefix}p{n}", quoted(f"<parameter={name}>\n")
        if kinds == {"string"}:
            terminal = rule.upper()
            self.lines.append(f"{terminal}: ({self._raw(schema, at)}) {quoted(_VALUE_END)}")
            self.lines.append(f"{rule}: {opener} {terminal}")
        elif "string" in kinds:
            message = "a parameter of a strict tool cannot be a string or something else"
            raise SchemaError(UNSUPPORTED, message, at)
        else:
            inner = self._inner(schema, at)
            self.lines.append(f"{rule}: {opener} {rule}v {quoted(_VALUE_END)}")
            self.lines.append(f"{rule}v: %json {json.dumps(inner, ensure_ascii=False)}")
        return f"{rule}?" if is_optional else rule

    def _inner(self, schema: object, at: str) -> object:
        """The schema of a parameter as a document of its own."""
        assert isinstance(schema, Mapping), "true may be a string, and false is left out"
        shared = {name: self._document[name] for name in _DEFINITIONS if name in self._document}
        document = {**schema, **shared, "x-guidance": _NESTED}
        if any(not reference.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS)) for reference in _refs(document)):
            raise SchemaError(UNSUPPORTED, "a strict tool may refer to its definitions only", at)
        return document

    def _kinds(self, schema: object) -> frozenset[str]:
        """The types that a value may have."""
        everything = frozenset(TYPES)
        if not isinstance(schema, Mapping):
            return everything if schema is True else frozenset()
        kinds = everything
        if "type" in schema:
            named = schema["type"]
            kinds = frozenset(named) if isinstance(named, list) else frozenset((str(named),))
        if "const" in schema:
            kinds &= {_kind_of(schema["const"])}
        if "enum" in schema:
            kinds &= {_kind_of(value) for value in _listed(schema, "enum")}
        if "$ref" in schema:
            kinds &= self._kinds(self._target(schema))
        for name in ("anyOf", "oneOf"):
            if name in schema:
                kinds &= frozenset[str]().union(*(self._kinds(part) for part in _listed(schema, name)))
        for part in _listed(schema, "allOf"):
            kinds &= self._kinds(part)
        return kinds

    def _raw(self, schema: object, at: str) -> str:
        """A terminal for the raw texts of a string parameter."""
        if not isinstance(schema, Mapping):
            return "RAW"
        parts = ["RAW"]
        if "pattern" in schema:
            parts.append(f"/{str(schema['pattern']).removeprefix('^').removesuffix('$')}/")
        if "minLength" in schema or "maxLength" in schema:
            parts.append(f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/")
        if "enum" in schema or "const" in schema:
            parts.append(f"({' | '.join(map(_text, self._values(schema)))})")
        if "$ref" in schema:
            parts.append(f"({self._raw(self._target(schema), at)})")
        if "oneOf" in schema:
            self._check_disjoint(_listed(schema, "oneOf"), at)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                strings = [part for part in _listed(schema, name) if "string" in self._kinds(part)]
                parts.append(f"({' | '.join(f'({self._raw(part, at)})' for part in strings)})")
        parts += [f"({self._raw(part, at)})" for part in _listed(schema, "allOf")]
        return " & ".join(parts)

    @staticmethod
    def _values(schema: Mapping[str, object]) -> list[str]:
        values = [schema["const"]] if "const" in schema else _listed(schema, "enum")
        return [value for value in values if isinstance(value, str)]

    def _check_disjoint(self, branches: list[object], at: str) -> None:
        seen: set[str] = set()
        for branch in branches:
            finite = isinstance(branch, Mapping) and ("const" in branch or "enum" in branch)
            values = set(self._values(branch)) if isinstance(branch, Mapping) and finite else None
            if values is None or values & seen:
                raise SchemaError(UNSUPPORTED, "the branches of oneOf are not provably disjoint", f"{at}/oneOf")
            seen |= values


def _listed(schema: Mapping[str, object], name: str) -> list[object]:
    found = schema.get(name, [])
    assert isinstance(found, list)
    return found


def _text(value: str) -> str:
    return f"/{literal_text(value)}/" if value else '""'


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array"), (type(None), "null")):
        if isinstance(value, kind):
            return name
    return "object"


def _refs(schema: object) -> list[str]:
    """Every reference in a checked document."""
    if isinstance(schema, list):
        return [found for part in schema for found in _refs(part)]
    if not isinstance(schema, Mapping):
        return []
    own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    skipped = ("const", "enum", "x-guidance")
    return [str(r) for r in own] + [
        found for name, part in schema.items() if name not in skipped for found in _refs(part)
    ]
