"""What is told of one request: plain values, times in seconds since its arrival, everything else counts and numbers.

Requests are named by their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Stands for a slot file among the requests that tokens and states come from.
FILE = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lane, or pages: `what` is the state of the lane; `request_id` is None for a slot action."""

    lane: int | None
    request_id: int | None
    what: str
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a request stands still.

    kind     `preparing`, `lanes` (all are taken), `pages` (too few), `order` (others go first and it may not pass),
             `stopping` (nobody is admitted), `device` (another prompt is read, or rounds run), `joins` (another is
             about to store a state that it can go on from)
    holders  of the lanes or pages, or whose prompt it waits for
    ahead    requests in front of it in the queue, first to last
    wanted, available
             pages, for `pages` and `order`
    """

    kind: str
    holders: tuple[Holder, ...] = ()
    ahead: tuple[int, ...] = ()
    wanted: int = 0
    available: int = 0


@dataclass(slots=True)
class Wait:
    """A span in which one cause held, ``[begin, end)``."""

    begin: float
    end: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class LaneChoice:
    """What a lane that was idle had to offer at the admission.

    reusable_tokens   of the prompt; `source` is `own` for the lane's own state, a way of reuse for an image, or `none`
    session_tokens    what the lane would lose, and the request that left it
    """

    lane: int
    reusable_tokens: int
    source: str
    session_tokens: int
    session_request_id: int


@dataclass(frozen=True, slots=True)
class Admission:
    """The promise of a lane and pages; `passed` are requests that stood in front in the queue."""

    at: float
    lane: int
    pages: int
    choices: tuple[LaneChoice, ...]
    passed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What went for pages of one step.

    pages             taken from blocks that nobody used; `parked_pages` of them were copied to host memory
    dropped_images    states that went with blocks
    forgotten_lanes   whose sessions went with their blocks
    """

    at: float
    pages: int
    parked_pages: int
    dropped_images: int
    forgotten_lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Positions ``[begin, end)`` of the prompt that were there, and the request that read or drew them last."""

    begin: int
    end: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Displaced:
    """The session that stood in the lane: `fate` is `continued`, `kept` (its state as an image) or `lost`."""

    tokens: int
    request_id: int
    fate: str


@dataclass(frozen=True, slots=True)
class Begin:
    """The launch of the first chunk, when it is certain what is reused.

    way, cached_tokens   of serving spec 14.2
    state                where the state comes from: `own`, `image` or `none`; `state_request_id` is whose it was
    loaded_pages         that had been parked in host memory
    """

    at: float
    lane: int
    way: str
    cached_tokens: int
    state: str
    state_request_id: int | None
    loaded_pages: int
    origins: tuple[Origin, ...]
    displaced: Displaced | None


@dataclass(slots=True)
class Chunk:
    """Positions ``[begin, end)`` read by one step or in parts, `step` the first; `landed` is None until they are done.

    stored   states that were captured behind it
    """

    step: int
    begin: int
    end: int
    launched: float
    stored: int
    landed: float | None = None
    device_s: float = 0.0


@dataclass(slots=True)
class SetAside:
    """Between two of its chunks the prompts of others were read, so many tokens of them."""

    begin: float
    end: float
    tokens: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that landed while the request waited for a token: a chunk of one request or a part of it, or a round of
    some. The tokens of a chunk count with its last part.
    """

    step: int
    kind: str
    request_ids: tuple[int, ...]
    tokens: int
    device_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time between two of its tokens, and every step that landed in it, its own at the end."""

    begin: float
    end: float
    ran: tuple[Ran, ...]


@dataclass(frozen=True, slots=True)
class End:
    """How it ended: a finish reason, or the code of an error. `retained_tokens` of its session stay in the lane."""

    at: float
    reason: str
    retained_tokens: int
    lane: int | None


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of the session that it left.

    what         `continued`, `kept` (an image of its end is left) or `lost` by a request that took the lane, `given up`
                 (its blocks, for the pages), `erased`, `overwritten` (by a slot file) or `fault`
    request_id   on whose behalf, if it was a request's
    """

    at: float
    what: str
    request_id: int | None


@dataclass(slots=True)
class Account:
    """Everything about one request; what has not happened by the end of the replay is None or empty.

    arrived   seconds of the log's clock; every other time is relative to it
    drafted_tokens, accepted_tokens
              guesses that were verified in its rounds, and were right
    """

    request_id: int
    name: str
    arrived: float
    deadline: float = 0.0
    prepared: float | None = None
    prompt_tokens: int = 0
    max_tokens: int = 0
    priority: int = 0
    waits: list[Wait] = field(default_factory=list)
    admission: Admission | None = None
    begin: Begin | None = None
    given_up: list[GivenUp] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)
    first_token: float | None = None
    last_token: float | None = None
    drawn_tokens: int = 0
    rounds: int = 0
    largest_round: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    longest_gap: Gap | None = None
    end: End | None = None
    released: float | None = None
    fate: Fate | None = None
