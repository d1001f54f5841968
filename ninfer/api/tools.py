"""Tool declarations and the choice among them (serving spec, 7.1 and 7.2).

This build renders declarations into the prompt. It does not constrain the output yet, so everything that asks for a
constraint is refused, and calls come back as the text that the model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from ninfer.api.fields import Object, array, boolean, mapping, refusal, text, word, wrong
from ninfer.errors import RequestRejected

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tools:
    """Declarations in the nested Chat form, member order kept.

    dropped   types of declarations that only another server could run; they are logged
    choice    `auto` or `none`
    one_call  at most one call is returned
    """

    declarations: tuple[Object, ...] = ()
    dropped: tuple[str, ...] = ()
    choice: str = "auto"
    one_call: bool = False


def parse_tools(source: Object) -> Tools:
    """The tools of a Chat request; raises RequestRejected."""
    declarations: list[Object] = []
    dropped: list[str] = []
    names: set[str] = set()
    for n, entry in enumerate(array(source, "tools") or ()):
        where = f"tools[{n}]"
        if not isinstance(entry, dict):
            raise wrong(where, "an object")
        kind = text(entry, "type", f"{where}.type")
        if kind is None:
            raise wrong(f"{where}.type", "a string")
        if kind != "function":
            dropped.append(kind)
            continue
        declaration, name = _declaration(entry, where)
        if name in names:
            raise refusal("invalid_value", f"two tools have the name '{name}'", f"{where}.function.name")
        names.add(name)
        declarations.append(declaration)
    choice = _choice(source.get("tool_choice"))
    if boolean(source, "parallel_tool_calls") is False and declarations:
        raise needs_constraints("parallel_tool_calls", "parallel_tool_calls: false")
    if word(source, "tool_constraints", ("basic", "auto")) == "basic" and declarations:
        raise needs_constraints("tool_constraints", "tool_constraints: 'basic'")
    return Tools(tuple(declarations), tuple(dropped), choice)


def _declaration(entry: Object, where: str) -> tuple[Object, str]:
    function = mapping(entry, "function", f"{where}.function")
    if function is None:
        raise wrong(f"{where}.function", "an object")
    name = text(function, "name", f"{where}.function.name")
    if name is None or not _NAME.fullmatch(name):
        raise wrong(f"{where}.function.name", "1 to 64 of the characters A-Z, a-z, 0-9, _ and -")
    text(function, "description", f"{where}.function.description")
    parameters = mapping(function, "parameters", f"{where}.function.parameters")
    if boolean(function, "strict", f"{where}.function.strict"):
        raise needs_constraints(f"{where}.function.strict", "strict: true")
    if parameters is None:
        function = {**function, "parameters": {"type": "object", "properties": {}}}
    return {**entry, "function": function}, name


def _choice(choice: object) -> str:
    if choice is None or choice == "auto" or choice == {"type": "auto"}:
        return "auto"
    if choice == "none" or choice == {"type": "none"}:
        return "none"
    forced = choice == "required" or (
        isinstance(choice, dict) and choice.get("type") in ("required", "any", "function", "allowed_tools")
    )
    if forced:
        raise needs_constraints("tool_choice", "a tool_choice other than 'auto' and 'none'")
    raise refusal("tool_choice_not_supported", "tool_choice must be 'auto' or 'none'", "tool_choice")


def forced_choice(name: str | None, declared: Collection[str], dropped: Collection[str]) -> RequestRejected:
    """The refusal of a choice that forces a call, of the tool `name` or of any.

    declared, dropped   names of the tools that are declared, and names or types of those that were left out
    """
    if name in dropped or (dropped and not declared):
        message = "tool_choice forces a call of a tool that only another server could run"
        return refusal("tool_type_not_supported", message, "tool_choice")
    if name is not None and name not in declared:
        return refusal("invalid_value", f"tool_choice names '{name}', and there is no such tool", "tool_choice")
    if not declared:
        return refusal("invalid_value", "tool_choice forces a call, and there are no tools", "tool_choice")
    return needs_constraints("tool_choice", "a tool_choice other than 'auto' and 'none'")


def needs_constraints(param: str, what: str) -> RequestRejected:
    """The refusal of what only constrained output can give."""
    return refusal(
        "parameter_not_supported", f"{what} needs constrained output, which this version does not have", param
    )
