"""The prefill actor: launches prompt chunks in the order the scheduler gives them."""

from __future__ import annotations

from functools import partial

from ninfer.actors.messages import GenerationRequest, Progress, ReadChunk
from ninfer.actors.steps import StepActor
from ninfer.scheduler.events import ChunkLanded
from ninfer.step import LaneSetup, PrefillChunk, PrefillResult


class PrefillActor(StepActor[ReadChunk]):
    """Reads chunks; the last of a prompt draws the first token."""

    name = "prefill"

    def handle(self, message: ReadChunk) -> None:
        """Launch the chunk."""
        plan = plan_of(message)
        self._launch(message.step, lambda engine: engine.launch(plan), partial(self._landed, message))

    def _landed(self, message: ReadChunk, result: PrefillResult) -> None:
        now = self._clock.now()
        drawn = result.drawn
        count = len(drawn.token_ids) if drawn is not None else 0
        stopped = drawn is not None and drawn.stopped
        blocks = self._ledgers.drawn(message.lane, drawn.token_ids) if drawn is not None else ()
        self._report(ChunkLanded(message.step, count, stopped, result.device_s, blocks))
        self._tell_lane(message.lane, Progress(message.request_id, message.end, now))
        if drawn is not None:
            self._hand_over(message.request_id, drawn, now)


def plan_of(chunk: ReadChunk) -> PrefillChunk:
    """The engine's plan for a chunk: the ids of its positions, and the lane's set-up with the first of them."""
    request = chunk.request
    return PrefillChunk(
        lane=chunk.lane,
        begin=chunk.begin,
        token_ids=request.prompt_ids[chunk.begin : chunk.end],
        mapping=chunk.mapping,
        setup=_setup(request) if chunk.first else None,
        sample=chunk.sample,
        before=chunk.before,
        after=chunk.after,
        mask=chunk.mask,
    )


def _setup(request: GenerationRequest) -> LaneSetup:
    return LaneSetup(request.sampling, request.stop_ids, request.prompt_ids, request.logprobs)
