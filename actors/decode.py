"""The decode actor: runs one batched round at a time and hands every lane the token drawn for it."""

from __future__ import annotations

from ninfer.actors.messages import DecodeTogether
from ninfer.actors.steps import StepActor
from ninfer.scheduler.events import RoundLanded, RowLanded


class DecodeActor(StepActor[DecodeTogether]):
    """Runs rounds."""

    name = "decode"

    async def _perform(self, message: DecodeTogether) -> None:
        result = await self._on_device(message.step, lambda engine: engine.run(message.round))
        if result is None:
            return
        now = self._clock.now()
        rows = []
        for request_id, drawn in zip(message.request_ids, result.drawn, strict=True):
            rows.append(RowLanded(request_id, len(drawn.token_ids), drawn.stopped))
            self._hand_over(request_id, drawn, now)
        # The scheduler first, the text later: lanes wake up after this, while the next round is already on its way.
        self._report(RoundLanded(message.step, tuple(rows), result.device_s))
