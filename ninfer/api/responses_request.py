"""The bodies of ``/v1/responses`` and ``/v1/responses/input_tokens``, field by field (serving spec, 8.1 and 8.7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ninfer.api.asked import PRIORITY_MAX, RESPONSES, Api, Asked
from ninfer.api.common_fields import (
    TOKENS_MAX,
    check_cache_hints,
    check_graft,
    metadata,
    model_name,
    thinking_budget,
    thinking_fields,
)
from ninfer.api.constraints import answer_of, constraint_of, openai_format, structured_outputs
from ninfer.api.fields import Object, array, boolean, integer, mapping, number, refusal, text, word, wrong
from ninfer.api.logprobs import ALTERNATIVES_MAX
from ninfer.api.presets import SamplingRequest
from ninfer.api.responses_conversation import conversation_of, has_query
from ninfer.api.responses_items import Item, parse_items
from ninfer.api.responses_store import Record, ResponseNotFound, ResponseStore
from ninfer.api.responses_tools import ResponsesTools, parse_responses_tools
from ninfer.api.thinking import EFFORT_WORDS, ThinkingRequest
from ninfer.errors import RequestRejected

# fmt: off
_COUNTED = frozenset({
    "model", "input", "instructions", "previous_response_id", "reasoning", "tools", "tool_choice", "text",
    "truncation", "chat_template_kwargs", "preserve_thinking", "graft",
})
_CREATED = _COUNTED | {
    "store", "stream", "max_output_tokens", "temperature", "top_p", "structured_outputs", "parallel_tool_calls",
    "tool_constraints", "max_tool_calls", "thinking_budget", "return_progress", "priority", "metadata",
    "client_metadata",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "user", "service_tier",
    "background", "top_logprobs", "include", "stream_options", "conversation", "prompt", "context_management",
    "moderation",
}
# fmt: on
_LOGPROBS = "message.output_text.logprobs"
_SUMMARIES = ("auto", "concise", "detailed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest(Asked):
    """A Responses request; see :class:`Asked`.

    input_items          what this request sent
    items                that and all that it continues
    preserve_is_changed  whether old reasoning is treated otherwise than in the response that is continued
    declared             the tools with what their names stand for
    text_format          the form of the answer as the client said it
    """

    api: ClassVar[Api] = RESPONSES

    instructions: str | None
    previous_response_id: str | None
    input_items: tuple[Item, ...]
    items: tuple[Item, ...]
    preserve_is_changed: bool
    declared: ResponsesTools
    store: bool
    metadata: Mapping[str, str]
    text_format: Object


class PreviousResponseNotFound(RequestRejected):
    """The response to continue was never stored, or is not stored any more."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response '{response_id}' is not stored.", param="previous_response_id")


def parse_responses(source: Object, store: ResponseStore) -> ResponsesRequest:
    """Check every field; raises RequestRejected naming the first one at fault."""
    return _parse(source, store, _CREATED)


def parse_input_tokens(source: Object, store: ResponseStore) -> ResponsesRequest:
    """The same for a request that is only counted, which has fewer fields."""
    return _parse(source, store, _COUNTED)


def _parse(source: Object, store: ResponseStore, known: Collection[str]) -> ResponsesRequest:
    model = model_name(source)
    for name, value in source.items():
        if value is not None and name not in known:
            raise refusal("unknown_parameter", f"{name} is not a parameter of this request", name)
    _check_unsupported(source)
    _check_hints(source)
    instructions = text(source, "instructions")
    previous_response_id = text(source, "previous_response_id")
    parent = _parent(previous_response_id, store)
    input_items = _input(source, store, parent)
    items = (*parent.context, *parent.output, *input_items) if parent is not None else input_items
    thinking = _thinking(source)
    is_changed = parent is not None and thinking.preserve not in (None, parent.preserve)
    if parent is not None and thinking.preserve is None:
        thinking = replace(thinking, preserve=parent.preserve)
    declared = parse_responses_tools(source)
    options = mapping(source, "text") or {}
    json = openai_format(options, "text.format", None)
    return ResponsesRequest(
        model=model,
        conversation=conversation_of(instructions, items, len(input_items)),
        tools=declared.tools,
        max_tokens=integer(source, "max_output_tokens", 0, TOKENS_MAX),
        sampling=SamplingRequest(
            temperature=number(source, "temperature", 0, 2),
            top_p=number(source, "top_p", 0, 1),
        ),
        stream=boolean(source, "stream") or False,
        thinking=thinking,
        return_progress=boolean(source, "return_progress") or False,
        priority=integer(source, "priority", -PRIORITY_MAX, PRIORITY_MAX) or 0,
        cache_key=text(source, "prompt_cache_key"),
        instructions=instructions,
        previous_response_id=previous_response_id,
        input_items=input_items,
        items=items,
        preserve_is_changed=is_changed,
        constraint=constraint_of(answer_of(json, structured_outputs(source)), declared.tools, (), stops_field="stop"),
        thinking_budget=thinking_budget(source),
        logprobs=_logprobs(source),
        declared=declared,
        store=boolean(source, "store") is not False,
        metadata=metadata(source),
        text_format=mapping(options, "format", "text.format") or {"type": "text"},
    )


