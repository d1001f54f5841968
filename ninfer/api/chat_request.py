"""The body of ``POST /v1/chat/completions``, field by field (serving spec, 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ninfer.api.asked import CHAT, PRIORITY_MAX, Api, Asked
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
from ninfer.api.conversation import parse_conversation
from ninfer.api.fields import Object, array, boolean, integer, mapping, refusal, text, word, wrong
from ninfer.api.logprobs import ALTERNATIVES_MAX
from ninfer.api.openai_fields import (
    check_logit_bias,
    check_repetition_penalty,
    choices,
    sampling_fields,
    stop_strings,
)
from ninfer.api.thinking import EFFORT_WORDS
from ninfer.api.tools import parse_tools

_GUIDED = ("grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(Asked):
    """A Chat request; see :class:`Asked`. `choices` is how many answers are wanted."""

    api: ClassVar[Api] = CHAT

    include_usage: bool
    timings_per_token: bool
    choices: int = 1


def parse_chat(source: Object) -> ChatRequest:
    """Check every field; raises RequestRejected naming the first one at fault."""
    model = model_name(source)
    conversation = parse_conversation(source)
    _check_unsupported(source)
    _check_hints(source)
    options = mapping(source, "stream_options") or {}
    limits = [integer(source, name, 0, TOKENS_MAX) for name in ("max_completion_tokens", "max_tokens")]
    answer = answer_of(openai_format(source, "response_format", "json_schema"), structured_outputs(source))
    tools, stops, ignore_eos = parse_tools(source), stop_strings(source), boolean(source, "ignore_eos") or False
    return ChatRequest(
        model=model,
        conversation=conversation,
        tools=tools,
        max_tokens=limits[0] if limits[0] is not None else limits[1],
        sampling=sampling_fields(source),
        stops=stops,
        stream=boolean(source, "stream") or False,
        include_usage=boolean(options, "include_usage", "stream_options.include_usage") or False,
        thinking=thinking_fields(
            source,
            ("enable_thinking", boolean(source, "enable_thinking")),
            ("reasoning_effort", word(source, "reasoning_effort", EFFORT_WORDS)),
        ),
        ignore_eos=ignore_eos,
        timings_per_token=boolean(source, "timings_per_token") or False,
        return_progress=boolean(source, "return_progress") or False,
        priority=integer(source, "priority", -PRIORITY_MAX, PRIORITY_MAX) or 0,
        cache_key=text(source, "prompt_cache_key"),
        constraint=constraint_of(answer, tools, stops, stops_field="stop", ignore_eos=ignore_eos),
        thinking_budget=thinking_budget(source),
        logprobs=_logprobs(source),
        choices=choices(source),
    )


def _logprobs(source: Object) -> int | None:
    """How many alternatives are told of beside each token; None for nothing at all."""
    count = integer(source, "top_logprobs", 0, ALTERNATIVES_MAX) or 0
    if boolean(source, "logprobs"):
        return count
    if count:
        raise refusal("invalid_value", "top_logprobs needs logprobs to be true", "top_logprobs")
    return None


def _check_unsupported(source: Object) -> None:
    """Fields of class X: what they ask for is refused, their harmless values pass."""
    check_logit_bias(source)
    for modality in array(source, "modalities") or ():
        if not isinstance(modality, str):
            raise wrong("modalities", "an array of strings")
        if modality != "text":
            raise refusal("modality_not_supported", f"output of modality '{modality}' is not supported", "modalities")
    if boolean(source, "store"):
        raise refusal("store_not_supported", "store must be false", "store")
    if array(source, "functions"):
        raise refusal("legacy_tools_not_supported", "functions is not supported; use tools", "functions")
    if source.get("function_call") not in (None, "none", "auto"):
        message = "function_call must be 'none' or 'auto'; use tools and tool_choice"
        raise refusal("legacy_tools_not_supported", message, "function_call")
    for name, code in (("web_search_options", "web_search_not_supported"), ("moderation", "moderation_not_supported")):
        if source.get(name) is not None:
            raise refusal(code, f"{name} is not supported", name)
    check_repetition_penalty(source)
    for name, value in (mapping(source, "mm_processor_kwargs") or {}).items():
        if value is not None:
            param = f"mm_processor_kwargs.{name}"
            raise refusal("mm_processor_kwargs_not_supported", f"{param} is not supported", param)
    for name in _GUIDED:
        if source.get(name) is not None and not (name == "grammar" and source[name] == ""):
            message = f"{name} is not supported; the field for constraints is structured_outputs"
            raise refusal("parameter_not_supported", message, name)
    check_graft(source)


def _check_hints(source: Object) -> None:
    """Fields without effect here: only their types count."""
    for name in ("user", "safety_identifier", "service_tier", "verbosity"):
        text(source, name)
    for name in ("audio", "prediction"):
        mapping(source, name)
    metadata(source)
    check_cache_hints(source)
