"""The bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``, field by field (serving spec, 9.1 and 9.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ninfer.api.asked import MESSAGES, Api, Asked
from ninfer.api.cache_control import check_cache_control
from ninfer.api.common_fields import TOKENS_MAX, check_graft, model_name, thinking_fields
from ninfer.api.constraints import answer_of, constraint_of, messages_format, structured_outputs
from ninfer.api.fields import Object, array, boolean, integer, mapping, number, refusal, text, word, wrong
from ninfer.api.messages_conversation import parse_messages_conversation
from ninfer.api.messages_tools import parse_messages_tools
from ninfer.api.presets import SamplingRequest
from ninfer.api.thinking import ThinkingRequest
from ninfer.constraints.constraint import Answer

EFFORTS = ("low", "medium", "high", "xhigh", "max")
BUDGET_MIN = 1024
# Each costs a step for every character of the answer; clients have a handful.
STOPS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest(Asked):
    """A Messages request; see :class:`Asked`."""

    api: ClassVar[Api] = MESSAGES


def parse_messages(source: Object) -> MessagesRequest:
    """Check every field; raises RequestRejected naming the first one at fault."""
    model = model_name(source)
    max_tokens = integer(source, "max_tokens", 1, TOKENS_MAX)
    if max_tokens is None:
        raise wrong("max_tokens", "an integer above 0")
    thinking, budget = _thinking(source, max_tokens)
    _check_unsupported(source)
    tools, stops, answer = parse_messages_tools(source), _stops(source), _answer(source)
    return MessagesRequest(
        model=model,
        conversation=parse_messages_conversation(source),
        tools=tools,
        max_tokens=max_tokens,
        sampling=SamplingRequest(
            temperature=number(source, "temperature", 0, 2),
            top_p=number(source, "top_p", 0, 1),
            top_k=integer(source, "top_k", -1),
        ),
        stops=stops,
        stops_in_reasoning=False,
        stream=boolean(source, "stream") or False,
        thinking=thinking,
        thinking_budget=budget,
        constraint=constraint_of(answer, tools, stops, stops_field="stop_sequences"),
    )


def parse_count(source: Object) -> MessagesRequest:
    """The same for a request that is only counted: its output limit and its sampling are not looked at."""
    model = model_name(source)
    thinking, budget = _thinking(source, None)
    _check_unsupported(source)
    _answer(source)
    return MessagesRequest(
        model=model,
        conversation=parse_messages_conversation(source),
        tools=parse_messages_tools(source),
        max_tokens=None,
        sampling=SamplingRequest(),
        thinking=thinking,
        thinking_budget=budget,
    )


def _answer(source: Object) -> Answer | None:
    return answer_of(messages_format(mapping(source, "output_config") or {}), structured_outputs(source))


def _stops(source: Object) -> tuple[str, ...]:
    stops = []
    sent = array(source, "stop_sequences") or ()
    if len(sent) > STOPS_MAX:
        raise wrong("stop_sequences", f"at most {STOPS_MAX} strings")
    for stop in sent:
        if not isinstance(stop, str):
            raise wrong("stop_sequences", "an array of strings")
        if stop:
            stops.append(stop)
    return tuple(stops)


def _thinking(source: Object, max_tokens: int | None) -> tuple[ThinkingRequest, int | None]:
    options = mapping(source, "output_config") or {}
    for name, value in options.items():
        if value is not None and name not in ("effort", "format"):
            param = f"output_config.{name}"
            raise refusal("output_config_option_not_supported", f"{param} is not supported", param)
    effort = word(options, "effort", EFFORTS, "output_config.effort")
    enable, budget = _switch(mapping(source, "thinking"), max_tokens)
    return thinking_fields(source, ("thinking", enable), ("output_config.effort", effort)), budget


def _switch(thinking: Object | None, max_tokens: int | None) -> tuple[bool | None, int | None]:
    if thinking is None:
        return None, None
    kind = text(thinking, "type", "thinking.type")
    if kind is None:
        raise wrong("thinking.type", "a string")
    if kind == "disabled":
        return False, None
    if text(thinking, "display", "thinking.display") == "omitted":
        raise refusal("parameter_not_supported", "thinking.display: 'omitted' is not supported", "thinking.display")
    if kind != "enabled":
        return True, None
    budget = thinking.get("budget_tokens")
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise wrong("thinking.budget_tokens", "an integer")
    if budget < BUDGET_MIN or (max_tokens is not None and budget >= max_tokens):
        raise wrong("thinking.budget_tokens", f"at least {BUDGET_MIN} and less than max_tokens")
    return True, budget


def _check_unsupported(source: Object) -> None:
    container = source.get("container")
    if container is not None and not isinstance(container, str | dict):
        raise wrong("container", "a string or an object")
    for name, asked in (("container", container), ("mcp_servers", array(source, "mcp_servers"))):
        if asked:
            raise refusal("parameter_not_supported", f"{name} is not supported", name)
    check_cache_control(source)
    mapping(source, "metadata")
    check_graft(source)
