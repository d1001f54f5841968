"""Tool declarations and the choice among them (serving spec, 7.1 and 7.2).

Declarations are rendered into the prompt, and calls are read out of what the model writes. What a request asks of
their form is kept here and becomes a constraint of the output elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ninfer.api.fields import Object, array, boolean, mapping, refusal, text, word, wrong

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tools:
    """Declarations in the nested Chat form, member order kept.

    dropped   types of declarations that only another server could run; they are logged
    choice    `auto`, `none` or `required`
    one_call  there may be at most one call
    allowed   names that may be called; None for all
    strict    names of the tools whose arguments must satisfy their schema
    places    the request field that holds the schema, by name
    structure the ``tool_constraints`` of the request
    """

    declarations: tuple[Object, ...] = ()
    dropped: tuple[str, ...] = ()
    choice: str = "auto"
    one_call: bool = False
    allowed: frozenset[str] | None = None
    strict: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict)
    structure: str | None = None

    @property
    def callable(self) -> tuple[Object, ...]:
        """The declarations of the tools that this answer may call."""
        if self.choice == "none":
            return ()
        return tuple(tool for tool in self.declarations if self.allowed is None or name_of(tool) in self.allowed)


def name_of(declaration: Object) -> str:
    """The name of a declared tool."""
    function = declaration["function"]
    assert isinstance(function, dict)
    return str(function["name"])


def parse_tools(source: Object) -> Tools:
    """The tools of a Chat request; raises RequestRejected."""
    declarations: list[Object] = []
    dropped: list[str] = []
    places: dict[str, str] = {}
    strict: set[str] = set()
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
        declaration, name, is_strict = _declaration(entry, where)
        if name in places:
            raise refusal("invalid_value", f"two tools have the name '{name}'", f"{where}.function.name")
        places[name] = f"{where}.function.parameters"
        if is_strict:
            strict.add(name)
        declarations.append(declaration)
    choice = _choice(source.get("tool_choice"), places, dropped)
    return Tools(
        tuple(declarations),
        tuple(dropped),
        choice.kind,
        choice.is_one or boolean(source, "parallel_tool_calls") is False,
        choice.allowed,
        frozenset(strict),
        places,
        structure_of(source),
    )


def structure_of(source: Object) -> str | None:
    """The ``tool_constraints`` of a request."""
    return word(source, "tool_constraints", ("basic", "auto"))


def _declaration(entry: Object, where: str) -> tuple[Object, str, bool]:
    function = mapping(entry, "function", f"{where}.function")
    if function is None:
        raise wrong(f"{where}.function", "an object")
    name = text(function, "name", f"{where}.function.name")
    if name is None or not _NAME.fullmatch(name):
        raise wrong(f"{where}.function.name", "1 to 64 of the characters A-Z, a-z, 0-9, _ and -")
    text(function, "description", f"{where}.function.description")
    parameters = mapping(function, "parameters", f"{where}.function.parameters")
    is_strict = boolean(function, "strict", f"{where}.function.strict") or False
    if parameters is None:
        function = {**function, "parameters": {"type": "object", "properties": {}}}
    return {**entry, "function": function}, name, is_strict


@dataclass(frozen=True, slots=True)
class Choice:
    """A ``tool_choice``: `kind` as :attr:`Tools.choice`, the names it leaves, whether it asks for exactly one call."""

    kind: str
    allowed: frozenset[str] | None = None
    is_one: bool = False


AUTO, NONE = Choice("auto"), Choice("none")


def _choice(choice: object, declared: Collection[str], dropped: Collection[str]) -> Choice:
    source: Object = choice if isinstance(choice, dict) else {"type": choice if choice is not None else "auto"}
    kind = source.get("type")
    match kind:
        case "auto":
            return AUTO
        case "none":
            return NONE
        case "required" | "any":
            return forced_choice(None, declared, dropped)
        case "function":
            return forced_choice(_named(source, "tool_choice"), declared, dropped, is_one=True)
        case "allowed_tools":
            inner = mapping(source, "allowed_tools", "tool_choice.allowed_tools")
            if inner is None:
                raise wrong("tool_choice.allowed_tools", "an object")
            where = "tool_choice.allowed_tools"
            names = [
                _named(entry, f"{where}.tools[{n}]") if entry.get("type") == "function" else str(entry.get("type"))
                for n, entry in enumerate(_entries(inner, where))
            ]
            return allowed_names(text(inner, "mode", f"{where}.mode"), names, declared, dropped)
    if isinstance(kind, str) and kind in dropped:
        return forced_choice(kind, declared, dropped)
    message = "tool_choice must be 'auto', 'none', 'required', a function or allowed_tools"
    raise refusal("tool_choice_not_supported", message, "tool_choice")


def _entries(source: Object, where: str) -> list[Object]:
    entries = array(source, "tools", f"{where}.tools")
    if entries is None:
        raise wrong(f"{where}.tools", "an array")
    objects: list[Object] = [entry for entry in entries if isinstance(entry, dict)]
    if len(objects) != len(entries):
        raise wrong(f"{where}.tools", "an array of objects")
    return objects


def _named(source: Object, where: str) -> str:
    function = mapping(source, "function", f"{where}.function")
    name = text(function, "name", f"{where}.function.name") if function is not None else None
    if not name:
        raise wrong(f"{where}.function.name", "a non-empty string")
    return name


def allowed_names(
    mode: str | None, names: Collection[str], declared: Collection[str], dropped: Collection[str]
) -> Choice:
    """The choice that ``allowed_tools`` makes; raises RequestRejected.

    names     of the tools that the choice lists, or the types of those that only another server could run
    declared, dropped   as for :func:`forced_choice`
    """
    if mode not in ("auto", "required"):
        raise refusal("invalid_value", "the mode of allowed_tools must be 'auto' or 'required'", "tool_choice")
    for name in names:
        if name not in declared and name not in dropped:
            raise refusal("invalid_value", f"tool_choice names '{name}', and there is no such tool", "tool_choice")
    allowed = frozenset(names).intersection(declared)
    if mode == "required":
        return Choice(forced_choice(None, allowed, dropped).kind, allowed)
    return Choice("auto", allowed)


def forced_choice(
    name: str | None, declared: Collection[str], dropped: Collection[str], *, is_one: bool = False
) -> Choice:
    """The choice that forces a call, of the tool `name` or of any; raises RequestRejected.

    declared, dropped   names of the tools that are declared, and names or types of those that were left out
    is_one              whether there is to be exactly one call
    """
    if name in dropped or (dropped and not declared):
        message = "tool_choice forces a call of a tool that only another server could run"
        raise refusal("tool_type_not_supported", message, "tool_choice")
    if name is not None and name not in declared:
        raise refusal("invalid_value", f"tool_choice names '{name}', and there is no such tool", "tool_choice")
    if not declared:
        raise refusal("invalid_value", "tool_choice forces a call, and there are no tools", "tool_choice")
    return Choice("required", None if name is None else frozenset((name,)), is_one)
