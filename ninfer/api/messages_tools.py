"""Tool declarations and choice of the Messages API (serving spec, 7.1 and 7.2)."""

from __future__ import annotations

import re

from ninfer.api.cache_control import check_cache_control
from ninfer.api.fields import Object, array, boolean, mapping, refusal, text, wrong
from ninfer.api.tools import AUTO, NONE, Choice, Tools, forced_choice, structure_of

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_FREE = {"auto": AUTO, "none": NONE}


def parse_messages_tools(source: Object) -> Tools:
    """The tools of a Messages request in the nested Chat form; raises RequestRejected."""
    declarations: dict[str, Object] = {}
    dropped: dict[str, str] = {}
    places: dict[str, str] = {}
    strict: set[str] = set()
    for n, entry in enumerate(array(source, "tools") or ()):
        where = f"tools[{n}]"
        if not isinstance(entry, dict):
            raise wrong(where, "an object")
        kind = text(entry, "type", f"{where}.type")
        if kind not in (None, "custom") or boolean(entry, "defer_loading", f"{where}.defer_loading"):
            dropped[text(entry, "name", f"{where}.name") or str(kind)] = kind or "deferred"
            continue
        name = _name(entry, where)
        if name in declarations:
            raise refusal("invalid_value", f"two tools have the name '{name}'", f"{where}.name")
        declarations[name] = _declaration(entry, name, where)
        places[name] = f"{where}.input_schema"
        if boolean(entry, "strict", f"{where}.strict"):
            strict.add(name)
    choice, one_call = _choice(source, tuple(declarations), tuple(dropped))
    return Tools(
        tuple(declarations.values()),
        tuple(dropped.values()),
        choice.kind,
        one_call,
        choice.allowed,
        frozenset(strict),
        places,
        structure_of(source),
    )


def _name(entry: Object, where: str) -> str:
    name = text(entry, "name", f"{where}.name")
    if name is None or not _NAME.fullmatch(name):
        raise wrong(f"{where}.name", "1 to 128 of the characters A-Z, a-z, 0-9, _ and -")
    return name


def _declaration(entry: Object, name: str, where: str) -> Object:
    check_cache_control(entry, where)
    array(entry, "input_examples", f"{where}.input_examples")
    function: dict[str, object] = {"name": name}
    description = text(entry, "description", f"{where}.description")
    if description is not None:
        function["description"] = description
    schema = mapping(entry, "input_schema", f"{where}.input_schema")
    function["parameters"] = schema if schema is not None else {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _choice(source: Object, declared: tuple[str, ...], dropped: tuple[str, ...]) -> tuple[Choice, bool]:
    choice = mapping(source, "tool_choice")
    if choice is None:
        return AUTO, False
    one_call = boolean(choice, "disable_parallel_tool_use", "tool_choice.disable_parallel_tool_use") or False
    kind = text(choice, "type", "tool_choice.type")
    if kind in _FREE:
        return _FREE[kind], one_call
    if kind == "any":
        return forced_choice(None, declared, dropped), one_call
    if kind == "tool":
        name = text(choice, "name", "tool_choice.name")
        if not name:
            raise wrong("tool_choice.name", "a non-empty string")
        return forced_choice(name, declared, dropped), one_call
    raise refusal("tool_choice_not_supported", "tool_choice.type must be auto, any, tool or none", "tool_choice.type")
