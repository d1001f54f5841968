"""Everything that can happen to the scheduler. Frozen, serialisable, without methods.

Token ids never pass through here: the scheduler decides by counts and flags, so its log holds no text.
"""

from __future__ import annotations

from dataclasses import dataclass

# --- life of the process -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The early memory plan stands; it is `required_bytes` against `available_bytes` of the device."""

    required_bytes: int
    available_bytes: int
    message: str


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """Weights and pools are resident; the plan was computed again from measured free memory, and holds `pages`."""

    required_bytes: int
    available_bytes: int
    pages: int
    message: str


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Loading or warming raised; the process cannot serve."""

    message: str


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """The internal warm-up generation ended; its failure is a warning only."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """SIGINT or SIGTERM."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time asked for with ``WakeAt`` has come."""


# --- life of a request ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A generation request wants a unit of capacity; `ticket` only pairs the answer with the question."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rendered, tokenised, checked: `prompt_tokens` > 0 to read and at most `max_tokens` >= 0 to generate."""

    request_id: int
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The request is refused before the queue; the protocol adapter tells the client itself."""

    request_id: int


@dataclass(frozen=True, slots=True)
class StopStringFound:
    """The text of the request ended at one of its stop strings."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """The last byte of the answer was written, or the client is gone: whatever is left of the request ends."""

    request_id: int


# --- the device ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkLanded:
    """A prefill unit is done. `drawn` is 1 if it drew the first token, `stopped` if that was a stop id."""

    step: int
    drawn: int
    stopped: bool
    device_s: float


@dataclass(frozen=True, slots=True)
class RowLanded:
    """One row of a round: how many tokens it drew, and whether the last is a stop id."""

    request_id: int
    drawn: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class RoundLanded:
    """A decode round is done, rows in the order they were launched."""

    step: int
    rows: tuple[RowLanded, ...]
    device_s: float


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The device raised while it ran the step; what it left behind is not to be trusted."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class EngineReset:
    """The engine is clean again after a fault."""


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine could not be cleaned up after a fault."""

    message: str


Event = (
    PlanMade
    | ModelLoaded
    | StartFailed
    | WarmedUp
    | StopRequested
    | Tick
    | Arrived
    | Prepared
    | PreparationFailed
    | StopStringFound
    | Released
    | ChunkLanded
    | RoundLanded
    | StepFailed
    | EngineReset
    | EngineLost
)
