"""Types that several protocols share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Json = dict[str, Any]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TopK = Annotated[int, Meta(ge=-1, description="-1, 0 and everything above 20 mean 20")]
Tokens = Annotated[int, Meta(ge=0, le=2147483647)]
ModelName = Annotated[str, Meta(min_length=1)]
Stops = str | Annotated[list[str], Meta(max_length=4)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TemplateOptions(Struct):
    """Options of the chat template; each may stand at the top level as well, if both agree."""

    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    preserve_thinking: bool | None = None


class StreamOptions(Struct):
    """`include_usage` adds a last chunk with the usage."""

    include_usage: bool | None = None


class PromptDetails(Struct):
    """How much of the prompt did not have to be computed."""

    cached_tokens: int


class CompletionDetails(Struct):
    """How much of the output was reasoning."""

    reasoning_tokens: int


class Usage(Struct):
    """Token counts; `completion_tokens` counts the stop token too."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(Struct):
    """Counts, milliseconds and rates of one request; `cache_n + prompt_n` is the whole prompt."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    ttft_ms: float
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class Fault(Struct):
    """What is wrong; `param` is the field of the request at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    """An error of the OpenAI family of routes."""

    error: Fault


class AnthropicFault(Struct):
    """What is wrong."""

    type: str
    message: str


class AnthropicError(Struct):
    """An error of the Messages routes."""

    type: Literal["error"]
    error: AnthropicFault
    request_id: str
