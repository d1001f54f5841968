"""Tool declarations and choice of the Responses API (serving spec, 7.1 and 7.2).

The model knows functions by one name each. A function of a namespace is declared to it under a name made of both, a
custom tool as a function with the one string parameter `input`; both come back as what they were declared as.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.api.fields import Object, array, boolean, mapping, refusal, text, wrong
from ninfer.api.tools import AUTO, NONE, Choice, Tools, allowed_names, forced_choice, structure_of

CUSTOM_PARAMETER = "input"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DECLARED_NAME_MAX = 128
_FLAT_MEMBERS = {
    "function": frozenset({"type", "name", "description", "parameters", "strict", "defer_loading"}),
    "custom": frozenset({"type", "name", "description", "format", "defer_loading"}),
    "namespace": frozenset({"type", "name", "description", "tools", "defer_loading"}),
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a name that the model calls stands for."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ResponsesTools:
    """The tools of a request.

    tools      as every protocol has them
    targets    by the name that the model knows
    wire       canonical declarations, for the response object
    choice     the ``tool_choice`` as the response object repeats it
    """

    tools: Tools
    targets: Mapping[str, Target]
    wire: tuple[Object, ...]
    choice: object

    def target(self, declared: str) -> Target:
        """What a called name stands for; a name that was never declared stands for itself."""
        return self.targets.get(declared, Target(declared))


def declared_name(namespace: str | None, name: str) -> str:
    """The name under which the model knows a function."""
    if namespace is None:
        return name
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"


def parse_responses_tools(source: Object) -> ResponsesTools:
    """The tools of a Responses request; raises RequestRejected."""
    reader = _Reader()
    wire = [flat for n, entry in enumerate(array(source, "tools") or ()) for flat in reader.read(entry, f"tools[{n}]")]
    choice = _choice(source.get("tool_choice"), reader)
    tools = Tools(
        tuple(reader.declarations.values()),
        tuple(reader.dropped),
        choice.kind,
        choice.is_one or boolean(source, "parallel_tool_calls") is False,
        choice.allowed,
        frozenset(reader.strict),
        reader.places,
        structure_of(source),
    )
    echoed = source.get("tool_choice") if choice.allowed is not None else choice.kind
    return ResponsesTools(tools, reader.targets, tuple(wire), echoed)


class _Reader:
    """Reads the entries of ``tools``."""

    def __init__(self) -> None:
        self.declarations: dict[str, Object] = {}
        self.targets: dict[str, Target] = {}
        self.dropped: list[str] = []
        self.strict: set[str] = set()
        self.places: dict[str, str] = {}

    def read(self, entry: object, where: str, namespace: str | None = None) -> list[Object]:
        """The canonical form of an entry; of a dropped one nothing."""
        if not isinstance(entry, dict):
            raise wrong(where, "an object")
        kind = text(entry, "type", f"{where}.type")
        if kind is None:
            raise wrong(f"{where}.type", "a string")
        known = _FLAT_MEMBERS.get(kind)
        nested = kind == "namespace" and namespace is not None
        if known is None or nested or boolean(entry, "defer_loading", f"{where}.defer_loading"):
            self.dropped.append(kind)
            return []
        for member, value in entry.items():
            if value is not None and member not in known:
                param = f"{where}.{member}"
                raise refusal("unknown_parameter", f"{param} is not a member of a tool of type '{kind}'", param)
        name = text(entry, "name", f"{where}.name")
        if name is None or not _NAME.fullmatch(name):
            raise wrong(f"{where}.name", "1 to 64 of the characters A-Z, a-z, 0-9, _ and -")
        description = text(entry, "description", f"{where}.description")
        if kind == "namespace":
            return self._group(entry, name, description, where)
        if kind == "custom":
            mapping(entry, "format", f"{where}.format")
            parameters: Object = {
                "type": "object",
                "properties": {CUSTOM_PARAMETER: {"type": "string"}},
                "required": [CUSTOM_PARAMETER],
            }
            self._declare(Target(name, namespace, is_custom=True), description, parameters, where)
            return [_given({"type": kind, "name": name, "description": description, "format": entry.get("format")})]
        parameters = mapping(entry, "parameters", f"{where}.parameters") or {"type": "object", "properties": {}}
        is_strict = boolean(entry, "strict", f"{where}.strict") or False
        self._declare(Target(name, namespace), description, parameters, where)
        if is_strict:
            self.strict.add(declared_name(namespace, name))
        flat = _given({"type": kind, "name": name, "description": description})
        return [{**flat, "parameters": parameters, "strict": is_strict}]

    def _group(self, entry: Object, name: str, description: str | None, where: str) -> list[Object]:
        tools = array(entry, "tools", f"{where}.tools") or ()
        inside = [flat for n, tool in enumerate(tools) for flat in self.read(tool, f"{where}.tools[{n}]", name)]
        return [{**_given({"type": "namespace", "name": name, "description": description}), "tools": inside}]

    def _declare(self, target: Target, description: str | None, parameters: Object, where: str) -> None:
        declared = declared_name(target.namespace, target.name)
        if declared in self.declarations:
            raise refusal("invalid_value", f"two tools have the name '{declared}'", f"{where}.name")
        if len(declared) > _DECLARED_NAME_MAX:
            limit = f"at most {_DECLARED_NAME_MAX} characters together with its namespace"
            raise wrong(f"{where}.name", limit)
        function = _given({"name": declared, "description": description, "parameters": parameters})
        self.declarations[declared] = {"type": "function", "function": function}
        self.targets[declared] = target
        self.places[declared] = f"{where}.parameters"


def _given(members: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


def _choice(choice: object, reader: _Reader) -> Choice:
    declared, dropped = tuple(reader.declarations), reader.dropped
    source: Object = choice if isinstance(choice, dict) else {"type": choice if choice is not None else "auto"}
    match source.get("type"):
        case "auto":
            return AUTO
        case "none":
            return NONE
        case "required":
            return forced_choice(None, declared, dropped)
        case "function" | "custom":
            return forced_choice(_chosen(source, "tool_choice"), declared, dropped, is_one=True)
        case "allowed_tools":
            entries = array(source, "tools", "tool_choice.tools")
            if entries is None:
                raise wrong("tool_choice.tools", "an array")
            names = [_chosen(entry, f"tool_choice.tools[{n}]") for n, entry in enumerate(entries)]
            return allowed_names(text(source, "mode", "tool_choice.mode"), names, declared, dropped)
        case str(kind) if kind in dropped:
            return forced_choice(kind, declared, dropped)
    message = "tool_choice must be 'auto', 'none', 'required', a function, a custom tool or allowed_tools"
    raise refusal("tool_choice_not_supported", message, "tool_choice")


def _chosen(entry: object, where: str) -> str:
    """The name of a tool as the model knows it; of one that only another server could run, its type."""
    if not isinstance(entry, dict):
        raise wrong(where, "an object")
    kind = text(entry, "type", f"{where}.type")
    if kind is not None and kind not in ("function", "custom"):
        return kind
    name = text(entry, "name", f"{where}.name")
    if not name:
        raise wrong(f"{where}.name", "a non-empty string")
    return declared_name(text(entry, "namespace", f"{where}.namespace"), name)
