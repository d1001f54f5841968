"""What the HTTP side sees of generation requests, for metrics: how they ended, and how long they took.

The scheduler counts steps and tokens; who left, and what a client waited for, shows here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ninfer.actors.messages import Admitted, ConstraintReport, Finished, PrefillProgress, Reply, TextDelta
from ninfer.api.exposition import Histogram

# Serving spec, 4.4.
REQUEST_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
GAP_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Outcome(Enum):
    """How a generation request ends."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"  # the client left
    FAILED = "failed"  # the server's doing
    REJECTED = "rejected"  # no capacity, no time, or not to be prepared


@dataclass(frozen=True, slots=True)
class LastRequest:
    """The last finished request with at least two tokens; seconds from its first token to its last."""

    completion_tokens: int
    generation_s: float

    @property
    def inter_token_s(self) -> float:
        """Seconds between two of its tokens, on average."""
        return self.generation_s / (self.completion_tokens - 1)


class Constraints:
    """Running counts of constrained requests, and seconds that went into their masks."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.cache = dict.fromkeys(("hit", "built", "waited"), 0)
        self.prepare_s = 0.0
        self.mask_s = 0.0
        self.matcher_s = 0.0

    def saw(self, report: ConstraintReport) -> None:
        """Take note of how one went."""
        self.cache[report.cache] += 1
        self.prepare_s += report.prepare_s
        self.mask_s += report.mask_s
        self.matcher_s += report.matcher_s


class Observed:
    """Running counts of one process."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.waiting_cancelled = 0
        self.cancelled_prefills = 0
        self.cancelled_prefill_tokens = 0
        self.first_token = Histogram(REQUEST_BOUNDS_S)
        self.duration = Histogram(REQUEST_BOUNDS_S)
        self.queue = Histogram(REQUEST_BOUNDS_S)
        self.gaps = Histogram(GAP_BOUNDS_S)
        self.last: LastRequest | None = None
        self.constraints = Constraints()


class Watched:
    """One request on its way; `received_at` is on the clock of its replies."""

    def __init__(self, observed: Observed, received_at: float, *, constrained: bool = False) -> None:
        self._constrained = constrained
        self._observed = observed
        self._received_at = received_at
        self._admitted: Admitted | None = None
        self._read = 0
        self._newest: tuple[int, float] | None = None

    def saw(self, reply: Reply) -> None:
        """Take note of a reply."""
        match reply:
            case Admitted():
                self._admitted = reply
                self._observed.queue.observe(reply.at - self._received_at)
            case PrefillProgress():
                self._read = reply.processed - reply.cached
            case TextDelta():
                self._tokens(reply.completion_tokens, reply.first_token_at, reply.at)
            case Finished():
                self._finished(reply)

    def ended(self, outcome: Outcome, at: float) -> None:
        """It is over; called once."""
        observed = self._observed
        observed.outcomes[outcome] += 1
        observed.constraints.outcomes[outcome] += self._constrained
        if outcome is Outcome.COMPLETED:
            observed.duration.observe(at - self._received_at)
        elif outcome is Outcome.CANCELLED and self._admitted is None:
            observed.waiting_cancelled += 1
        elif outcome is Outcome.CANCELLED and self._newest is None:
            observed.cancelled_prefills += 1
            observed.cancelled_prefill_tokens += self._read

    def _tokens(self, count: int, first_at: float | None, at: float | None) -> None:
        if first_at is None or at is None:
            return
        if self._newest is None:
            self._newest = (1, first_at)
            self._observed.first_token.observe(first_at - self._received_at)
        before, since = self._newest
        if count > before:
            # Text that was held back comes with several tokens at once, whose times are then spread evenly.
            self._observed.gaps.observe((at - since) / (count - before), count - before)
            self._newest = (count, at)

    def _finished(self, reply: Finished) -> None:
        count, first, last = reply.usage.completion_tokens, reply.first_token_at, reply.last_token_at
        self._tokens(count, first, last)
        if reply.constraint is not None:
            self._observed.constraints.saw(reply.constraint)
        if count >= 2 and first is not None and last is not None:
            self._observed.last = LastRequest(count, last - first)
