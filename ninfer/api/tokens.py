"""``/tokenize``, ``/detokenize``, ``/apply-template``: what the server makes of texts, without generating.

The fields are those of llama.cpp's server; `prompt` and the counts are there for clients of vLLM. Nothing here takes
capacity; long texts are worked on aside.
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio import to_thread
from quart import Response

from ninfer.api import preparation
from ninfer.api.body import parse_object
from ninfer.api.chat_request import ChatRequest, parse_chat
from ninfer.api.fields import Object, boolean, text, wrong
from ninfer.api.preparation import Model
from ninfer.api.service import Service
from ninfer.api.streams import json_response
from ninfer.text.tokenizer import Tokenizer


async def tokenize(service: Service, body: bytes) -> Response:
    """Ids of `content` (or `prompt`), or of a conversation in `messages`; raises RequestRejected."""
    source = await to_thread.run_sync(parse_object, body)
    with_pieces = boolean(source, "with_pieces") or False
    if source.get("messages") is not None:
        _, ids = await _render(service, body)
    else:
        ids = await to_thread.run_sync(_encode, service.model.tokenizer, source)
    tokens = _pieces(service.model.tokenizer, ids) if with_pieces else list(ids)
    return json_response({"tokens": tokens, "count": len(ids), "max_model_len": service.model.max_context_tokens})


def _encode(tokenizer: Tokenizer, source: Object) -> tuple[int, ...]:
    content, prompt = text(source, "content"), text(source, "prompt")
    content = content if content is not None else prompt
    if content is None:
        raise wrong("content", "a string")
    # Nothing is put in front of or behind a text by this family, so `add_special` changes nothing.
    boolean(source, "add_special")
    special = boolean(source, "parse_special")
    ids = tokenizer.encode(content) if special is False else tokenizer.encode_with_control(content)
    return tuple(ids)


def _pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[object]:
    return [{"id": token, "piece": _piece(tokenizer.token_bytes(token))} for token in ids]


def _piece(spelling: bytes) -> object:
    """Text, or the bytes of a token that is only a part of a character."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return list(spelling)


async def detokenize(service: Service, body: bytes) -> Response:
    """Text of `tokens`, control tokens spelled out; raises RequestRejected."""
    content = await to_thread.run_sync(_decode, service.model.tokenizer, body)
    return json_response({"content": content, "prompt": content})


def _decode(tokenizer: Tokenizer, body: bytes) -> str:
    tokens = parse_object(body).get("tokens")
    if not isinstance(tokens, list) or not are_tokens(tokenizer, tokens):
        raise wrong("tokens", "an array of ids of tokens")
    return tokenizer.decode(tokens)


def are_tokens(tokenizer: Tokenizer, ids: Sequence[object]) -> bool:
    """Whether every one is the id of a token."""
    try:
        for token in ids:
            if type(token) is not int:
                return False
            tokenizer.token_bytes(token)
    except ValueError:
        return False
    return True


async def apply_template(service: Service, body: bytes) -> Response:
    """The prompt of a Chat request as text, control tokens spelled out; `model` may be left out."""
    prompt, _ = await _render(service, body)
    return json_response({"prompt": prompt})


async def _render(service: Service, body: bytes) -> tuple[str, tuple[int, ...]]:
    asked, thinking = await service.check(body, lambda source: _chat(source, service.model))
    rendered = await to_thread.run_sync(preparation.render, asked, thinking, service.model)
    return rendered.prompt.text, rendered.ids


def _chat(source: Object, model: Model) -> ChatRequest:
    return parse_chat(source if source.get("model") is not None else {**source, "model": model.public_id})
