"""``GET /events``: the request log as it is written, for dashboards (serving spec, 4.10)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import orjson
from quart import Quart, Response

from ninfer.api import sse
from ninfer.requestlog.feed import Feed
from ninfer.requestlog.records import Record

RETRY = b"retry: 2000\n\n"
KEEP_ALIVE_S = 15.0


def add_events(app: Quart, feed: Feed, keep_alive_s: float = KEEP_ALIVE_S) -> None:
    """Add the route; after `keep_alive_s` of silence a comment is sent."""

    @app.get("/events")
    async def events() -> Response:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = Response(_frames(feed, keep_alive_s), content_type="text/event-stream", headers=headers)
        response.timeout = None
        return response


async def _frames(feed: Feed, keep_alive_s: float) -> AsyncIterator[bytes]:
    news = _News()
    watcher = feed.watch(news.come)
    try:
        yield RETRY + b"".join(map(_frame, watcher.take()))
        while not feed.is_over:
            with anyio.move_on_after(keep_alive_s):
                await news.wait()
            yield b"".join(map(_frame, watcher.take())) or sse.KEEP_ALIVE
    finally:
        feed.leave(watcher)


class _News:
    """An event that can come again."""

    def __init__(self) -> None:
        self._come = anyio.Event()

    def come(self) -> None:
        self._come.set()

    async def wait(self) -> None:
        await self._come.wait()
        self._come = anyio.Event()


def _frame(record: Record) -> bytes:
    return b"event: " + str(record["event"]).encode() + b"\ndata: " + orjson.dumps(record) + b"\n\n"
