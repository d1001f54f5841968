"""The prefill actor: runs prompt chunks on the device, one at a time, in the order the scheduler gives them."""

from __future__ import annotations

from ninfer.actors.messages import Progress, ReadChunk
from ninfer.actors.steps import StepActor
from ninfer.scheduler.events import ChunkLanded
from ninfer.step import LaneSetup, PrefillChunk


class PrefillActor(StepActor[ReadChunk]):
    """Reads chunks; the last of a prompt draws the first token."""

    name = "prefill"

    async def _perform(self, message: ReadChunk) -> None:
        plan = plan_of(message)
        result = await self._on_device(message.step, lambda engine: engine.run(plan))
        if result is None:
            return
        now = self._clock.now()
        self._lanes[message.lane].mailbox.put_nowait(Progress(message.request_id, message.end, now))
        drawn = result.drawn
        if drawn is not None:
            self._hand_over(message.request_id, drawn, now)
        count = len(drawn.token_ids) if drawn is not None else 0
        stopped = drawn is not None and drawn.stopped
        self._report(ChunkLanded(message.step, count, stopped, result.device_s))


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
