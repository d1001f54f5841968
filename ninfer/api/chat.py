"""``POST /v1/chat/completions``: from a body to an answer, whole or streamed (serving spec, 5)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass

import anyio
import orjson
import structlog
from anyio import to_thread
from quart import Response

from ninfer.actors.gateway import Gateway
from ninfer.actors.messages import Admitted, Finished, PrefillProgress, Reply, TextDelta, Usage
from ninfer.api import preparation, sse
from ninfer.api.body import parse_object
from ninfer.api.chat_request import ChatRequest, parse_chat
from ninfer.api.chat_response import ChunkBuilder, Envelope, whole_body
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import fault_of, openai_error
from ninfer.api.preparation import Model
from ninfer.api.session import Prepared, Session, open_session
from ninfer.api.thinking import Thinking
from ninfer.api.timings import Moments, timings
from ninfer.config import GenerationSettings
from ninfer.errors import ModelNotFound, NinferError, RequestRejected
from ninfer.requestlog.records import RequestFacts
from ninfer.requestlog.writer import RequestLog
from ninfer.text.output import Delta

# Bodies from here on are parsed on a worker thread; smaller ones take well under a millisecond.
PARSE_ASIDE_BYTES = 64 * 1024

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ChatService:
    """What the route needs; `unix_time` is the wall clock in seconds."""

    gateway: Gateway
    model: Model
    generation: GenerationSettings
    request_log: RequestLog
    keep_alive_comment_s: float
    unix_time: Callable[[], float]

    async def handle(self, body: bytes, exchange: Exchange) -> Response:
        """Answer one request; raises RequestRejected and Unavailable up to the queue, in the order of section 3.2."""
        request, thinking = await self._checked(body)
        session = await open_session(
            self.gateway,
            exchange,
            lambda request_id: self._facts(request, thinking, request_id, exchange.request_id),
            self.request_log,
        )

        def prepare() -> Prepared:
            prepared = preparation.prepare_chat(request, thinking, self.model, self.generation)
            return Prepared(prepared, thinking.on)

        await session.prepare(prepare)
        envelope = Envelope(
            id=f"chatcmpl-{secrets.token_hex(8)}", created=int(self.unix_time()), model=self.model.public_id
        )
        if request.stream:
            return _event_stream(self._frames(request, session, envelope))
        return await _whole(session, envelope)

    async def _checked(self, body: bytes) -> tuple[ChatRequest, Thinking]:
        if len(body) < PARSE_ASIDE_BYTES:
            return self._check(body)
        return await to_thread.run_sync(self._check, body)

    def _check(self, body: bytes) -> tuple[ChatRequest, Thinking]:
        request = parse_chat(parse_object(body))
        thinking = preparation.resolve_request_thinking(request, self.model, self.generation)
        if request.model != self.model.public_id:
            raise ModelNotFound(request.model)
        if request.conversation.media_items:
            message = "messages hold images or videos, and this server has no vision"
            raise RequestRejected(message, code="vision_disabled", param="messages")
        for kind in request.tools.dropped:
            log.info("a tool that only another server can run is left out", type=kind)
        if thinking.ignored_effort is not None:
            log.info("reasoning effort has no effect", effort=thinking.ignored_effort)
        return request, thinking

    def _facts(self, request: ChatRequest, thinking: Thinking, request_id: int, x_request_id: str) -> RequestFacts:
        limit = preparation.output_limit(request.max_tokens, self.generation, self.model.max_context_tokens)
        return RequestFacts(
            request_id=request_id,
            x_request_id=x_request_id,
            protocol="openai_chat_completions",
            model=request.model,
            stream=request.stream,
            message_count=request.conversation.message_count,
            media_item_count=request.conversation.media_items,
            requested_output_tokens=limit.tokens,
            requested_output_tokens_source=limit.source,
            tool_count=len(request.tools.declarations),
            tool_choice=request.tools.choice,
            has_tool_history=request.conversation.has_tool_history,
            requested_reasoning_effort=request.thinking.effort,
            preserve_thinking=thinking.preserve,
            prompt_cache_key=request.cache_key,
        )

    async def _frames(self, request: ChatRequest, session: Session, envelope: Envelope) -> AsyncIterator[bytes]:
        chunks = ChunkBuilder(envelope, include_usage=request.include_usage)
        answer = _Answer(request, session, chunks)
        yield sse.data_frame(chunks.role())
        try:
            while not answer.is_complete:
                reply: Reply | None = None
                with anyio.move_on_after(self.keep_alive_comment_s):
                    reply = await session.next_reply()
                if reply is None:
                    yield sse.KEEP_ALIVE
                    continue
                for chunk in answer.chunks_of(reply):
                    yield sse.data_frame(chunk)
        except NinferError as error:
            yield sse.data_frame(openai_error(fault_of(error)))
        except Exception as error:
            log.exception("a stream failed", id=envelope.id)
            fault = fault_of(error)
            session.fail(fault.message)
            yield sse.data_frame(openai_error(fault))
        else:
            yield sse.DONE


class _Answer:
    """The chunks of one streamed answer as its replies come in."""

    def __init__(self, request: ChatRequest, session: Session, chunks: ChunkBuilder) -> None:
        self._request = request
        self._session = session
        self._chunks = chunks
        self._admitted: Admitted | None = None
        self._processed = -1
        self.is_complete = False

    def chunks_of(self, reply: Reply) -> Iterator[Mapping[str, object]]:
        """The chunks that a reply adds."""
        match reply:
            case Admitted():
                self._admitted = reply
            case PrefillProgress():
                yield from self._progress(reply)
            case TextDelta():
                yield from self._text(reply)
            case Finished():
                self.is_complete = True
                yield from self._chunks.closing(reply, self._session.received_at)

    def _progress(self, reply: PrefillProgress) -> Iterator[Mapping[str, object]]:
        if self._request.return_progress and self._admitted is not None and reply.processed > self._processed:
            self._processed = reply.processed
            yield self._chunks.progress(reply, self._admitted.at)

    def _text(self, reply: TextDelta) -> Iterator[Mapping[str, object]]:
        so_far = self._timings(reply) if self._request.timings_per_token else None
        for delta in reply.deltas:
            chunk = self._chunks.delta(delta, so_far)
            if chunk is not None:
                yield chunk

    def _timings(self, reply: TextDelta) -> Mapping[str, object]:
        admitted = self._admitted
        cached = admitted.cached_tokens if admitted is not None else 0
        usage = Usage(self._session.prompt_tokens, cached, reply.completion_tokens, reasoning_tokens=0)
        admitted_at = admitted.at if admitted is not None else None
        return timings(usage, Moments(self._session.received_at, admitted_at, reply.first_token_at, reply.at))


def _event_stream(frames: AsyncIterator[bytes]) -> Response:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = Response(frames, content_type="text/event-stream", headers=headers)
    response.timeout = None  # a stream lives as long as its generation, and has deadlines of its own
    return response


async def _whole(session: Session, envelope: Envelope) -> Response:
    deltas: list[Delta] = []
    while True:
        reply = await session.next_reply()
        if isinstance(reply, TextDelta):
            deltas.extend(reply.deltas)
        elif isinstance(reply, Finished):
            body = whole_body(envelope, deltas, reply, session.received_at)
            response = Response(orjson.dumps(body), content_type="application/json")
            response.timeout = None
            return response
