"""What the scheduler tells about itself: counters that only grow, and gauges of this moment."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class TotalsView:
    """Counters since the start. Times are seconds; `queue_s` runs from arrival to admission."""

    admitted: int
    completed: int
    refused_overloaded: int
    refused_timeout: int
    queue_s: float
    prefill_tokens: int
    prefill_s: float
    decode_tokens: int
    decode_s: float
    rounds: int
    row_rounds: int
    engine_recoveries: int


@dataclass(slots=True)
class Totals:
    """The running counters behind :class:`TotalsView`, in the same order."""

    admitted: int = 0
    completed: int = 0
    refused_overloaded: int = 0
    refused_timeout: int = 0
    queue_s: float = 0.0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    rounds: int = 0
    row_rounds: int = 0
    engine_recoveries: int = 0

    def frozen(self) -> TotalsView:
        """A copy that no later event changes."""
        return TotalsView(*astuple(self))


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane as seen from outside."""

    lane: int
    state: str
    request_id: int | None
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """A frozen picture of the scheduler; metrics read only this."""

    lifecycle: str
    preparing: int
    waiting: int
    running: int
    prefilling: int
    decode_ready: int
    pages: int
    pages_available: int
    lanes: tuple[LaneView, ...]
    totals: TotalsView
