"""From a checked request to a :class:`GenerationRequest`: render, tokenise, measure. Runs on a worker thread."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.actors.messages import GenerationRequest
from ninfer.api.asked import Asked
from ninfer.api.fields import refusal
from ninfer.api.presets import Preset, Presets, resolve_sampling
from ninfer.api.thinking import Thinking, resolve_thinking
from ninfer.config import GenerationSettings
from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import Constraint
from ninfer.constraints.enforced import Enforced, enforce
from ninfer.constraints.matcher import Reading
from ninfer.text.boundaries import marks_of, turns_of
from ninfer.text.prompt import RenderedPrompt
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer
from ninfer.text.tool_values import DeclaredTools


@dataclass(frozen=True, slots=True)
class Model:
    """The model as the HTTP side knows it.

    public_id            what clients call it
    max_context_tokens   longest sequence, prompt and output together
    compiler             of constraints, for this tokenizer
    enforces             whether the engine draws under masks; constraints are checked in any case
    """

    public_id: str
    max_context_tokens: int
    tokenizer: Tokenizer
    template: ChatTemplate
    presets: Presets
    compiler: Compiler
    enforces: bool


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """Most tokens to generate, and whether the client or the server said so."""

    tokens: int
    source: str


def resolve_request_thinking(asked: Asked, model: Model, server: GenerationSettings) -> Thinking:
    """How the request thinks; refuses a prefill that cannot be continued with it."""
    thinking = resolve_thinking(asked.thinking, server, model.template.traits)
    conversation = asked.conversation
    if conversation.prefill is not None:
        reason = conversation.prefill_refusal
        if reason is None and thinking.on:
            reason = "an assistant message at the end is continued only with thinking disabled"
        if reason is not None:
            raise refusal("assistant_prefill_not_supported", reason, asked.api.prompt_field)
    return thinking


def output_limit(asked: int | None, server: GenerationSettings, max_context_tokens: int) -> OutputLimit:
    """The client's limit or the default, under the server's cap. `auto` is more than any context can hold."""
    default = server.default_max_tokens if server.default_max_tokens is not None else max_context_tokens
    tokens = asked if asked is not None else default
    if server.max_output_tokens is not None:
        tokens = min(tokens, server.max_output_tokens)
    return OutputLimit(tokens, "client" if asked is not None else "server_default")


def default_preset(model: Model, server: GenerationSettings) -> Preset:
    """The preset of a request that says nothing of thinking."""
    thinks = server.thinking if server.thinking is not None else model.template.traits.thinks_by_default
    return model.presets.thinking if thinks else model.presets.non_thinking


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, its ids, and for each of its segments the number of ids in front."""

    prompt: RenderedPrompt
    ids: tuple[int, ...]
    starts: tuple[int, ...]


def render(asked: Asked, thinking: Thinking, model: Model) -> Rendered:
    """A prompt of any length; raises RequestRejected (`invalid_prompt`)."""
    conversation = asked.conversation
    tools: list[Mapping[str, object]] = list(asked.tools.declarations)
    prompt = model.template.render(
        conversation.messages,
        tools=tools or None,
        enable_thinking=thinking.enable,
        reasoning_effort=thinking.level,
        preserve_thinking=thinking.preserve,
    )
    if conversation.prefill:
        prompt = prompt.continued(conversation.prefill)
    ids, starts = model.tokenizer.encode_segments(prompt)
    if not ids:
        field = asked.api.prompt_field
        raise refusal("invalid_prompt", f"the chat template made nothing of the {field}", field)
    return Rendered(prompt, tuple(ids), tuple(starts))


def _enforced(asked: Asked, model: Model, reading: Reading) -> Enforced | None:
    """What the output is held to; raises RequestRejected for what cannot be enforced."""
    constraint = asked.constraint
    if constraint is None:
        if reading.thinking_budget is None or not reading.opens_think:
            return None  # else the budget is a constraint of the thinking
        constraint = Constraint()
    enforced = enforce(model.compiler.compile(constraint), reading)
    return enforced if model.enforces else None


def prepare(asked: Asked, thinking: Thinking, model: Model, server: GenerationSettings) -> GenerationRequest:
    """Render, tokenise, compile what the output is held to.

    Raises RequestRejected (`invalid_prompt`, `context_length_exceeded`, the codes of constraints).
    """
    rendered = render(asked, thinking, model)
    prompt, prompt_ids = rendered.prompt, rendered.ids
    if len(prompt_ids) > model.max_context_tokens:
        message = asked.api.too_long.format(tokens=len(prompt_ids), ceiling=model.max_context_tokens)
        raise refusal("context_length_exceeded", message, asked.api.prompt_field)
    preset = model.presets.thinking if thinking.on else model.presets.non_thinking
    max_tokens = output_limit(asked.max_tokens, server, model.max_context_tokens).tokens
    room = model.max_context_tokens - len(prompt_ids)
    prefill = asked.conversation.prefill or ""
    reading = Reading(prompt.opens_think, prefill, asked.thinking_budget, min(max_tokens, room))
    return GenerationRequest(
        prompt_ids=prompt_ids,
        opens_think=prompt.opens_think,
        sampling=resolve_sampling(asked.sampling, server, preset, secrets.randbits(64)),
        max_tokens=max_tokens,
        stops=asked.stops,
        stop_ids=() if asked.ignore_eos else tuple(sorted(model.tokenizer.stop_ids)),
        progress=asked.return_progress,
        stops_in_reasoning=asked.stops_in_reasoning,
        marks=marks_of(turns_of(prompt, rendered.starts), len(prompt_ids), server.checkpoint_policy),
        priority=asked.priority,
        tools=DeclaredTools(asked.tools.callable) if asked.tools.callable else None,
        tolerant_tool_calls=server.tolerant_tool_calls,
        enforced=_enforced(asked, model, reading),
        logprobs=asked.logprobs,
    )
