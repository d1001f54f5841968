"""``POST /v1/chat/completions``: from a body to an answer, whole or streamed (serving spec, 5)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping

from quart import Response

from ninfer.actors.messages import Admitted, Finished, PrefillProgress, Reply, TextDelta, Usage
from ninfer.api import sse
from ninfer.api.chat_request import ChatRequest, parse_chat
from ninfer.api.chat_response import ChunkBuilder, Envelope, logprobs_object, whole_body
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import Fault, openai_error
from ninfer.api.logprobs import entries
from ninfer.api.service import Service
from ninfer.api.session import Session
from ninfer.api.streams import event_stream, gather, json_response, pieces
from ninfer.api.timings import Moments, timings
from ninfer.text.tokenizer import Tokenizer


async def chat_completion(service: Service, body: bytes, exchange: Exchange) -> Response:
    """Answer one request; raises RequestRejected and Unavailable up to the queue, in the order of section 3.2."""
    request, thinking = await service.check(body, parse_chat)
    session = await service.submit(request, thinking, exchange)
    envelope = Envelope(f"chatcmpl-{secrets.token_hex(8)}", int(service.unix_time()), service.model.public_id)
    if request.stream:
        stream = _ChatStream(request, session, envelope, service.model.tokenizer)
        return event_stream(session, stream, service.keep_alive_comment_s)
    whole, finished = await gather(session)
    told = logprobs_object(entries(whole.logprobs, service.model.tokenizer)) if request.logprobs is not None else None
    return json_response(whole_body(envelope, whole.deltas, finished, session.received_at, told))


class _ChatStream:
    """The frames of one streamed answer as its replies come in."""

    keep_alive = sse.KEEP_ALIVE

    def __init__(self, request: ChatRequest, session: Session, envelope: Envelope, tokenizer: Tokenizer) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._session = session
        self._chunks = ChunkBuilder(envelope, include_usage=request.include_usage)
        self._admitted: Admitted | None = None
        self._processed = -1

    def opening(self) -> bytes:
        return sse.data_frame(self._chunks.role())

    def frames_of(self, reply: Reply) -> bytes:
        frames = b"".join(sse.data_frame(chunk) for chunk in self._chunks_of(reply))
        return frames + sse.DONE if isinstance(reply, Finished) else frames

    def failure(self, fault: Fault) -> bytes:
        return sse.data_frame(openai_error(fault))

    def _chunks_of(self, reply: Reply) -> Iterator[Mapping[str, object]]:
        match reply:
            case Admitted():
                self._admitted = reply
            case PrefillProgress():
                yield from self._progress(reply)
            case TextDelta():
                yield from self._text(reply)
            case Finished():
                yield from self._chunks.closing(reply, self._session.received_at)

    def _progress(self, reply: PrefillProgress) -> Iterator[Mapping[str, object]]:
        if self._request.return_progress and self._admitted is not None and reply.processed > self._processed:
            self._processed = reply.processed
            yield self._chunks.progress(reply, self._admitted.at)

    def _text(self, reply: TextDelta) -> Iterator[Mapping[str, object]]:
        so_far = self._timings(reply) if self._request.timings_per_token else None
        for delta, told in pieces(reply):
            logprobs = logprobs_object(entries(told, self._tokenizer)) if self._request.logprobs is not None else None
            chunk = self._chunks.delta(delta, so_far, logprobs)
            if chunk is not None:
                yield chunk

    def _timings(self, reply: TextDelta) -> Mapping[str, object]:
        admitted = self._admitted
        cached = admitted.cached_tokens if admitted is not None else 0
        usage = Usage(self._session.prompt_tokens, cached, reply.completion_tokens, reasoning_tokens=0)
        admitted_at = admitted.at if admitted is not None else None
        return timings(usage, Moments(self._session.received_at, admitted_at, reply.first_token_at, reply.at))
