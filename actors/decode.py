"""The decode actor: runs one batched round at a time and hands every lane the token drawn for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ninfer.actors.device import DeviceGateway
from ninfer.actors.engine import EngineLike
from ninfer.actors.eventlog import EventLog
from ninfer.actors.lane import LaneActor
from ninfer.actors.messages import DecodeTogether, Draw
from ninfer.actors.runtime.clock import Clock
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.scheduler.events import Event, RoundLanded, RowLanded, StepFailed


class DecodeActor:
    """At most one round is under way (the device machine sees to it), so a mailbox of one suffices."""

    def __init__(
        self,
        device: DeviceGateway,
        lanes: Sequence[LaneActor],
        log: EventLog,
        clock: Clock,
        report: Callable[[Event], None],
    ) -> None:
        self.mailbox: Mailbox[DecodeTogether] = Mailbox("decode", 1)
        self.engine: EngineLike | None = None
        self._device = device
        self._lanes = lanes
        self._log = log
        self._clock = clock
        self._report = report

    async def run(self) -> None:
        """Handle rounds until the mailbox is closed."""
        async for message in self.mailbox.messages():
            await self._decode(message)

    async def _decode(self, message: DecodeTogether) -> None:
        engine = self.engine
        assert engine is not None, "no round is launched before the model is loaded"
        try:
            result = await self._device.run(lambda: engine.run(message.round))
        except Exception as error:
            # Whatever the engine raises is a device fault: the scheduler decides what becomes of it.
            self._report(StepFailed(message.step, f"{type(error).__name__}: {error}"))
            return
        now = self._clock.now()
        rows = []
        for request_id, drawn in zip(message.request_ids, result.drawn, strict=True):
            self._log.drawn(now, request_id, drawn.token_ids)
            rows.append(RowLanded(request_id, len(drawn.token_ids), drawn.stopped))
            self._lanes[drawn.lane].mailbox.put_nowait(Draw(request_id, drawn.token_ids, drawn.stopped, now))
        # The scheduler first, the text later: lanes wake up after this, while the next round is already on its way.
        self._report(RoundLanded(message.step, tuple(rows), result.device_s))
