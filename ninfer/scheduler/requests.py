"""What the scheduler knows of one request, and which of its states mean what."""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer.scheduler.transitions import RequestState
from ninfer.speculation.window import Experience
from ninfer.step import pages_for
from ninfer.types import FinishReason, Marks

# How many of the steps in flight a request in this state is part of; none in a state that is not named.
STEPS = {
    RequestState.READING_IN_STEP: 1,
    RequestState.READING_AHEAD: 2,
    RequestState.GENERATING: 0,
    RequestState.MASKING: 0,
    RequestState.GENERATING_IN_STEP: 1,
    RequestState.GENERATING_AHEAD: 2,
    RequestState.LEAVING: 1,
    RequestState.LEAVING_AHEAD: 2,
    RequestState.ABANDONED: 1,
    RequestState.ABANDONED_AHEAD: 2,
}
WITH_LANE = frozenset({RequestState.READING, *STEPS})
VACATING = frozenset(
    {RequestState.LEAVING, RequestState.LEAVING_AHEAD, RequestState.ABANDONED, RequestState.ABANDONED_AHEAD}
)
ENDED = frozenset({*VACATING, RequestState.REPLYING, RequestState.GONE})


@dataclass(slots=True, eq=False)
class Request:
    """One request from arrival to its last byte.

    prompt   tokens to read; `limit` tokens to generate at most; both known once it is prepared
    read     prompt positions in the cache once every step launched so far has landed
    executed positions in the cache, or that will be there: one a row in flight, all that it turns out to add once it
             has landed, void rows included; `drew` of them are the newest row's
    drawn    tokens drawn so far, without those of steps in flight; the last of them is not in the cache
    passed   how often a later request was admitted before this one while it stood at the head of the queue
    blocks   digests of the full blocks of prompt and drawn tokens, void ones included
    marks    places in the prompt whose states are worth keeping
    priority lower goes first
    follows  how many of its first tokens are those of the history of an earlier request, by that one's id
    masked   whether draws wait for masks that depend on those before; for `ahead` likely tokens they are known, and for
             `free` tokens, whatever they are, there is one
    guessed  of the engine's guesses, so many were looked at for those ahead; 0 if they are not the engine's
    mask_s   seconds that one of its masks takes, a running mean; round_s: that its last round took
    retained tokens that its lane was said to keep when it ended
    guesses  what is known of its guesses, for the choice of their number
    sought   whether the disk cache was asked for its beginning, and `fetched` how many tokens came from there
    started  whether its first chunk was launched; from then on it is certain that `cached` tokens are reused
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
    executed: int = 0
    drew: int = 0
    drawn: int = 0
    passed: int = 0
    blocks: list[str] = field(default_factory=list)
    marks: Marks = field(default_factory=Marks)
    priority: int = 0
    follows: dict[int, int] = field(default_factory=dict)
    masked: bool = False
    ahead: int = 0
    guessed: int = 0
    free: int = 0
    mask_s: float = 0.0
    round_s: float = 0.0
    guesses: Experience = field(default_factory=Experience)
    sought: bool = False
    fetched: int = 0
    started: bool = False
    cached: int = 0
    retained: int = 0

    @property
    def pages(self) -> int:
        """Pages that its whole life needs: the last token drawn is never executed (serving spec, 13.3)."""
        return pages_for(self.prompt + max(self.limit - 1, 0))

    @property
    def ledger(self) -> int:
        """Tokens of its history: what was read of the prompt, and what was drawn and counted."""
        return self.prompt + self.drawn if self.read == self.prompt else self.read

    @property
    def open_drafts(self) -> int:
        """Guesses that a row behind everything drawn can make use of: with all of them right it draws the last token,
        or the last one that it may draw under the mask that it has.

        The positions of that row have pages then: see `pages`.
        """
        most = self.limit - self.drawn
        return max(0, (min(most, self.free) if self.free else most) - 1)

    @property
    def held(self) -> bool:
        """Whether the mask behind each token that it draws depends on that token."""
        return self.masked and not self.free

    @property
    def position(self) -> int:
        """Positions in the cache once every step launched so far has landed, if none ends the generation."""
        return self.prompt + self.drawn + STEPS[self.state] - 1
