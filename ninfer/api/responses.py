"""``POST /v1/responses`` and ``POST /v1/responses/input_tokens`` (serving spec, 8)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import orjson
from quart import Response

from ninfer.actors.messages import Finished, PrefillProgress, Reply, TextDelta
from ninfer.api import sse
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import Fault
from ninfer.api.responses_object import Event, Frame, status_of
from ninfer.api.responses_output import OutputItems
from ninfer.api.responses_request import ResponsesRequest, parse_input_tokens, parse_responses
from ninfer.api.responses_store import Record, ResponseStore
from ninfer.api.service import Service
from ninfer.api.streams import Source, event_stream, gather, json_response, pieces
from ninfer.api.thinking import Thinking
from ninfer.step import TokenLogprobs
from ninfer.text.output import ContentDelta


async def create_response(service: Service, store: ResponseStore, body: bytes, exchange: Exchange) -> Response:
    """Answer one request; raises RequestRejected and Unavailable up to the queue, in the order of section 3.2."""
    request, thinking = await service.check(body, lambda source: parse_responses(source, store))
    session = await service.submit(request, thinking, exchange)
    frame = Frame(
        id=f"resp_{secrets.token_hex(16)}",
        created_at=int(service.unix_time()),
        model=service.model.public_id,
        request=request,
        sampling=session.sampling,
    )
    answer = _Answer(frame, store, thinking, service)
    if request.stream:
        source: Source[Reply] = session
        return event_stream(source, _ResponseStream(frame, answer), exchange, service.keep_alive_comment_s)
    whole, finished = await gather(session)
    told: Sequence[TokenLogprobs] = whole.logprobs
    for delta in whole.deltas:
        for _ in answer.items.add(delta, told):
            pass  # nobody listens to the events
        if isinstance(delta, ContentDelta):
            told = ()  # all of it is of the one message
    _, response = answer.commit(finished)
    return json_response(response)


async def count_input_tokens(service: Service, store: ResponseStore, body: bytes) -> Response:
    """The length of the prompt that the same request to ``/v1/responses`` would have; raises RequestRejected."""
    request, thinking = await service.check(body, lambda source: parse_input_tokens(source, store))
    tokens = await service.count(request, thinking)
    return json_response({"object": "response.input_tokens", "input_tokens": tokens})


class _Answer:
    """One answer on its way to the store."""

    def __init__(self, frame: Frame, store: ResponseStore, thinking: Thinking, service: Service) -> None:
        self.items = OutputItems(frame.request.declared, service.model.tokenizer)
        self._frame = frame
        self._store = store
        self._thinking = thinking
        self._unix_time = service.unix_time

    def commit(self, finished: Finished) -> tuple[list[Event], Event]:
        """Close and store; returns the closing events and the response object. Raises StoreTooSmall."""
        is_cut = self.items.is_cut
        events = self.items.finish(status_of(finished, is_cut))
        response = self._frame.ended(self.items.closed, finished, is_cut, self._unix_time())
        if self._frame.request.store:
            self._store.put(self._record(self._frame.request, response))
        return events, response

    def _record(self, request: ResponsesRequest, response: Event) -> Record:
        return Record(
            id=self._frame.id,
            body=orjson.dumps(response),
            input_items=request.input_items,
            context=request.items,
            output=self.items.history(),
            preserve=self._thinking.preserve,
        )


class _ResponseStream:
    """The frames of one streamed response."""

    keep_alive = sse.KEEP_ALIVE

    def __init__(self, frame: Frame, answer: _Answer) -> None:
        self._frame = frame
        self._answer = answer
        self._sent = 0
        self._processed = -1

    def opening(self) -> bytes:
        response = self._frame.in_progress()
        kinds = ("response.created", "response.in_progress")
        return self._frames({"type": kind, "response": response} for kind in kinds)

    def frames_of(self, reply: Reply) -> bytes:
        match reply:
            case PrefillProgress() if reply.processed > self._processed:
                self._processed = reply.processed
                return self._frames([self._progress(reply)])
            case TextDelta():
                return self._frames(event for piece in pieces(reply) for event in self._answer.items.add(*piece))
            case Finished():
                # Only what is stored is told as final.
                events, response = self._answer.commit(reply)
                return self._frames([*events, {"type": f"response.{response['status']}", "response": response}])
        return b""

    def failure(self, fault: Fault) -> bytes:
        response = self._frame.failed(self._answer.items.closed, fault)
        return self._frames([{"type": "response.failed", "response": response}])

    def _progress(self, reply: PrefillProgress) -> Event:
        progress = {"processed": reply.processed, "total": reply.total, "cache": reply.cached}
        return {
            "type": "response.in_progress",
            "response": self._frame.in_progress(),
            "prompt_progress": progress,
        }

    def _frames(self, events: Iterable[Event]) -> bytes:
        frames = []
        for event in events:
            frames.append(sse.event_frame({**event, "sequence_number": self._sent}))
            self._sent += 1
        return b"".join(frames)
