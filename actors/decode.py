"""The decode actor: launches batched rounds and hands every lane the token drawn for it."""

from __future__ import annotations

from functools import partial

from ninfer.actors.messages import DecodeTogether
from ninfer.actors.steps import StepActor
from ninfer.scheduler.events import RoundLanded, RowLanded
from ninfer.step import DecodeResult


class DecodeActor(StepActor[DecodeTogether]):
    """Runs rounds."""

    name = "decode"

    def handle(self, message: DecodeTogether) -> None:
        """Launch the round."""
        self._launch(message.step, lambda engine: engine.launch(message.round), partial(self._landed, message))

    def _landed(self, message: DecodeTogether, result: DecodeResult) -> None:
        now = self._clock.now()
        drawn = tuple(zip(message.request_ids, result.drawn, strict=True))
        rows = tuple(
            RowLanded(
                request_id,
                len(row.token_ids),
                row.stopped,
                self._ledgers.drawn(row.lane, row.token_ids),
                row.drafted,
                row.accepted,
            )
            for request_id, row in drawn
        )
        # The scheduler first, the text later: whoever got his message first wakes up first.
        self._report(RoundLanded(message.step, rows, result.device_s))
        for request_id, row in drawn:
            self._hand_over(request_id, row, now, in_round=True)
