"""What the scheduler knows of one request, and which of its states mean what."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.scheduler.transitions import RequestState
from ninfer.step import pages_for
from ninfer.types import FinishReason

WITH_LANE = frozenset(
    {
        RequestState.READING,
        RequestState.READING_IN_STEP,
        RequestState.GENERATING,
        RequestState.GENERATING_IN_STEP,
        RequestState.LEAVING,
        RequestState.ABANDONED,
    }
)
IN_STEP = frozenset(
    {
        RequestState.READING_IN_STEP,
        RequestState.GENERATING_IN_STEP,
        RequestState.LEAVING,
        RequestState.ABANDONED,
    }
)
ENDED = frozenset({RequestState.LEAVING, RequestState.ABANDONED, RequestState.REPLYING, RequestState.GONE})


@dataclass(slots=True)
class Request:
    """One request from arrival to its last byte.

    prompt   tokens to read; `limit` tokens to generate at most; both known once it is prepared
    read     prompt positions already in the cache
    drawn    tokens drawn so far; the last of them is not in the cache
    passed   how often a later request was admitted before this one while it stood at the head of the queue
    """

    id: int
    arrived: float
    deadline: float
    state: RequestState = RequestState.PREPARING
    prompt: int = 0
    limit: int = 0
    limit_reason: FinishReason = FinishReason.OUTPUT_LIMIT
    lane: int | None = None
    read: int = 0
    drawn: int = 0
    passed: int = 0

    @property
    def pages(self) -> int:
        """Pages that its whole life needs: the last token drawn is never executed (serving spec, 13.3)."""
        return pages_for(self.prompt + max(self.limit - 1, 0))

    @property
    def position(self) -> int:
        """Positions in the cache once the prompt is read."""
        return self.prompt + self.drawn - 1
