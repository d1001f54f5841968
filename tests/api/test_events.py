"""The request log over HTTP."""

from __future__ import annotations

import anyio
import orjson
import pytest
from quart import Quart

from ninfer.api.events import add_events
from ninfer.requestlog.feed import Feed
from tests.support.http import ask, served, settle

pytestmark = pytest.mark.asyncio


async def test_records_come_as_they_are_written_and_a_watcher_that_leaves_is_forgotten() -> None:
    async with served() as state:
        feed = state.log.feed
        await state.post(ask())
        await settle(state)
        async with state.app.test_client().request("/events") as connection:
            await connection.send_complete()
            data = await connection.receive()
            assert data.startswith(b"retry: 2000\n\n")
            assert feed.watchers == 1
            await state.post(ask())
            while data.count(b"event: request_done\n") < 2:
                data += await connection.receive()
            assert connection.headers is not None
            assert connection.headers["content-type"] == "text/event-stream"
            await connection.disconnect()
        with anyio.fail_after(10):
            while feed.watchers:
                await anyio.lowlevel.checkpoint()
    frames = data.decode().removesuffix("\n\n").split("\n\n")[1:]
    names = [frame.partition("\n")[0].removeprefix("event: ") for frame in frames]
    assert names == ["request_start", "request_done"] * 2
    for name, frame in zip(names, frames, strict=True):
        assert orjson.loads(frame.partition("\ndata: ")[2])["event"] == name


async def test_a_server_that_stops_lets_its_watchers_go() -> None:
    app, feed = Quart("x"), Feed()
    add_events(app, feed)
    async with app.test_client().request("/events") as connection:
        await connection.send_complete()
        assert await connection.receive() == b"retry: 2000\n\n"
        feed.end()
        with anyio.fail_after(10):
            response = await connection.as_response()
        assert response.status_code == 200
    assert feed.watchers == 0


async def test_silence_is_filled() -> None:
    app = Quart("x")
    add_events(app, Feed(), keep_alive_s=0.01)
    async with app.test_client().request("/events") as connection:
        await connection.send_complete()
        data = b""
        while data.count(b": keep-alive\n\n") < 2:
            data += await connection.receive()
        await connection.disconnect()
    assert data.startswith(b"retry: 2000\n\n: keep-alive\n\n")
