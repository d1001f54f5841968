"""The prefill actor: runs prompt chunks on the device, one at a time, in the order the scheduler gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ninfer.actors.device import DeviceGateway
from ninfer.actors.engine import EngineLike
from ninfer.actors.eventlog import EventLog
from ninfer.actors.lane import LaneActor
from ninfer.actors.messages import Draw, Progress, ReadChunk
from ninfer.actors.runtime.clock import Clock
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.scheduler.events import ChunkLanded, Event, StepFailed
from ninfer.step import LaneSetup, PrefillChunk


class PrefillActor:
    """At most one chunk is under way (the device machine sees to it), so a mailbox of one suffices."""

    def __init__(
        self,
        device: DeviceGateway,
        lanes: Sequence[LaneActor],
        log: EventLog,
        clock: Clock,
        report: Callable[[Event], None],
    ) -> None:
        self.mailbox: Mailbox[ReadChunk] = Mailbox("prefill", 1)
        self.engine: EngineLike | None = None
        self._device = device
        self._lanes = lanes
        self._log = log
        self._clock = clock
        self._report = report

    async def run(self) -> None:
        """Handle chunks until the mailbox is closed."""
        async for chunk in self.mailbox.messages():
            await self._read(chunk)

    async def _read(self, chunk: ReadChunk) -> None:
        engine = self.engine
        assert engine is not None, "no chunk is launched before the model is loaded"
        plan = plan_of(chunk)
        try:
            result = await self._device.run(lambda: engine.run(plan))
        except Exception as error:
            # Whatever the engine raises is a device fault: the scheduler decides what becomes of it.
            self._report(StepFailed(chunk.step, f"{type(error).__name__}: {error}"))
            return
        now = self._clock.now()
        lane = self._lanes[chunk.lane].mailbox
        lane.put_nowait(Progress(chunk.request_id, chunk.end, now))
        drawn = result.drawn
        if drawn is not None:
            self._log.drawn(now, chunk.request_id, drawn.token_ids)
            lane.put_nowait(Draw(chunk.request_id, drawn.token_ids, drawn.stopped, now))
        count = len(drawn.token_ids) if drawn is not None else 0
        stopped = drawn is not None and drawn.stopped
        self._report(ChunkLanded(chunk.step, count, stopped, result.device_s))


def plan_of(chunk: ReadChunk) -> PrefillChunk:
    """The engine's plan for a chunk: the ids of its positions, and the lane's set-up with the first of them."""
    request = chunk.request
    first = chunk.begin == 0
    return PrefillChunk(
        lane=chunk.lane,
        begin=chunk.begin,
        token_ids=request.prompt_ids[chunk.begin : chunk.end],
        mapping=chunk.mapping,
        setup=LaneSetup(request.sampling, request.stop_ids) if first else None,
        sample=chunk.sample,
    )
