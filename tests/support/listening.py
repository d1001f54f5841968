"""An application on a real socket, served as the product serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from hypercorn.asyncio import serve

from ninfer.config import HttpSettings, SchedulerSettings
from ninfer.listener import bind_socket, server_config, start_listening
from tests.support.engines import FakeEngine
from tests.support.http import Served, served


@dataclass
class Listening:
    """What is served, and where."""

    served: Served
    url: str
    port: int


@asynccontextmanager
async def listening(
    engine: FakeEngine, *, http: HttpSettings | None = None, scheduler: SchedulerSettings | None = None
) -> AsyncIterator[Listening]:
    settings = http if http is not None else HttpSettings()
    async with served(engine, http=settings, scheduler=scheduler) as state:
        listener = bind_socket("127.0.0.1", 0)
        port = listener.getsockname()[1]
        config = server_config(settings)
        start_listening(listener, config)
        config.graceful_timeout = 0.2
        stopped = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(state.app, config, shutdown_trigger=stopped.wait))
            scheme = "https" if settings.tls_cert is not None else "http"
            yield Listening(state, f"{scheme}://127.0.0.1:{port}/v1", port)
            stopped.set()
