"""Raw completions, tokens, templates."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ninfer.api.schema.chat import ChatFields
from ninfer.api.schema.common import (
    Json,
    ModelName,
    Penalty,
    Share,
    Stops,
    StreamOptions,
    Temperature,
    Timings,
    Tokens,
    TopK,
    Usage,
)

Prompt = Annotated[str, Meta(min_length=1)]
Ids = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]


class CompletionRequest(Struct, kw_only=True):
    """A text to go on with; control spellings in it are control tokens. Fields that are not listed are ignored."""

    model: ModelName
    prompt: Prompt | list[int | str | list[int]]
    max_tokens: Tokens | None = 16
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
    user: str | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    best_of: Annotated[int, Meta(description="only 1 or as n", ge=1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    logit_bias: Annotated[Json, Meta(description="only zeros")] | None = None
    suffix: Annotated[str, Meta(max_length=0)] | None = None
    echo: Annotated[bool, Meta(description="only false")] | None = None


class CompletionLogprobs(Struct):
    """What is told of the tokens of a text: natural logarithms of the model's own probabilities."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    """A choice; the last two are at the top of an answer that has but one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    id_slot: int | None = None
    session_digest: str | None = None


class Completion(Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: Annotated[list[CompletionChoice], Meta(min_length=1, max_length=8)]
    usage: Usage
    timings: Timings
    id_slot: int | None = None


class TokenizeRequest(Struct, kw_only=True):
    """A text in `content` or `prompt`, or a conversation in `messages` with the fields of a Chat request."""

    content: str | None = None
    prompt: str | None = None
    messages: list[Json] | None = None
    add_special: bool | None = None
    parse_special: Annotated[bool, Meta(description="control spellings are control tokens")] | None = True
    with_pieces: bool | None = None


class Piece(Struct):
    """A token and what it stands for: text, or bytes that are only a part of a character."""

    id: int
    piece: str | list[int]


class TokenList(Struct):
    """The tokens of a text."""

    tokens: list[int | Piece]
    count: int
    max_model_len: int


class DetokenizeRequest(Struct):
    """Token ids."""

    tokens: list[Annotated[int, Meta(ge=0)]]


class Text(Struct):
    """The text, under both names that clients know."""

    content: str
    prompt: str


class TemplateRequest(ChatFields, kw_only=True):
    """A Chat request; the model may be left out."""

    model: ModelName | None = None


class RenderedText(Struct):
    """The prompt, control tokens spelled out."""

    prompt: str
