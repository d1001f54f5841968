"""The short way of a piece of an answer: when there is one, that it keeps the order, and that it leaves no trace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from anyio.abc import SocketStream
from hypercorn.asyncio import serve

from ninfer.api.edge import WRITE_NOW
from ninfer.config import HttpSettings
from ninfer.listener import bind_socket, server_config, start_listening

pytestmark = pytest.mark.asyncio

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Answer = Callable[[Scope, Send], Awaitable[None]]
CHUNKED = (b"content-type", b"text/plain")


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[SocketStream]:
    """A connection to a server that answers like this."""

    async def app(scope: Scope, _receive: Any, send: Send) -> None:
        if scope["type"] == "http":
            await answer(scope, send)

    listener = bind_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = server_config(HttpSettings())
    start_listening(listener, config)
    config.graceful_timeout = 0.2
    stopped = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve(app, config, shutdown_trigger=stopped.wait))  # type: ignore[arg-type]
        async with await anyio.connect_tcp("127.0.0.1", port) as connection:
            yield connection
        stopped.set()


async def head(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})


async def body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def http1(connection: SocketStream, version: str = "1.1") -> bytes:
    await connection.send(f"GET / HTTP/{version}\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    return (await all_of(connection)).partition(b"\r\n\r\n")[2]


async def all_of(connection: SocketStream) -> bytes:
    return b"".join([part async for part in connection])


def opened(window: int = 65_535) -> h2.connection.H2Connection:
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    peer.local_settings = h2.settings.Settings(
        client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
    )
    peer.initiate_connection()
    headers = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "x")]
    peer.send_headers(1, headers, end_stream=True)
    return peer


async def http2(connection: SocketStream, window: int = 65_535) -> tuple[bytes, list[int]]:
    """The body, and the sizes of the frames that it came in."""
    peer = opened(window)
    await connection.send(peer.data_to_send())
    read, sizes = b"", []
    while True:
        for event in peer.receive_data(await connection.receive()):
            if isinstance(event, h2.events.DataReceived):
                read += event.data
                sizes.append(len(event.data))
                peer.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                return read, [size for size in sizes if size]
        await connection.send(peer.data_to_send())


async def mixed(scope: Scope, send: Send) -> None:
    """Pieces on both ways in turns."""
    write_now = scope["state"][WRITE_NOW]
    assert not write_now(b"before the head")
    await head(send, CHUNKED)
    for number in range(20):
        assert write_now(b"<%d>" % number)
        if number % 3 == 0:
            await body(send, b"(%d)" % number, more=True)
            while not write_now(b"[%d]" % number):  # what the ordinary way was given may not be on the wire yet
                await anyio.lowlevel.checkpoint()
    await body(send, b"", more=False)
    assert not write_now(b"behind the end")


MIXED = b"".join(b"<%d>" % n + (b"(%d)[%d]" % (n, n) if n % 3 == 0 else b"") for n in range(20))


async def test_both_ways_keep_the_order_in_chunks() -> None:
    async with serving(mixed) as connection:
        read = await http1(connection)
        text, rest = b"", read
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            text += rest[: int(size, 16)]
            assert rest[int(size, 16) :][:2] == b"\r\n"
            rest = rest[int(size, 16) + 2 :]
        assert text == MIXED
        assert read.endswith(b"\r\n0\r\n\r\n")
        assert read.startswith(b"3\r\n<0>\r\n3\r\n(0)\r\n3\r\n[0]\r\n")


async def test_both_ways_keep_the_order_in_frames() -> None:
    async with serving(mixed) as connection:
        text, sizes = await http2(connection)
        assert text == MIXED
        assert len(sizes) == 34  # a frame for each


async def test_an_answer_without_chunks_has_no_short_way() -> None:
    said: list[bool] = []

    async def answer(scope: Scope, send: Send) -> None:
        await head(send, (b"Content-Length", b"4"))
        said.append(scope["state"][WRITE_NOW](b"ab"))
        await body(send, b"abcd", more=False)

    async def unnamed(scope: Scope, send: Send) -> None:
        await head(send)
        said.append(scope["state"][WRITE_NOW](b"ab"))
        await body(send, b"abcd", more=False)

    async with serving(answer) as connection:
        assert await http1(connection) == b"abcd"
    async with serving(unnamed) as connection:
        assert await http1(connection, "1.0") == b"abcd"
    assert said == [False, False]


async def test_each_answer_of_a_connection_is_told_apart() -> None:
    async def answer(scope: Scope, send: Send) -> None:
        if scope["path"] == "/named":
            await head(send, (b"content-length", b"2"))
            assert not scope["state"][WRITE_NOW](b"no")
            await body(send, b"ab", more=False)
        else:
            await head(send)
            assert scope["state"][WRITE_NOW](b"cd")
            await body(send, b"", more=False)

    async with serving(answer) as connection:
        for path, end in (("/", b"2\r\ncd\r\n0\r\n\r\n"), ("/named", b"\r\n\r\nab"), ("/", b"2\r\ncd\r\n0\r\n\r\n")):
            await connection.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            read = b""
            while not read.endswith(end):
                read += await connection.receive()


@pytest.mark.parametrize("peer", [http1, http2])
async def test_a_slow_peer_is_left_to_the_ordinary_way(peer: Callable[[SocketStream], Awaitable[Any]]) -> None:
    written: list[int] = []
    sent = anyio.Event()

    async def answer(scope: Scope, send: Send) -> None:
        await head(send, CHUNKED)
        while scope["state"][WRITE_NOW](b"x" * 10_000):  # until the system takes no more, or the window is used up
            written.append(10_000)
        sent.set()
        await body(send, b"y" * 5, more=False)

    async with serving(answer) as connection:
        if peer is http1:
            await connection.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await sent.wait()
            read = await all_of(connection)
            assert read.count(b"x") - read.partition(b"\r\n\r\n")[0].count(b"x") == sum(written)
            assert read.endswith(b"5\r\nyyyyy\r\n0\r\n\r\n")
        else:
            text, _ = await http2(connection)
            assert text == b"x" * sum(written) + b"y" * 5
            assert sum(written) == 60_000  # the window holds 65,535


async def test_a_frame_is_no_longer_than_the_peer_takes() -> None:
    async def answer(scope: Scope, send: Send) -> None:
        await head(send, CHUNKED)
        assert not scope["state"][WRITE_NOW](b"x" * 16_385)
        assert scope["state"][WRITE_NOW](b"x" * 16_384)
        await body(send, b"", more=False)

    async with serving(answer) as connection:
        assert await http2(connection) == (b"x" * 16_384, [16_384])


async def test_a_peer_that_has_gone_gets_nothing() -> None:
    told: list[bool] = []
    gone, done = anyio.Event(), anyio.Event()

    async def answer(scope: Scope, send: Send) -> None:
        await head(send, CHUNKED)
        write_now = scope["state"][WRITE_NOW]
        assert write_now(b"one")
        await gone.wait()
        with anyio.fail_after(5):
            while write_now(b"x" * 10_000):
                await anyio.lowlevel.checkpoint()
        told.append(True)
        done.set()

    async with serving(answer) as connection:
        await connection.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await connection.receive()
        await connection.aclose()
        gone.set()
        await done.wait()
    assert told == [True]
