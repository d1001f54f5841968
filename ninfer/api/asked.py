"""What a generation request comes down to, whichever protocol it was written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ninfer.api.conversation import Conversation
from ninfer.api.presets import SamplingRequest
from ninfer.api.thinking import ThinkingRequest
from ninfer.api.tools import Tools
from ninfer.constraints.constraint import Constraint


@dataclass(frozen=True, slots=True)
class Api:
    """Where the protocols differ before an answer exists.

    name           as the request log has it
    prompt_field   the field that holds the conversation
    any_model      whether every model name is taken
    too_long       what is said of a prompt beyond the context, with `{tokens}` and `{ceiling}`
    """

    name: str
    prompt_field: str
    any_model: bool
    too_long: str


_OPENAI_TOO_LONG = "This model's maximum context length is {ceiling} tokens, and the prompt came to {tokens} tokens."
CHAT = Api("openai_chat_completions", "messages", False, _OPENAI_TOO_LONG)
RESPONSES = Api("openai_responses", "input", False, _OPENAI_TOO_LONG)
MESSAGES = Api("anthropic_messages", "messages", True, "prompt is too long: {tokens} tokens > {ceiling} maximum")


# Of the field `priority`, either way.
PRIORITY_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that is well-formed and asks for nothing this build lacks; None is silence.

    max_tokens           output limit of the client, >= 0
    stops_in_reasoning   whether the stop strings count in reasoning too, or in the answer alone
    return_progress      whether the client wants to see how much of the prompt has been read
    priority             lower goes first
    preserve_is_changed  whether old reasoning is treated otherwise than in the response that is continued
    constraint           what the answer is held to
    thinking_budget      most tokens of thinking, >= 1
    logprobs             how many alternatives are told of beside each token of the answer; None: nothing is told of it
    """

    api: ClassVar[Api]

    model: str
    conversation: Conversation
    tools: Tools
    max_tokens: int | None
    sampling: SamplingRequest
    stops: tuple[str, ...] = ()
    stops_in_reasoning: bool = True
    stream: bool = False
    thinking: ThinkingRequest
    ignore_eos: bool = False
    return_progress: bool = False
    cache_key: str | None = None
    priority: int = 0
    preserve_is_changed: bool = False
    constraint: Constraint | None = None
    thinking_budget: int | None = None
    logprobs: int | None = None
