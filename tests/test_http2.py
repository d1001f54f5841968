"""The mended faults of the HTTP/2 server; each has a twin that fails once a release does without the mending."""

from __future__ import annotations

import anyio
import pytest
from hypercorn.asyncio.worker_context import EventWrapper
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, BUFFER_LOW_WATER, StreamBuffer

from ninfer.http2 import PatientBuffer

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("kind", "waits"), [(PatientBuffer, True), (StreamBuffer, False)])
async def test_a_writer_waits_for_its_peer(kind: type[StreamBuffer], waits: bool) -> None:
    buffer = kind(EventWrapper)
    async with anyio.create_task_group() as tasks:

        async def push() -> None:
            await buffer.push(b"x" * BUFFER_HIGH_WATER)
            written.set()

        written = anyio.Event()
        tasks.start_soon(push)
        await anyio.lowlevel.checkpoint()
        assert await buffer.pop(0) == b""
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert written.is_set() is not waits
        while len(buffer.buffer) >= BUFFER_LOW_WATER:
            await buffer.pop(1000)
        await written.wait()


async def test_a_drained_buffer_says_so() -> None:
    buffer = PatientBuffer(EventWrapper)
    await buffer.push(b"abc")
    assert await buffer.pop(2) == b"ab"
    assert not buffer.complete
    buffer.set_complete()
    assert await buffer.pop(2) == b"c"
    assert buffer.complete
    await buffer.drain()
