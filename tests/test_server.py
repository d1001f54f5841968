"""What only two servers on one port can show."""

from __future__ import annotations

import socket

import anyio
import pytest
from quart import Quart

from ninfer.config import HttpSettings
from ninfer.listener import bind_socket, server_config
from ninfer.server import HttpTask

pytestmark = pytest.mark.asyncio


async def test_a_port_that_somebody_else_listened_on_first() -> None:
    with bind_socket("127.0.0.1", 0) as ours, socket.socket() as theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        theirs.bind(ours.getsockname())
        theirs.listen()
        task = HttpTask(Quart("x"), ours, server_config(HttpSettings()), stopped=anyio.Event())
        may_listen, given_up = anyio.Event(), anyio.Event()
        may_listen.set()
        with anyio.fail_after(10):
            await task.run(may_listen, given_up.set)
        assert task.error is not None
        assert given_up.is_set()
        assert task.closed.is_set()
