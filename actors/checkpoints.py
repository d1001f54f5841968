"""The checkpoint-ring actor: knows which states of which histories are kept, and tells their digests.

Capturing, restoring and dropping are decided by the scheduler and done by the engine between steps; what is left to
know is what the kept states are states of. Digests of long histories take a while, so they are made on a worker
thread and remembered as long as a lane holds the same history.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from ninfer.actors.ledgers import Ledgers
from ninfer.actors.messages import DescribeSlots, SlotView
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.actors.runtime.question import Question
from ninfer.errors import ActorStopped
from ninfer.ledger import Ledger
from ninfer.scheduler.statistics import LaneView

# Monitors ask, and each asks again only when it was answered.
CAPACITY = 64


class CheckpointRingActor:
    """`lanes` says what the scheduler's lanes are at this moment."""

    def __init__(self, lanes: Callable[[], tuple[LaneView, ...]], ledgers: Ledgers) -> None:
        self.mailbox: Mailbox[Question[DescribeSlots, tuple[SlotView, ...]]] = Mailbox("checkpoint ring", CAPACITY)
        self._lanes = lanes
        self._ledgers = ledgers
        self._known: dict[int, tuple[Ledger, dict[int, str]]] = {}

    async def run(self) -> None:
        """Handle questions until the mailbox is closed."""
        async for question in self.mailbox.messages():
            question.answer(await self._describe())

    def stop(self) -> None:
        """Answer everybody who still waits."""
        for question in self.mailbox.drain():
            question.refuse(ActorStopped(f"{self.mailbox.name} has stopped"))

    async def _describe(self) -> tuple[SlotView, ...]:
        views = []
        for lane in self._lanes():
            ledger = self._ledgers[lane.lane]
            if lane.request_id is not None or ledger is None or not lane.prompt_tokens:
                views.append(SlotView(lane.lane, "", ()))
                continue
            known = self._digests_of(lane.lane, ledger)
            for count in (lane.prompt_tokens, *lane.checkpoints):
                if count not in known:
                    known[count] = await anyio.to_thread.run_sync(ledger.digest, count)
            ring = tuple((frontier, known[frontier]) for frontier in lane.checkpoints)
            views.append(SlotView(lane.lane, known[lane.prompt_tokens], ring))
        return tuple(views)

    def _digests_of(self, lane: int, ledger: Ledger) -> dict[int, str]:
        held = self._known.get(lane)
        if held is None or held[0] is not ledger:
            self._known[lane] = held = (ledger, {})
        return held[1]
