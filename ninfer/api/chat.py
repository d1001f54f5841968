"""``POST /v1/chat/completions``: from a body to an answer, whole or streamed (serving spec, 5)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence

from quart import Response

from ninfer.actors.messages import Admitted, Finished, PrefillProgress, Reply, TextDelta, Usage
from ninfer.api import sse
from ninfer.api.chat_request import ChatRequest, parse_chat
from ninfer.api.chat_response import (
    ChunkBuilder,
    Envelope,
    choice_members,
    closing_members,
    logprobs_object,
    whole_body,
    whole_choice,
)
from ninfer.api.choices import Choices, joined
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import Fault, openai_error
from ninfer.api.logprobs import entries
from ninfer.api.service import Service
from ninfer.api.streams import event_stream, gather_choices, json_response, pieces
from ninfer.api.timings import Moments, timings
from ninfer.step import TokenLogprobs
from ninfer.text.output import ContentDelta, ReasoningDelta
from ninfer.text.tokenizer import Tokenizer


async def chat_completion(service: Service, body: bytes, exchange: Exchange) -> Response:
    """Answer one request; raises RequestRejected and Unavailable up to the queue, in the order of section 3.2."""
    request, thinking = await service.check(body, parse_chat)
    choices = await service.submit_choices(request, thinking, exchange, request.choices)
    envelope = Envelope(f"chatcmpl-{secrets.token_hex(8)}", int(service.unix_time()), service.model.public_id)
    tokenizer = service.model.tokenizer
    if request.stream:
        stream = _ChatStream(request, choices, envelope, tokenizer)
        return event_stream(choices, stream, exchange, service.keep_alive_comment_s)
    found = await gather_choices(choices)
    several = len(found) > 1
    bodies = [
        whole_choice(index, whole.deltas, finished, _logprobs(request, whole.logprobs, tokenizer))
        | (choice_members(finished) if several else {})
        for index, (whole, finished) in enumerate(found)
    ]
    end = joined([finished for _, finished in found])
    return json_response(whole_body(envelope, bodies, end, choices.received_at))


def _logprobs(request: ChatRequest, told: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> Mapping[str, object] | None:
    return logprobs_object(entries(told, tokenizer)) if request.logprobs is not None else None


class _ChatStream:
    """The frames of one streamed answer as the replies of its choices come in."""

    keep_alive = sse.KEEP_ALIVE

    def __init__(self, request: ChatRequest, choices: Choices, envelope: Envelope, tokenizer: Tokenizer) -> None:
        self._request = request
        self._choices = choices
        self._tokenizer = tokenizer
        self._chunks = [
            ChunkBuilder(envelope, index, include_usage=request.include_usage) for index in range(len(choices.sessions))
        ]
        self._admitted: dict[int, Admitted] = {}
        self._ends: dict[int, Finished] = {}
        self._processed = -1
        self._plain = request.logprobs is None and not request.timings_per_token

    def opening(self) -> bytes:
        return b"".join(sse.data_frame(chunks.role()) for chunks in self._chunks)

    def frames_of(self, reply: tuple[int, Reply]) -> bytes:
        index, news = reply
        if self._plain and isinstance(news, TextDelta) and len(news.deltas) == 1:
            (delta,) = news.deltas
            if isinstance(delta, ContentDelta | ReasoningDelta):
                return self._chunks[index].text_frame(delta)
        frames = b"".join(sse.data_frame(chunk) for chunk in self._chunks_of(*reply))
        return frames + sse.DONE if len(self._ends) == len(self._chunks) else frames

    def failure(self, fault: Fault) -> bytes:
        return sse.data_frame(openai_error(fault))

    def _chunks_of(self, index: int, reply: Reply) -> Iterator[Mapping[str, object]]:
        match reply:
            case Admitted():
                self._admitted[index] = reply
            case PrefillProgress() if index == 0:  # the others have the same prompt
                yield from self._progress(reply)
            case TextDelta():
                yield from self._text(index, reply)
            case Finished():
                self._ends[index] = reply
                yield from self._closing(index, reply)

    def _progress(self, reply: PrefillProgress) -> Iterator[Mapping[str, object]]:
        if self._request.return_progress and 0 in self._admitted and reply.processed > self._processed:
            self._processed = reply.processed
            yield self._chunks[0].progress(reply, self._admitted[0].at)

    def _text(self, index: int, reply: TextDelta) -> Iterator[Mapping[str, object]]:
        so_far = self._timings(index, reply) if self._request.timings_per_token else None
        for delta, told in pieces(reply):
            chunk = self._chunks[index].delta(delta, so_far, _logprobs(self._request, told, self._tokenizer))
            if chunk is not None:
                yield chunk

    def _closing(self, index: int, finished: Finished) -> Iterator[Mapping[str, object]]:
        """The finish chunk; behind the last of them the usage chunk if it was asked for."""
        chunk = self._chunks[index].finish(finished, choice_members(finished) if len(self._chunks) > 1 else {})
        if len(self._ends) < len(self._chunks):
            yield chunk
            return
        end = joined([self._ends[number] for number in range(len(self._chunks))])
        members = closing_members(end, self._choices.received_at)
        if self._request.include_usage:
            yield chunk
            chunk = self._chunks[index].usage(end.usage)
        yield {**chunk, **members}

    def _timings(self, index: int, reply: TextDelta) -> Mapping[str, object]:
        admitted = self._admitted.get(index)
        session = self._choices.sessions[index]
        cached = admitted.cached_tokens if admitted is not None else 0
        usage = Usage(session.prompt_tokens, cached, reply.completion_tokens, reasoning_tokens=0)
        admitted_at = admitted.at if admitted is not None else None
        return timings(usage, Moments(session.received_at, admitted_at, reply.first_token_at, reply.at))
