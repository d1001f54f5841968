"""What became of a request's guesses (speculation spec, 1.7)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """Counters of one request, or of several added up; guesses of every origin count, those that were copied again.

    rounds                  rounds with at least one guess
    drafted, accepted       guesses that were verified, and were what was drawn
    fallback_steps          rounds without a guess although there is speculation
    drafted_per_position    rounds with more than i guesses
    accepted_per_position   rounds in which the first i + 1 guesses were right
    copied_rounds, copied_drafted, copied_accepted   of rounds whose guesses were copied from the request's own text
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    fallback_steps: int = 0
    drafted_per_position: tuple[int, ...] = ()
    accepted_per_position: tuple[int, ...] = ()
    copied_rounds: int = 0
    copied_drafted: int = 0
    copied_accepted: int = 0

    def __add__(self, other: DraftStatistics) -> DraftStatistics:
        return DraftStatistics(
            self.rounds + other.rounds,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.fallback_steps + other.fallback_steps,
            _added(self.drafted_per_position, other.drafted_per_position),
            _added(self.accepted_per_position, other.accepted_per_position),
            self.copied_rounds + other.copied_rounds,
            self.copied_drafted + other.copied_drafted,
            self.copied_accepted + other.copied_accepted,
        )

    @property
    def acceptance(self) -> float | None:
        """Share of right guesses; None without any guess."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens of a round with guesses, the one behind the right guesses included; None without such a round."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    def as_dict(self, backend: str, draft_window: int) -> dict[str, object]:
        """The ``speculative`` object of the request log; positions up to `draft_window` are there if nothing was."""
        positions = _added(self.accepted_per_position, (0,) * draft_window)
        return {
            "backend": backend,
            "draft_window": draft_window,
            "rounds": self.rounds,
            "drafted_tokens": self.drafted,
            "accepted_tokens": self.accepted,
            "fallback_steps": self.fallback_steps,
            "accepted_per_position": list(positions),
            "ngram_rounds": self.copied_rounds,
            "ngram_drafted_tokens": self.copied_drafted,
            "ngram_accepted_tokens": self.copied_accepted,
        }


def landed(drafted: int, accepted: int, *, copied: bool = False) -> DraftStatistics:
    """What one round of one request adds, on a server that speculates."""
    assert 0 <= accepted <= drafted
    if not drafted:
        return DraftStatistics(fallback_steps=1)
    return DraftStatistics(
        rounds=1,
        drafted=drafted,
        accepted=accepted,
        drafted_per_position=(1,) * drafted,
        accepted_per_position=(1,) * accepted,
        copied_rounds=int(copied),
        copied_drafted=drafted if copied else 0,
        copied_accepted=accepted if copied else 0,
    )


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))
