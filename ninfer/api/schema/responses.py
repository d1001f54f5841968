"""``/v1/responses`` (serving spec, 8)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ninfer.api.schema.common import Json, ModelName, Share, Temperature, TemplateOptions, Tokens


class InputTokensRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Items to be counted. Other fields are refused unless they are null."""

    model: ModelName
    input: str | list[Json] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    reasoning: Json | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    text: Json | None = None
    truncation: Literal["disabled"] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    preserve_thinking: bool | None = None
    graft: str | None = None


class ResponsesRequest(InputTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """Items to go on with. Other fields are refused unless they are null."""

    store: bool | None = True
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    parallel_tool_calls: bool | None = None
    tool_constraints: str | None = None
    structured_outputs: Json | None = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None
    thinking_budget: Annotated[int, Meta(ge=1)] | None = None
    return_progress: bool | None = None
    priority: int | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    client_metadata: Json | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Json | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    safety_identifier: str | None = None
    user: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    background: Annotated[bool, Meta(description="only false")] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    stream_options: Json | None = None
    conversation: None = None
    prompt: None = None
    context_management: None = None
    moderation: None = None


class ResponseObject(Struct, kw_only=True):
    """An answer, whole or stored."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    background: bool
    error: Json | None
    incomplete_details: Json | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    output: list[Json]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: Json
    service_tier: Literal["default"]
    store: bool
    temperature: float
    top_p: float
    text: Json
    tool_choice: Any
    tools: list[Json]
    top_logprobs: int
    truncation: Literal["disabled"]
    usage: Json | None


class DeletedResponse(Struct):
    """It is not stored any more."""

    id: str
    object: Literal["response.deleted"]
    deleted: bool


class ItemList(Struct):
    """A page of the items that were sent."""

    object: Literal["list"]
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokenCount(Struct):
    """Tokens of the prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int