def _logprobs(source: Object) -> int | None:
    """How many alternatives are told of beside each token, if it is said or the others are asked for."""
    count = integer(source, "top_logprobs", 0, ALTERNATIVES_MAX) or 0
    return count if count or _LOGPROBS in (array(source, "include") or ()) else None


def _parent(response_id: str | None, store: ResponseStore) -> Record | None:
    if response_id is None:
        return None
    try:
        return store.get(response_id)
    except ResponseNotFound:
        raise PreviousResponseNotFound(response_id) from None


def _input(source: Object, store: ResponseStore, parent: Record | None) -> tuple[Item, ...]:
    sent = source.get("input")
    if isinstance(sent, str):
        sent = [{"role": "user", "content": sent}] if sent else []
    if sent is not None and not isinstance(sent, list):
        raise wrong("input", "a string or an array of items")
    if not sent and (parent is None or not has_query(parent.context)):
        raise wrong("input", "a non-empty string or array")
    return parse_items(sent or (), store.find_item)


def _thinking(source: Object) -> ThinkingRequest:
    options = mapping(source, "reasoning") or {}
    for name, value in options.items():
        if value is not None and name not in ("effort", "summary", "generate_summary"):
            param = f"reasoning.{name}"
            raise refusal("reasoning_option_not_supported", f"{param} is not supported", param)
    summary = word(options, "summary", _SUMMARIES, "reasoning.summary")
    older = word(options, "generate_summary", _SUMMARIES, "reasoning.generate_summary")
    if summary is not None and older is not None and summary != older:
        message = "reasoning.summary and reasoning.generate_summary disagree"
        raise refusal("invalid_value", message, "reasoning.generate_summary")
    effort = word(options, "effort", EFFORT_WORDS, "reasoning.effort")
    return thinking_fields(source, ("enable_thinking", None), ("reasoning.effort", effort))


def _check_unsupported(source: Object) -> None:
    """Fields of class X: what they ask for is refused, their harmless values pass."""
    _check_text(mapping(source, "text") or {})
    check_graft(source)
    tier = text(source, "service_tier")
    if tier not in (None, "auto", "default"):
        raise refusal("service_tier_not_supported", "service_tier must be 'auto' or 'default'", "service_tier")
    if boolean(source, "background"):
        raise refusal("background_not_supported", "background must be false", "background")
    if text(source, "truncation") not in (None, "disabled"):
        raise refusal("truncation_not_supported", "truncation must be 'disabled'", "truncation")
    for included in array(source, "include") or ():
        if included not in ("reasoning.encrypted_content", _LOGPROBS):
            raise refusal("include_not_supported", f"include: '{included}' is not supported", "include")
    options = mapping(source, "stream_options") or {}
    boolean(options, "include_obfuscation", "stream_options.include_obfuscation")
    for name, value in options.items():
        if value is not None and name != "include_obfuscation":
            param = f"stream_options.{name}"
            raise refusal("stream_option_not_supported", f"{param} is not supported", param)
    for name in ("conversation", "prompt", "context_management", "moderation"):
        if source.get(name) is not None:
            raise refusal("parameter_not_supported", f"{name} is not supported", name)


def _check_text(options: Object) -> None:
    for name, value in options.items():
        if value is not None and name not in ("format", "verbosity"):
            param = f"text.{name}"
            raise refusal("text_option_not_supported", f"{param} is not supported", param)
    word(options, "verbosity", ("low", "medium", "high"), "text.verbosity")


def _check_hints(source: Object) -> None:
    """Fields without effect here: only their types count."""
    integer(source, "max_tool_calls", 0)
    mapping(source, "client_metadata")
    for name in ("safety_identifier", "user"):
        text(source, name)
    check_cache_hints(source)
