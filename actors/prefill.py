"""The prefill actor: launches prompt chunks in the order the scheduler gives them."""

from __future__ import annotations

from functools import partial

from ninfer.actors.messages import GenerationRequest, Progress, ReadChunk, ReadPart
from ninfer.actors.steps import StepActor
from ninfer.scheduler.events import ChunkLanded, PartLanded
from ninfer.step import LaneSetup, NextPart, PrefillChunk, PrefillResult


class PrefillActor(StepActor[ReadChunk | ReadPart]):
    """Reads chunks, some of them in parts; the last of a prompt draws the first token."""

    name = "prefill"
    _chunk: ReadChunk  # the newest

    def handle(self, message: ReadChunk | ReadPart) -> None:
        """Launch the chunk or its next part."""
        plan: PrefillChunk | NextPart
        if isinstance(message, ReadChunk):
            self._chunk, plan, last = message, plan_of(message), message.parts == 1
        else:
            plan, last = NextPart(self._chunk.lane), message.last
        landed = partial(self._landed, message.step, self._chunk) if last else partial(self._landed_part, message.step)
        self._launch(message.step, lambda engine: engine.launch(plan), landed)

    def _landed_part(self, step: int, result: PrefillResult) -> None:
        self._report(PartLanded(step, result.device_s))

    def _landed(self, step: int, message: ReadChunk, result: PrefillResult) -> None:
        now = self._clock.now()
        drawn = result.drawn
        count = len(drawn.token_ids) if drawn is not None else 0
        stopped = drawn is not None and drawn.stopped
        blocks = self._ledgers.drawn(message.lane, drawn.token_ids) if drawn is not None else ()
        free = 0
        if drawn is not None:
            free = self._free(message.request_id, drawn, self._guesses(message.lane, message.recall, drawn))
        self._report(ChunkLanded(step, count, stopped, result.device_s, blocks, free))
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
        parts=chunk.parts,
        foresee=chunk.foresee,
    )


def _setup(request: GenerationRequest) -> LaneSetup:
    return LaneSetup(request.sampling, request.stop_ids, request.prompt_ids, request.logprobs)
