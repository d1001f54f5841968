"""How many guesses each row of a round may have, and what comes of them (speculation spec, 3.7 and 9.5).

Where each token has another mask behind it (`Request.held`), a guess can only be verified if the mask behind it is made
first. So the engine is told a round before to make the guesses of such a row, and how many it has is known when their
masks are there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition
from ninfer.scheduler.events import MaskReady, RoundLanded, RowLanded
from ninfer.scheduler.flight import Step, Window
from ninfer.scheduler.requests import Request
from ninfer.speculation.window import RoundCosts, choose, mean_mask_s, worth_masks


class Windows:
    """Chooses by the settings, or by what guesses have been worth to each request and what rounds have taken."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._costs = RoundCosts()

    def choose(self, requests: Sequence[Request]) -> tuple[Window, ...]:
        """For each row of the next round."""
        settings = self._settings
        if not settings.guesses:
            return (Window(),) * len(requests)
        wished = [min(settings.draft_tokens, request.open_drafts) for request in requests]
        if settings.adaptive_drafts:
            masks = [request.mask_s if request.held else 0.0 for request in requests]
            wished = list(choose([request.guesses for request in requests], wished, self._costs, masks))
        return tuple(self._window(request, wish) for request, wish in zip(requests, wished, strict=True))

    def first(self, request: Request) -> Window:
        """What is made ready for the first row of a request, with the token that the end of its prompt draws."""
        settings = self._settings
        if not settings.guesses or not request.held:
            return Window()
        wished = min(settings.draft_tokens, request.open_drafts)
        if settings.adaptive_drafts:
            (wished,) = choose([request.guesses], [wished], self._costs, [0.0])
        return self._window(request, wished)

    def _window(self, request: Request, wished: int) -> Window:
        settings = self._settings
        if not request.held:
            return Window(wished, min(settings.copied_tokens, request.open_drafts), wished=wished)
        ahead = min(request.ahead, request.open_drafts)
        # At least one token is drawn before the next row, and masks behind guesses have to be worth their time.
        most = max(0, request.open_drafts - 1) if worth_masks(request.mask_s, request.round_s) else 0
        return Window(
            own=min(ahead, wished) if request.guessed else 0,
            copies=0 if request.guessed else ahead,
            foresee=min(wished, most),
            recall=min(settings.copied_tokens, most),
            wished=wished,
        )

    def masked(self, request: Request, event: MaskReady) -> None:
        """Learn what a mask takes, and which guesses have one."""
        request.ahead, request.guessed = event.ahead, event.guessed
        request.mask_s = mean_mask_s(request.mask_s, event.mask_s)

    def landed(self, step: Step, event: RoundLanded) -> None:
        """Learn from a round; raises IllegalTransition if it has drawn more than it was launched for."""
        for request, row, window in zip(step.requests, event.rows, step.windows, strict=True):
            _check(request, row, window.copies if row.copied else window.own)
            request.round_s = event.device_s
            if self._settings.adaptive_drafts and not row.copied:
                _learn(request, row, window)
        if self._settings.adaptive_drafts and _is_typical(step, event):
            width = max(row.drafted for row in event.rows)
            self._costs = self._costs.after(len(event.rows), width, event.device_s)


def _learn(request: Request, row: RowLanded, window: Window) -> None:
    """What a row says about the engine's guesses."""
    if not window.wished:
        request.guesses = request.guesses.after(0, 0)
    elif request.held and request.guessed > request.ahead == window.own == row.drafted == row.accepted:
        # The one behind them was refused by the grammar, as wrong as if it had been verified.
        request.guesses = request.guesses.after(row.drafted + 1, row.accepted)
    elif row.drafted:
        # A round in which the engine had no guess to make, as at the end of a block, says nothing about them.
        request.guesses = request.guesses.after(row.drafted, row.accepted)


def _is_typical(step: Step, event: RoundLanded) -> bool:
    """Whether what a round took is what its guesses cost: those for the next round are made in it as well."""
    if any(row.copied for row in event.rows):
        return False
    return all(
        not request.held or window.foresee == row.drafted
        for request, row, window in zip(step.requests, event.rows, step.windows, strict=True)
    )


def _check(request: Request, row: RowLanded, allowed: int) -> None:
    if not 1 <= row.drawn <= 1 + row.accepted <= 1 + row.drafted <= 1 + allowed:
        raise IllegalTransition(
            f"request {request.id} drew {row.drawn} tokens with {row.accepted} of {row.drafted} guesses right, "
            f"{allowed} were allowed"
        )
