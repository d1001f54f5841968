"""What the prefill actor and the decode actor have in common: they launch steps and tell the news of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog

from ninfer.actors.device import DeviceGateway
from ninfer.actors.engine import EngineLike, Pending
from ninfer.actors.eventlog import EventLog
from ninfer.actors.lane import LaneActor
from ninfer.actors.ledgers import Ledgers
from ninfer.actors.masks import Guesses, Masks
from ninfer.actors.messages import Draw, LaneMessage
from ninfer.actors.runtime.clock import Clock
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.errors import ActorStopped
from ninfer.scheduler.events import Event, StepFailed
from ninfer.step import Drawn

log = structlog.get_logger(__name__)

M = TypeVar("M")
R = TypeVar("R")


class StepActor(Generic[M]):
    """Launches a step for each message, without waiting for the outcome of any.

    At most two steps are under way (the device machine sees to it), so a mailbox of two suffices.

    engine   set once the model is loaded, before the first step
    """

    name: str

    def __init__(
        self,
        device: DeviceGateway,
        lanes: Sequence[LaneActor],
        ledgers: Ledgers,
        masks: Masks,
        log: EventLog,
        clock: Clock,
        report: Callable[[Event], None],
    ) -> None:
        self.mailbox: Mailbox[M] = Mailbox(self.name, 2)
        self.engine: EngineLike | None = None
        self._device = device
        self._lanes = lanes
        self._ledgers = ledgers
        self._masks = masks
        self._log = log
        self._clock = clock
        self._report = report

    async def run(self) -> None:
        """Launch steps until the mailbox is closed."""
        async for message in self.mailbox.messages():
            self.handle(message)

    def handle(self, message: M) -> None:
        """Launch the step of this message; never waits."""
        raise NotImplementedError

    def _launch(self, step: int, launch: Callable[[EngineLike], Pending[R]], landed: Callable[[R], None]) -> None:
        """Have the device do it; `landed` takes what the engine answers, on the event loop."""
        engine = self.engine
        assert engine is not None, "no step is launched before the model is loaded"

        def failed(error: BaseException) -> None:
            # Whatever the engine raises is a device fault: the scheduler decides what becomes of it.
            self._report(StepFailed(step, f"{type(error).__name__}: {error}"))

        self._device.launch(step, lambda: launch(engine), landed, failed)

    def _free(self, request_id: int, drawn: Drawn, guesses: Guesses) -> int:
        """How many more tokens a request may draw under its mask; with 0 the one behind these is made meanwhile, and
        those behind guesses.
        """
        if drawn.stopped:
            self._masks.stopped(request_id, drawn.token_ids)
            return 0
        return self._masks.drawn(request_id, drawn.token_ids, guesses)

    def _guesses(self, lane: int, recall: int, drawn: Drawn) -> Guesses:
        """What may follow these tokens, which the lane's text has already; up to `recall` of it from the text."""
        recalled = self._ledgers.guesses(lane, recall) if recall else ()
        return Guesses(recalled) if recalled else Guesses(drawn.foreseen, own=True)

    def _hand_over(
        self, request_id: int, drawn: Drawn, now: float, guesses: tuple[int, int, bool] | None = None
    ) -> None:
        """Give a lane the tokens drawn for its request."""
        self._log.drawn(now, request_id, drawn.token_ids)
        self._tell_lane(drawn.lane, Draw(request_id, drawn.token_ids, drawn.stopped, now, guesses, drawn.logprobs))

    def _tell_lane(self, lane: int, message: LaneMessage) -> None:
        try:
            self._lanes[lane].mailbox.put_nowait(message)
        except ActorStopped:
            log.debug("news for a lane that has stopped", lane=lane)  # its client has been told when it stopped
