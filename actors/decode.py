"""The decode actor: launches batched rounds and hands every lane the tokens drawn for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ninfer.actors.messages import DecodeTogether
from ninfer.actors.steps import StepActor
from ninfer.scheduler.commands import RowStart
from ninfer.scheduler.events import RoundLanded, RowLanded
from ninfer.step import DecodeResult, DecodeRound, DecodeRow, Drawn


class DecodeActor(StepActor[DecodeTogether]):
    """Runs rounds."""

    name = "decode"

    def handle(self, message: DecodeTogether) -> None:
        """Launch the round."""
        rows = tuple(self._with_copies(row, start) for row, start in zip(message.round.rows, message.rows, strict=True))
        plan = DecodeRound(rows, message.round.before)
        self._launch(message.step, lambda engine: engine.launch(plan), partial(self._landed, message, plan))

    def _with_copies(self, row: DecodeRow, start: RowStart) -> DecodeRow:
        """Where its text repeats itself, a row has guesses from there, which cost nothing."""
        wanted = start.copies if row.copied is None else 0
        copied = self._ledgers.guesses(row.lane, wanted) if wanted else ()
        return replace(row, drafts=len(copied), copied=copied) if copied else row

    def _landed(self, message: DecodeTogether, plan: DecodeRound, result: DecodeResult) -> None:
        now = self._clock.now()
        drawn = tuple(zip(message.rows, plan.rows, result.drawn, strict=True))
        rows = tuple(self._row_landed(start, row, tokens) for start, row, tokens in drawn)
        # The scheduler first, the text later: whoever got his message first wakes up first.
        self._report(RoundLanded(message.step, rows, result.device_s))
        for (start, _, tokens), row in zip(drawn, rows, strict=True):
            self._hand_over(start.request_id, tokens, now, (row.drafted, row.accepted, row.copied))

    def _row_landed(self, start: RowStart, row: DecodeRow, drawn: Drawn) -> RowLanded:
        blocks = self._ledgers.drawn(row.lane, drawn.token_ids)
        return RowLanded(
            start.request_id,
            len(drawn.token_ids),
            drawn.stopped,
            blocks,
            drawn.drafted,
            drawn.accepted,
            bool(row.copied) and start.copies > 0,
            self._free(start.request_id, drawn, self._guesses(row.lane, start.recall, drawn)),
        )
