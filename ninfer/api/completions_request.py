"""The body of ``POST /v1/completions``, field by field: text in, text out."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.api.common_fields import TOKENS_MAX, model_name
from ninfer.api.fields import Object, boolean, integer, mapping, refusal, text, wrong
from ninfer.api.logprobs import COMPLETION_ALTERNATIVES_MAX
from ninfer.api.openai_fields import (
    check_logit_bias,
    check_repetition_penalty,
    choices,
    sampling_fields,
    stop_strings,
)
from ninfer.api.presets import SamplingRequest

MAX_TOKENS_DEFAULT = 16  # of the protocol


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request that is well-formed and asks for nothing this build lacks.

    prompt     text in which control spellings stand for control tokens, or token ids; not empty
    choices    how many answers are wanted
    logprobs   how many alternatives are told of beside each token; None: nothing is told of it
    """

    model: str
    prompt: str | tuple[int, ...]
    max_tokens: int
    says_max_tokens: bool
    sampling: SamplingRequest
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    ignore_eos: bool
    logprobs: int | None = None
    choices: int = 1


def parse_completion(source: Object) -> CompletionRequest:
    """Check every field; raises RequestRejected naming the first one at fault. Unknown fields are ignored."""
    model = model_name(source)
    prompt = _prompt(source.get("prompt"))
    _check_unsupported(source)
    text(source, "user")
    options = mapping(source, "stream_options") or {}
    max_tokens = integer(source, "max_tokens", 0, TOKENS_MAX)
    return CompletionRequest(
        model=model,
        prompt=prompt,
        max_tokens=max_tokens if max_tokens is not None else MAX_TOKENS_DEFAULT,
        says_max_tokens=max_tokens is not None,
        sampling=sampling_fields(source),
        stops=stop_strings(source),
        stream=boolean(source, "stream") or False,
        include_usage=boolean(options, "include_usage", "stream_options.include_usage") or False,
        ignore_eos=boolean(source, "ignore_eos") or False,
        logprobs=integer(source, "logprobs", 0, COMPLETION_ALTERNATIVES_MAX),
        choices=choices(source),
    )


def _prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise refusal("parameter_not_supported", "prompt must be one text, not several", "prompt")
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return tuple(value)
    raise wrong("prompt", "a non-empty string or array of token ids")


def _check_unsupported(source: Object) -> None:
    if integer(source, "best_of", 1) not in (None, 1, source.get("n")):
        raise refusal("parameter_not_supported", "best_of must be n", "best_of")
    if text(source, "suffix"):
        raise refusal("parameter_not_supported", "suffix is not supported", "suffix")
    if boolean(source, "echo"):
        raise refusal("parameter_not_supported", "echo must be false", "echo")
    check_logit_bias(source)
    check_repetition_penalty(source)
