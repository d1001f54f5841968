"""How many guesses each row of a round may have, and what comes of them (speculation spec, 3.7 and 9.5)."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition
from ninfer.scheduler.events import RoundLanded, RowLanded
from ninfer.scheduler.flight import Step
from ninfer.scheduler.requests import Request
from ninfer.speculation.window import RoundCosts, choose


class Windows:
    """Chooses by the settings, or by what guesses have been worth to each request and what rounds have taken."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._costs = RoundCosts()

    def choose(self, requests: Sequence[Request]) -> tuple[tuple[int, int], ...]:
        """For each row of the next round: guesses of the engine's own, and how many may be copied instead."""
        if not self._settings.guesses:
            return ((0, 0),) * len(requests)
        copies = [
            min(request.ahead if request.held else self._settings.copied_tokens, request.open_drafts)
            for request in requests
        ]
        # What may follow the drafter's guesses is not known where each has another mask behind it.
        own = [0 if request.held else min(self._settings.draft_tokens, request.open_drafts) for request in requests]
        if self._settings.adaptive_drafts:
            own = list(choose([request.guesses for request in requests], own, self._costs))
        return tuple(zip(own, copies, strict=True))

    def landed(self, step: Step, event: RoundLanded) -> None:
        """Learn from a round; raises IllegalTransition if it has drawn more than it was launched for."""
        for request, row, (own, copies) in zip(step.requests, event.rows, step.drafts, strict=True):
            _check(request, row, copies if row.copied else own)
            # A round in which the engine had no guess to make, as at the end of a block, says nothing about them.
            if self._settings.adaptive_drafts and not request.held and not row.copied and (row.drafted or not own):
                request.guesses = request.guesses.after(row.drafted, row.accepted)
        if self._settings.adaptive_drafts and not any(row.copied for row in event.rows):
            width = max(row.drafted for row in event.rows)
            self._costs = self._costs.after(len(event.rows), width, event.device_s)


def _check(request: Request, row: RowLanded, allowed: int) -> None:
    if not 1 <= row.drawn <= 1 + row.accepted <= 1 + row.drafted <= 1 + allowed:
        raise IllegalTransition(
            f"request {request.id} drew {row.drawn} tokens with {row.accepted} of {row.drafted} guesses right, "
            f"{allowed} were allowed"
        )
