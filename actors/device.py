"""The device gateway: one dedicated thread owns the device and runs one command at a time, in order.

The event loop hands over a function and waits for its result without ever touching the device itself.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

import anyio
from anyio.from_thread import run_sync as run_on_loop
from anyio.lowlevel import EventLoopToken, current_token

from ninfer.errors import ActorStopped

T = TypeVar("T")


class _Job:
    """One function on its way to the thread, and its outcome on the way back."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.done = anyio.Event()
        self.result: object = None
        self.error: BaseException | None = None


class DeviceGateway:
    """Runs functions on the device thread. Use as an async context manager; leaving it waits for the running one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._token: EventLoopToken | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    async def __aenter__(self) -> DeviceGateway:
        self._token = current_token()
        self._thread = threading.Thread(target=self._serve, name="ninfer-device", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closed = True
        self._jobs.put(None)
        thread = self._thread
        assert thread is not None
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(thread.join)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work` on the device thread, or its exception.

        A caller that is cancelled does not interrupt the device: the work is finished first and its result dropped.
        """
        if self._closed:
            raise ActorStopped("the device gateway has stopped")
        job = _Job(work)
        self._jobs.put(job)
        with anyio.CancelScope(shield=True):
            await job.done.wait()
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.result = job.work()
            except BaseException as error:
                # Handed to whoever waits for it, interrupts included: this thread has nobody else to tell.
                job.error = error
            run_on_loop(job.done.set, token=self._token)
