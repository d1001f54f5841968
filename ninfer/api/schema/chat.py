"""``/v1/chat/completions`` (serving spec, 5)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ninfer.api.schema.common import (
    Effort,
    Json,
    ModelName,
    Penalty,
    Share,
    Stops,
    StreamOptions,
    Temperature,
    TemplateOptions,
    Timings,
    Tokens,
    TopK,
    Usage,
)


class ChatMessage(Struct):
    """One turn; `tool_calls` on an assistant's, `tool_call_id` on a tool's."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Json] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Json] | None = None
    tool_call_id: str | None = None


class ChatFields(Struct, kw_only=True):
    """A conversation and how it is to be rendered. Fields that are not listed are ignored."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    tool_constraints: str | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(description="only 1")] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: Stops | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    priority: int | None = None
    thinking_budget: Annotated[int, Meta(ge=1)] | None = None
    response_format: Json | None = None
    structured_outputs: Json | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20, description="more than 0 with logprobs true only")] | None = None
    logit_bias: Annotated[Json, Meta(description="only zeros")] | None = None
    modalities: Annotated[list[str], Meta(description="only text")] | None = None
    audio: Json | None = None
    prediction: Json | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    verbosity: str | None = None
    store: Annotated[bool, Meta(description="only false")] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Json | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    graft: str | None = None
    functions: Annotated[list[Any], Meta(max_length=0)] | None = None
    function_call: Literal["none", "auto"] | None = None
    web_search_options: None = None
    moderation: None = None
    mm_processor_kwargs: Json | None = None
    grammar: Annotated[str, Meta(max_length=0)] | None = None
    guided_json: None = None
    guided_regex: None = None
    guided_choice: None = None
    guided_grammar: None = None


class ChatRequest(ChatFields, kw_only=True):
    """A conversation to go on with. Fields that are not listed are ignored."""

    model: ModelName


class ToolFunction(Struct):
    """`arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(Struct):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: ToolFunction


class AssistantMessage(Struct, kw_only=True):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class TokenValue(Struct):
    """A token, its bytes, and the natural logarithm of the model's own probability of it."""

    token: str
    logprob: float
    bytes: list[int]


class ContentToken(TokenValue):
    """A token of the answer, and the likeliest ones in its place."""

    top_logprobs: list[TokenValue]


class ChatLogprobs(Struct):
    """What is told of the tokens of a content."""

    content: list[ContentToken]
    refusal: None


class ChatChoice(Struct, kw_only=True):
    """A choice; the last three are at the top of an answer that has but one."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    id_slot: int | None = None
    session_digest: str | None = None
    constraint: Json | None = None


class ChatCompletion(Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: Annotated[list[ChatChoice], Meta(min_length=1, max_length=8)]
    usage: Usage
    timings: Timings
    id_slot: int | None = None
    session_digest: str | None = None
