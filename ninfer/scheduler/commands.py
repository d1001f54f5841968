"""Everything the scheduler can order. Frozen, serialisable, without methods; the actors carry them out."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.step import PageMapping

# --- life of the process -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadModel:
    """The early plan fits: start listening (every route answers 503) and load."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The final plan fits: run one short internal generation."""


@dataclass(frozen=True, slots=True)
class AnnounceReady:
    """Serve."""


@dataclass(frozen=True, slots=True)
class ResetEngine:
    """Bring the engine back to its empty state after a fault."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process with `status`; `message` explains a status other than 0."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a ``Tick`` at this time; replaces the time asked for before."""

    at: float


# --- life of a request ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accept:
    """The arrival holds a unit of capacity from now on and has to be admitted by `deadline`."""

    ticket: int
    request_id: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """The arrival is turned away; `code` is one of the serving contract's (``server_overloaded``, ...)."""

    ticket: int
    code: str


@dataclass(frozen=True, slots=True)
class Admit:
    """The request leaves the queue for a lane, `cached_tokens` of its prompt being there already."""

    request_id: int
    lane: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The request's one terminal message, after all its text: `reason` is a value of ``FinishReason``."""

    request_id: int
    lane: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The request's one terminal message when it cannot go on; `code` is one of the serving contract's."""

    request_id: int
    lane: int | None
    code: str


# --- the device ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartChunk:
    """Run prompt positions ``[begin, end)`` of the request through the model; `sample` draws the first token."""

    step: int
    request_id: int
    lane: int
    begin: int
    end: int
    mapping: PageMapping
    sample: bool


@dataclass(frozen=True, slots=True)
class RowStart:
    """One lane's part of a round; `position` is the number of its positions already in the cache."""

    request_id: int
    lane: int
    position: int
    mapping: PageMapping


@dataclass(frozen=True, slots=True)
class StartRound:
    """Advance these rows by one decode round in one batch."""

    step: int
    rows: tuple[RowStart, ...]


Command = (
    LoadModel
    | WarmUp
    | AnnounceReady
    | ResetEngine
    | Exit
    | WakeAt
    | Accept
    | Refuse
    | Admit
    | Finish
    | Fail
    | StartChunk
    | StartRound
)
