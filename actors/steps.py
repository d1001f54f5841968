"""What the prefill actor and the decode actor have in common: one step at a time on the device, and the news of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ninfer.actors.device import DeviceGateway
from ninfer.actors.engine import EngineLike
from ninfer.actors.eventlog import EventLog
from ninfer.actors.lane import LaneActor
from ninfer.actors.messages import Draw
from ninfer.actors.runtime.clock import Clock
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.scheduler.events import Event, StepFailed
from ninfer.step import Drawn

M = TypeVar("M")
R = TypeVar("R")


class StepActor(Generic[M]):
    """At most one step is under way (the device machine sees to it), so a mailbox of one suffices.

    engine   set once the model is loaded, before the first step
    """

    name: str

    def __init__(
        self,
        device: DeviceGateway,
        lanes: Sequence[LaneActor],
        log: EventLog,
        clock: Clock,
        report: Callable[[Event], None],
    ) -> None:
        self.mailbox: Mailbox[M] = Mailbox(self.name, 1)
        self.engine: EngineLike | None = None
        self._device = device
        self._lanes = lanes
        self._log = log
        self._clock = clock
        self._report = report

    async def run(self) -> None:
        """Perform steps until the mailbox is closed."""
        async for message in self.mailbox.messages():
            await self._perform(message)

    async def _perform(self, message: M) -> None:
        raise NotImplementedError

    async def _on_device(self, step: int, work: Callable[[EngineLike], R]) -> R | None:
        """What the engine answers, or None if it raised; the scheduler has been told then."""
        engine = self.engine
        assert engine is not None, "no step is launched before the model is loaded"
        try:
            return await self._device.run(lambda: work(engine))
        except Exception as error:
            # Whatever the engine raises is a device fault: the scheduler decides what becomes of it.
            self._report(StepFailed(step, f"{type(error).__name__}: {error}"))
            return None

    def _hand_over(self, request_id: int, drawn: Drawn, now: float) -> None:
        """Give a lane the tokens drawn for its request."""
        self._log.drawn(now, request_id, drawn.token_ids)
        self._lanes[drawn.lane].mailbox.put_nowait(Draw(request_id, drawn.token_ids, drawn.stopped, now))
