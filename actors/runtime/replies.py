"""Sending to a client that may be gone. The stream is unlimited: a request's own output bounds what waits in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import anyio

R = TypeVar("R")
S = TypeVar("S", contravariant=True)


class Sender(Protocol[S]):
    """The end of a stream that replies go into."""

    def send_nowait(self, item: S, /) -> None:
        """Leave one; raises anyio's errors if nobody listens any more."""

    def close(self) -> None:
        """There are no more."""


class NoticedSender(Generic[R]):
    """Tells of each reply and of the end, once they are there.

    news   whom to tell; may be set at any time, and None for nobody
    """

    def __init__(self, sender: Sender[R]) -> None:
        self.news: Callable[[], None] | None = None
        self._sender = sender

    def send_nowait(self, item: R, /) -> None:
        self._sender.send_nowait(item)
        if self.news is not None:
            self.news()

    def close(self) -> None:
        self._sender.close()
        if self.news is not None:
            self.news()


def send_reply(replies: Sender[R], reply: R) -> None:
    """Leave a reply. If nobody listens any more the scheduler hears of it from the HTTP side, not from here."""
    try:
        replies.send_nowait(reply)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


def send_last(replies: Sender[R], reply: R) -> None:
    """Leave the last reply and close."""
    send_reply(replies, reply)
    replies.close()
