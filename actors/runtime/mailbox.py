"""A bounded mailbox of typed messages over an anyio memory object stream."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from ninfer.errors import ActorStopped

M = TypeVar("M")

# Messages that an actor takes in one go before others on the loop get their turn.
IN_ONE_GO = 8


class Mailbox(Generic[M]):
    """`capacity` messages at most, for one reader; `put_nowait` raises :class:`anyio.WouldBlock` when full.

    A mailbox whose writers are bounded by something else may be unlimited (``math.inf``); its owner says by what.
    After `close`, puts raise :class:`ActorStopped`, and what is still inside can be drained.
    """

    def __init__(self, name: str, capacity: float) -> None:
        if capacity is not math.inf and capacity < 1:
            raise ValueError(f"mailbox {name} needs room for at least one message")
        self.name = name
        self._send, self._receive = anyio.create_memory_object_stream[M](capacity)
        # What the reader waits for. Reading the stream without waiting, and waiting here, costs half as many turns of
        # the event loop as the stream's own waiting does, which matters for messages that come with every token.
        self._news: anyio.Event | None = None

    def put_nowait(self, message: M) -> None:
        """Leave a message or raise: WouldBlock when full, ActorStopped when closed."""
        try:
            self._send.send_nowait(message)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise ActorStopped(f"{self.name} has stopped") from None
        self._tell()

    async def put(self, message: M) -> None:
        """Leave a message, waiting for room."""
        try:
            await self._send.send(message)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise ActorStopped(f"{self.name} has stopped") from None
        self._tell()

    @property
    def waiting(self) -> int:
        """Messages inside."""
        return self._send.statistics().current_buffer_used

    async def messages(self) -> AsyncIterator[M]:
        """Messages in order until the mailbox is closed and empty, or drained."""
        taken = 0
        while True:
            if taken == IN_ONE_GO:
                taken = 0
                await checkpoint()
            try:
                message = self._receive.receive_nowait()
            except anyio.WouldBlock:
                taken = 0
                self._news = anyio.Event()
                await self._news.wait()
                continue
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                return
            taken += 1
            yield message

    def close(self) -> None:
        """Take no more messages. Those inside are still delivered."""
        self._send.close()
        self._tell()

    def take_all(self) -> list[M]:
        """Everything inside right now."""
        taken: list[M] = []
        while True:
            try:
                taken.append(self._receive.receive_nowait())
            except (anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
                return taken

    def drain(self) -> list[M]:
        """Close, and take out everything nobody will read any more."""
        self._send.close()
        left = self.take_all()
        self._receive.close()
        self._tell()
        return left

    def _tell(self) -> None:
        """Wake the reader if it waits."""
        if self._news is not None:
            self._news.set()
            self._news = None
