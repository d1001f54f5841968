"""The decode actor: launches batched rounds and hands every lane the tokens drawn for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ninfer.actors.messages import DecodeTogether
from ninfer.actors.steps import StepActor
from ninfer.scheduler.events import RoundLanded, RowLanded
from ninfer.step import DecodeResult, DecodeRound, DecodeRow


class DecodeActor(StepActor[DecodeTogether]):
    """Runs rounds."""

    name = "decode"

    def handle(self, message: DecodeTogether) -> None:
        """Launch the round."""
        rows = tuple(self._with_copies(row, most) for row, most in zip(message.round.rows, message.copies, strict=True))
        plan = DecodeRound(rows, message.round.before)
        self._launch(message.step, lambda engine: engine.launch(plan), partial(self._landed, message, plan))

    def _with_copies(self, row: DecodeRow, most: int) -> DecodeRow:
        """Where its text repeats itself, a row has guesses from there, which cost nothing."""
        copied = self._ledgers.guesses(row.lane, most) if most else ()
        return replace(row, drafts=len(copied), copied=copied) if copied else row

    def _landed(self, message: DecodeTogether, plan: DecodeRound, result: DecodeResult) -> None:
        now = self._clock.now()
        drawn = tuple(zip(message.request_ids, plan.rows, result.drawn, strict=True))
        rows = tuple(
            RowLanded(
                request_id,
                len(tokens.token_ids),
                tokens.stopped,
                self._ledgers.drawn(row.lane, tokens.token_ids),
                tokens.drafted,
                tokens.accepted,
                row.copied is not None,
                self._free(request_id, tokens),
            )
            for request_id, row, tokens in drawn
        )
        # The scheduler first, the text later: whoever got his message first wakes up first.
        self._report(RoundLanded(message.step, rows, result.device_s))
        for request_id, row, tokens in drawn:
            self._hand_over(request_id, tokens, now, (tokens.drafted, tokens.accepted, row.copied is not None))
