"""The replies of a session as a whole, or as a stream of frames (serving spec, 2.6). The same for every protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import anyio
import orjson
import structlog
from quart import Response

from ninfer.actors.messages import Finished, TextDelta
from ninfer.api.choices import Choices
from ninfer.api.envelopes import Fault, fault_of
from ninfer.api.session import Session
from ninfer.errors import NinferError
from ninfer.step import TokenLogprobs
from ninfer.text.output import ContentDelta, Delta

log = structlog.get_logger(__name__)


T = TypeVar("T")
S = TypeVar("S", contravariant=True)
P = TypeVar("P", covariant=True)


class Source(Protocol[P]):
    """Where the replies of a streamed answer come from."""

    @property
    def is_over(self) -> bool:
        """Whether there are no more."""

    async def next_reply(self) -> P:
        """The next one; raises the error that the answer ended with."""

    def fail(self, message: str) -> None:
        """The answer broke off on our side."""


class StreamWriter(Protocol[S]):
    """The frames of one streamed answer; what is empty is not sent.

    keep_alive   what is sent after a silence
    """

    keep_alive: bytes

    def opening(self) -> bytes:
        """What stands at the beginning, before the request is admitted."""

    def frames_of(self, reply: S) -> bytes:
        """What a reply adds; with the last ``Finished`` the stream's end. Raises NinferError when that cannot be."""

    def failure(self, fault: Fault) -> bytes:
        """The end of a stream that broke off."""


@dataclass(slots=True)
class Whole:
    """All pieces of an answer, and what is told of the tokens of its text."""

    deltas: list[Delta] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, reply: TextDelta) -> None:
        """More of it."""
        self.deltas.extend(reply.deltas)
        self.logprobs.extend(reply.logprobs)


def pieces(reply: TextDelta) -> Iterator[tuple[Delta, tuple[TokenLogprobs, ...]]]:
    """The pieces of a reply, that of the answer with what is told of its tokens; there is one at most."""
    for delta in reply.deltas:
        yield delta, reply.logprobs if isinstance(delta, ContentDelta) else ()


async def gather(session: Session) -> tuple[Whole, Finished]:
    """A whole answer, and how it ended; raises the error that it ended with."""
    whole = Whole()
    while True:
        reply = await session.next_reply()
        if isinstance(reply, TextDelta):
            whole.add(reply)
        elif isinstance(reply, Finished):
            return whole, reply


async def gather_choices(choices: Choices) -> list[tuple[Whole, Finished]]:
    """The same for each choice of an answer."""
    wholes = [Whole() for _ in choices.sessions]
    ends: dict[int, Finished] = {}
    while len(ends) < len(wholes):
        number, reply = await choices.next_reply()
        if isinstance(reply, TextDelta):
            wholes[number].add(reply)
        elif isinstance(reply, Finished):
            ends[number] = reply
    return [(whole, ends[number]) for number, whole in enumerate(wholes)]


def json_response(body: Mapping[str, object]) -> Response:
    """An answer that is not streamed."""
    response = Response(orjson.dumps(body), content_type="application/json")
    response.timeout = None
    return response


def event_stream(source: Source[T], writer: StreamWriter[T], keep_alive_s: float) -> Response:
    """A streamed answer; `keep_alive_s` of silence are broken by the protocol's sign of life."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    response = Response(_frames(source, writer, keep_alive_s), content_type="text/event-stream", headers=headers)
    response.timeout = None  # a stream lives as long as its generation, and has deadlines of its own
    return response


async def _frames(source: Source[T], writer: StreamWriter[T], keep_alive_s: float) -> AsyncIterator[bytes]:
    opening = writer.opening()
    if opening:
        yield opening
    sent_at = anyio.current_time()
    try:
        while not source.is_over:
            reply: T | None = None
            with anyio.CancelScope(deadline=sent_at + keep_alive_s):
                reply = await source.next_reply()
            frames = writer.keep_alive if reply is None else writer.frames_of(reply)
            if frames:
                yield frames
                sent_at = anyio.current_time()
    except NinferError as error:
        yield writer.failure(fault_of(error))
    except Exception as error:
        log.exception("a stream failed")
        fault = fault_of(error)
        source.fail(fault.message)
        yield writer.failure(fault)
