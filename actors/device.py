"""The device gateway: one thread gives the device its work, a second one waits for what comes of it.

Launches happen in the order of their step numbers and never wait for a result, so the device can have the next step
before the last one is done. Results come back to the event loop in the same order. Any other work on the device (load,
warm up, reset) takes its place among the launches and begins when everything launched before it has been waited for.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio
from anyio.from_thread import run_sync as run_on_loop
from anyio.lowlevel import EventLoopToken, current_token

from ninfer.actors.engine import Pending
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.errors import ActorStopped

R = TypeVar("R")
T = TypeVar("T")


class _Loop(Protocol):
    """An event loop, as far as another thread may use it."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: object) -> object:
        """Have the loop make this call; waits for nothing."""


class _Job:
    """One function on its way to the thread, and its outcome on the way back."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.done = anyio.Event()
        self.result: object = None
        self.error: BaseException | None = None


class _Step(Generic[R]):
    """One launch, what it left on the device, and who is told of the outcome."""

    def __init__(
        self, launch: Callable[[], Pending[R]], landed: Callable[[R], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._launch = launch
        self._landed = landed
        self._failed = failed
        self._pending: Pending[R] | None = None
        self._result: R | None = None
        self._error: BaseException | None = None

    def launch(self) -> None:
        """On the device thread. An error lands in its turn, like a result."""
        try:
            self._pending = self._launch()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """On the thread that waits."""
        if self._pending is None:
            return
        try:
            self._result = self._pending.wait()
        except BaseException as error:
            # Handed to whoever asked for the step, interrupts included: this thread has nobody else to tell.
            self._error = error

    @property
    def failed(self) -> bool:
        """Whether it is known to have failed."""
        return self._error is not None

    def tell(self) -> None:
        """On the event loop."""
        if self._error is not None:
            self._failed(self._error)
        else:
            self._landed(cast(R, self._result))


class DeviceGateway:
    """Use as an async context manager, with `deliver` as a task; leaving it waits for what the device still runs."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Job | _Step[Any] | None] = queue.SimpleQueue()
        self._in_flight: queue.Queue[_Step[Any] | None] = queue.Queue()
        # Unlimited, because its writer is limited: the scheduler has a step or two in flight.
        self._outcomes: Mailbox[_Step[Any]] = Mailbox("device outcomes", math.inf)
        self._early: dict[int, _Step[Any]] = {}
        self._next_step = 1
        self._token: EventLoopToken | None = None
        self._loop: _Loop
        self._threads: list[threading.Thread] = []
        self._closed = False
        # Whether a step has failed since the engine was reset: memory is not to be trusted then. A step's failure shows
        # here before any work begins that was given to the device behind it.
        self.failed = False

    async def __aenter__(self) -> DeviceGateway:
        self._token = current_token()
        self._loop = cast(_Loop, self._token.native_token)
        for name, serve in (("ninfer-device", self._serve), ("ninfer-device-results", self._serve_results)):
            thread = threading.Thread(target=serve, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closed = True
        self._work.put(None)
        with anyio.CancelScope(shield=True):
            for thread in self._threads:
                await anyio.to_thread.run_sync(thread.join)
        self._outcomes.drain()

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work` on the device thread, or its exception; no step is in flight meanwhile.

        A caller that is cancelled does not interrupt the device: the work is finished first and its result dropped.
        """
        if self._closed:
            raise ActorStopped("the device gateway has stopped")
        job = _Job(work)
        self._work.put(job)
        with anyio.CancelScope(shield=True):
            await job.done.wait()
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    def reset(self, reset: Callable[[], None]) -> None:
        """On the device thread: clean the engine up, which can be trusted again if that does not raise."""
        reset()
        self.failed = False

    def launch(
        self,
        number: int,
        launch: Callable[[], Pending[R]],
        landed: Callable[[R], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Have a step launched, and hear of its outcome in the order of the launches.

        number   steps are numbered from 1 without gaps; one that comes before its predecessor is held back for it,
                 because several actors launch steps and none of them knows of the others
        """
        if self._closed:
            raise ActorStopped("the device gateway has stopped")
        self._early[number] = _Step(launch, landed, failed)
        while (step := self._early.pop(self._next_step, None)) is not None:
            self._next_step += 1
            self._work.put(step)

    async def deliver(self) -> None:
        """Tell of outcomes, in order, until cancelled."""
        async for step in self._outcomes.messages():
            step.tell()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            if isinstance(work, _Step):
                work.launch()
                self.failed |= work.failed
                self._in_flight.put(work)
                continue
            self._in_flight.join()
            try:
                work.result = work.work()
            except BaseException as error:
                # As above: whoever waits for it is told.
                work.error = error
            run_on_loop(work.done.set, token=self._token)
        self._in_flight.put(None)

    def _serve_results(self) -> None:
        while (step := self._in_flight.get()) is not None:
            step.wait()
            self.failed |= step.failed
            # Without waiting for the loop to have taken it: being woken for nothing but that, once a round, costs both
            # threads the interpreter. Calls are made in their order, those of a job's end included.
            self._loop.call_soon_threadsafe(self._outcomes.put_nowait, step)
            self._in_flight.task_done()
