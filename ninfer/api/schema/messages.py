"""``/v1/messages`` (serving spec, 9)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ninfer.api.schema.common import Json, ModelName, Share, Temperature, TemplateOptions, TopK


class Turn(Struct):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Json]


class CountRequest(Struct, kw_only=True):
    """A conversation to be counted. Fields that are not listed are ignored."""

    model: ModelName
    messages: Annotated[list[Turn], Meta(min_length=1)]
    system: str | list[Json] | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    tool_constraints: str | None = None
    thinking: Json | None = None
    output_config: Json | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    structured_outputs: Json | None = None
    graft: str | None = None
    cache_control: Json | None = None
    metadata: Json | None = None
    container: Annotated[str, Meta(max_length=0)] | Annotated[dict[str, Any], Meta(max_length=0)] | None = None
    mcp_servers: Annotated[list[Any], Meta(max_length=0)] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """A conversation to go on with. Fields that are not listed are ignored."""

    max_tokens: Annotated[int, Meta(ge=1, le=2147483647)]
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


class MessagesUsage(Struct):
    """Token counts; the three kinds of input make up the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(Struct, kw_only=True):
    """A whole answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Annotated[list[Json], Meta(min_length=1)]
    stop_reason: Literal["end_turn", "stop_sequence", "max_tokens", "model_context_window_exceeded", "tool_use"]
    stop_sequence: str | None
    usage: MessagesUsage


class InputTokens(Struct):
    """Tokens of the prompt."""

    input_tokens: int
