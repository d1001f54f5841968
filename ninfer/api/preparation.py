"""From a checked Chat request to a :class:`GenerationRequest`: render, tokenise, measure. Runs on a worker thread."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.actors.messages import GenerationRequest
from ninfer.api.chat_request import ChatRequest
from ninfer.api.fields import refusal
from ninfer.api.presets import Presets, resolve_sampling
from ninfer.api.thinking import Thinking, resolve_thinking
from ninfer.config import GenerationSettings
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """The model as the HTTP side knows it.

    public_id            what clients call it
    max_context_tokens   longest sequence, prompt and output together
    """

    public_id: str
    max_context_tokens: int
    tokenizer: Tokenizer
    template: ChatTemplate
    presets: Presets


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """Most tokens to generate, and whether the client or the server said so."""

    tokens: int
    source: str


def resolve_request_thinking(request: ChatRequest, model: Model, server: GenerationSettings) -> Thinking:
    """How the request thinks; refuses a prefill that cannot be continued with it."""
    thinking = resolve_thinking(request.thinking, server, model.template.traits)
    conversation = request.conversation
    if conversation.prefill is not None:
        reason = conversation.prefill_refusal
        if reason is None and thinking.on:
            reason = "an assistant message at the end is continued only with thinking disabled"
        if reason is not None:
            raise refusal("assistant_prefill_not_supported", reason, "messages")
    return thinking


def output_limit(asked: int | None, server: GenerationSettings, max_context_tokens: int) -> OutputLimit:
    """The client's limit or the default, under the server's cap. `auto` is more than any context can hold."""
    default = server.default_max_tokens if server.default_max_tokens is not None else max_context_tokens
    tokens = asked if asked is not None else default
    if server.max_output_tokens is not None:
        tokens = min(tokens, server.max_output_tokens)
    return OutputLimit(tokens, "client" if asked is not None else "server_default")


def prepare_chat(
    request: ChatRequest, thinking: Thinking, model: Model, server: GenerationSettings
) -> GenerationRequest:
    """Render and tokenise; raises RequestRejected (`invalid_prompt`, `context_length_exceeded`)."""
    conversation = request.conversation
    tools: list[Mapping[str, object]] = list(request.tools.declarations)
    prompt = model.template.render(
        conversation.messages,
        tools=tools or None,
        enable_thinking=thinking.enable,
        reasoning_effort=thinking.level,
        preserve_thinking=thinking.preserve,
    )
    if conversation.prefill:
        prompt = prompt.continued(conversation.prefill)
    prompt_ids = tuple(model.tokenizer.encode_prompt(prompt))
    if not prompt_ids:
        raise refusal("invalid_prompt", "the chat template made nothing of the messages", "messages")
    if len(prompt_ids) > model.max_context_tokens:
        message = (
            f"This model's maximum context length is {model.max_context_tokens} tokens, "
            f"and the messages came to {len(prompt_ids)} tokens."
        )
        raise refusal("context_length_exceeded", message, "messages")
    preset = model.presets.thinking if thinking.on else model.presets.non_thinking
    return GenerationRequest(
        prompt_ids=prompt_ids,
        opens_think=prompt.opens_think,
        sampling=resolve_sampling(request.sampling, server, preset, secrets.randbits(64)),
        max_tokens=output_limit(request.max_tokens, server, model.max_context_tokens).tokens,
        stops=request.stops,
        stop_ids=() if request.ignore_eos else tuple(sorted(model.tokenizer.stop_ids)),
        progress=request.return_progress,
    )
