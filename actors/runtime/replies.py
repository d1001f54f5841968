"""Sending to a client that may be gone. The stream is unlimited: a request's own output bounds what waits in it."""

from __future__ import annotations

from typing import TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream

R = TypeVar("R")


def send_reply(replies: MemoryObjectSendStream[R], reply: R) -> None:
    """Leave a reply. If nobody listens any more the scheduler hears of it from the HTTP side, not from here."""
    try:
        replies.send_nowait(reply)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


def send_last(replies: MemoryObjectSendStream[R], reply: R) -> None:
    """Leave the last reply and close."""
    send_reply(replies, reply)
    replies.close()
