"""The replies of a session as a whole, or as a stream of frames (serving spec, 2.6). The same for every protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import anyio
import orjson
import structlog
from quart import Response

from ninfer.actors.messages import Finished, TextDelta
from ninfer.api.choices import Choices
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import Fault, fault_of
from ninfer.api.session import Session
from ninfer.errors import NinferError
from ninfer.step import TokenLogprobs
from ninfer.text.output import ContentDelta, Delta

# Frames that wait for a slow reader are joined to pieces of about this size.
PIECE_BYTES = 64 * 1024

log = structlog.get_logger(__name__)


T = TypeVar("T")
S = TypeVar("S", contravariant=True)
P = TypeVar("P", covariant=True)


class Source(Protocol[P]):
    """Where the replies of a streamed answer come from."""

    @property
    def is_over(self) -> bool:
        """Whether there are no more."""

    def notice(self, news: Callable[[], None] | None) -> None:
        """Call this when there are more; None: nothing."""

    def reply_at_hand(self) -> P | None:
        """The next one if there is one; raises the error that the answer ended with."""

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


def event_stream(source: Source[T], writer: StreamWriter[T], exchange: Exchange, keep_alive_s: float) -> Response:
    """A streamed answer; `keep_alive_s` of silence are broken by the protocol's sign of life."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    pieces = _Stream(source, writer, exchange).pieces(keep_alive_s)
    response = Response(pieces, content_type="text/event-stream", headers=headers)
    response.timeout = None  # a stream lives as long as its generation, and has deadlines of its own
    return response


class _Stream(Generic[T]):
    """The frames of one streamed answer on their way out.

    While the peer keeps up, a reply is written when it is left, by whoever leaves it, and nobody wakes up for it. What
    cannot be written at once, and the end, is left to the task that answers the request.
    """

    def __init__(self, source: Source[T], writer: StreamWriter[T], exchange: Exchange) -> None:
        self._source = source
        self._writer = writer
        self._exchange = exchange
        self._waits: anyio.Event | None = None  # of the task, while it waits for something to do
        self._over = False
        self._ready = b""
        self._sent_at = 0.0

    async def pieces(self, keep_alive_s: float) -> AsyncIterator[bytes]:
        """What the framework is to send; the rest is written behind its back while this waits."""
        opening = self._writer.opening()
        if opening:
            yield opening
        self._sent_at = anyio.current_time()
        self._over = self._source.is_over
        self._source.notice(self._news)
        try:
            while True:
                frames = self._frames()
                if frames:
                    yield frames
                    self._sent_at = anyio.current_time()
                elif self._over:
                    return
                elif not await self._wait(keep_alive_s):
                    yield self._writer.keep_alive
                    self._sent_at = anyio.current_time()
        finally:
            self._source.notice(None)

    async def _wait(self, keep_alive_s: float) -> bool:
        """Until there is something for the task to do; False if nothing was sent for too long before that."""
        self._waits = waits = anyio.Event()
        try:
            while (deadline := self._sent_at + keep_alive_s) > anyio.current_time():
                with anyio.CancelScope(deadline=deadline):
                    await waits.wait()
                    return True
            return False
        finally:
            self._waits = None

    def _news(self) -> None:
        """There is a reply. The task is told if it has to do something about it."""
        if self._waits is None:
            return  # it is busy, and looks again when it is done
        self._ready = self._frames()
        if self._ready and not self._over and self._exchange.write_now(self._ready):
            if len(self._ready) >= PIECE_BYTES:
                self._waits.set()  # there may be more
            self._ready = b""
            self._sent_at = anyio.current_time()
        elif self._ready or self._over:
            self._waits.set()

    def _frames(self) -> bytes:
        """The frames of the replies at hand, up to the size of a piece; the end of them is noted."""
        frames, self._ready = [self._ready], b""
        size = len(frames[0])
        try:
            while size < PIECE_BYTES and not self._over and (reply := self._source.reply_at_hand()) is not None:
                frames.append(self._writer.frames_of(reply))
                size += len(frames[-1])
                self._over = self._source.is_over
        except NinferError as error:
            self._over = True
            frames.append(self._writer.failure(fault_of(error)))
        except Exception as error:
            log.exception("a stream failed")
            self._over = True
            fault = fault_of(error)
            self._source.fail(fault.message)
            frames.append(self._writer.failure(fault))
        return b"".join(frames)
