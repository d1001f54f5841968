"""What a request asks of the form of its output: JSON, grammars, calls (serving spec, 6.1 and 7.2 to 7.4)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ninfer.api.fields import Object, boolean, mapping, refusal, text, wrong
from ninfer.api.tools import Tools, name_of
from ninfer.constraints.calls import Tool
from ninfer.constraints.constraint import (
    Answer,
    Calls,
    ChoiceAnswer,
    Constraint,
    GrammarAnswer,
    JsonAnswer,
    RegexAnswer,
)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONFLICT = "constraint_conflict"
_KINDS = ("grammar", "choice", "regex")


def openai_format(source: Object, where: str, inner: str | None) -> JsonAnswer | None:
    """The ``response_format`` of Chat or the ``text.format`` of Responses.

    source   the object that holds it, in its last member of `where`
    inner    the member of it that holds the schema and its name; None if it holds them itself
    """
    output = mapping(source, where.rpartition(".")[2], where)
    if output is None:
        return None
    match text(output, "type", f"{where}.type"):
        case "text":
            return None
        case "json_object":
            return JsonAnswer({"type": "object"}, where)
        case "json_schema":
            place = where if inner is None else f"{where}.{inner}"
            holder = output if inner is None else mapping(output, inner, place)
            if holder is None:
                raise wrong(place, "an object")
            return _schema(holder, place)
    message = f"{where}.type must be 'text', 'json_object' or 'json_schema'"
    raise refusal("response_format_not_supported", message, f"{where}.type")


def messages_format(options: Object) -> JsonAnswer | None:
    """The ``output_config.format`` of Messages."""
    where = "output_config.format"
    output = mapping(options, "format", where)
    if output is None:
        return None
    if text(output, "type", f"{where}.type") != "json_schema":
        raise refusal("response_format_not_supported", f"{where}.type must be 'json_schema'", f"{where}.type")
    return _schema(output, where)


def _schema(holder: Object, place: str) -> JsonAnswer:
    name = text(holder, "name", f"{place}.name")
    if name is not None and not _NAME.fullmatch(name):
        raise wrong(f"{place}.name", "1 to 64 of the characters A-Z, a-z, 0-9, _ and -")
    text(holder, "description", f"{place}.description")
    boolean(holder, "strict", f"{place}.strict")
    schema = holder.get("schema")
    if not isinstance(schema, dict | bool):
        raise refusal("invalid_json_schema", f"{place}.schema must be an object or a boolean", f"{place}.schema")
    return JsonAnswer(schema, f"{place}.schema")


def structured_outputs(source: Object) -> Answer | None:
    """The ``structured_outputs`` of every protocol."""
    where = "structured_outputs"
    options = mapping(source, where)
    if options is None:
        return None
    given = [name for name, value in options.items() if value is not None]
    for name in given:
        if name not in _KINDS:
            raise refusal("parameter_not_supported", f"{where}.{name} is not supported", f"{where}.{name}")
    if len(given) > 1:
        raise refusal(_CONFLICT, f"{where} must have only one of {', '.join(_KINDS)}", where)
    if not given:
        raise wrong(where, f"an object with one of {', '.join(_KINDS)}")
    kind, value, place = given[0], options[given[0]], f"{where}.{given[0]}"
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(option, str) for option in value):
            raise refusal("invalid_choice", f"{place} must be a non-empty array of strings", place)
        return ChoiceAnswer(tuple(dict.fromkeys(value)), place)
    if not isinstance(value, str):
        raise wrong(place, "a string")
    return GrammarAnswer(value, place) if kind == "grammar" else RegexAnswer(value, place)


def answer_of(json: JsonAnswer | None, other: Answer | None) -> Answer | None:
    """The one constraint of the answer."""
    if json is not None and other is not None:
        message = f"{json.where} and structured_outputs both constrain the answer; only one may"
        raise refusal(_CONFLICT, message, "structured_outputs")
    return json if json is not None else other


def constraint_of(
    answer: Answer | None, tools: Tools, stops: Sequence[str], *, stops_field: str, ignore_eos: bool = False
) -> Constraint | None:
    """What the output is held to; None for one that is free. Raises RequestRejected for what does not go together."""
    callable_tools = tools.callable
    if answer is not None and callable_tools and not isinstance(answer, JsonAnswer):
        message = f"{answer.where} constrains the whole answer, so no tool can be called; set tool_choice to 'none'"
        raise refusal(_CONFLICT, message, "structured_outputs")
    names = [name_of(tool) for tool in callable_tools]
    forced = tools.choice == "required"
    asks = forced or tools.one_call or tools.structure == "basic" or not tools.strict.isdisjoint(names)
    if not callable_tools or not (asks or answer is not None):
        calls = None
    else:
        calls = Calls(tuple(_tool(tool, tools) for tool in callable_tools), forced, tools.one_call)
    if answer is None and calls is None:
        return None
    for field, given in ((stops_field, bool(stops)), ("ignore_eos", ignore_eos)):
        if given:
            raise refusal(_CONFLICT, f"{field} cannot be combined with a constraint of the output", field)
    return Constraint(answer, calls)


def _tool(declaration: Object, tools: Tools) -> Tool:
    name, function = name_of(declaration), declaration["function"]
    assert isinstance(function, dict)
    return Tool(name, function["parameters"], strict=name in tools.strict, where=tools.places[name])
