"""Everything that can happen to the scheduler. Frozen, serialisable, without methods.

Token ids never pass through here: the scheduler decides by counts and flags, so its log holds no text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer.types import Marks as Marks

# --- life of the process -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The early memory plan stands; it is `required_bytes` against `available_bytes` of the device."""

    required_bytes: int
    available_bytes: int
    message: str


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """Weights and pools are resident; the plan was computed again from measured free memory, and holds `pages`.

    folds_late    when the engine's lanes move on to the next block: see :func:`ninfer.step.standing_block`
    chunk_parts   into how many parts the engine can cut a chunk, ascending from 1
    appends       whether a prompt may go on inside the block in which its lane stands
    """

    required_bytes: int
    available_bytes: int
    pages: int
    message: str
    folds_late: bool = False
    chunk_parts: tuple[int, ...] = (1,)
    appends: bool = False


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
    """A generation request wants a unit of capacity; `ticket` only pairs the answer with the question.

    name   that the client knows its request by (``x-request-id``); nothing is decided by it
    """

    ticket: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rendered, tokenised, checked: `prompt_tokens` > 0 to read and at most `max_tokens` >= 0 to generate.

    blocks     chained digests of the prompt's full blocks: equal digests are equal histories up to there
    priority   lower goes first
    follows    requests, each with the number of tokens of its history that the prompt begins with
    masked     what it may draw depends on what it drew before: each draw but the first waits for :class:`MaskReady`
    """

    request_id: int
    prompt_tokens: int
    max_tokens: int
    blocks: tuple[str, ...] = ()
    marks: Marks = field(default_factory=Marks)
    priority: int = 0
    masked: bool = False
    follows: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The request is refused before the queue; the protocol adapter tells the client itself."""

    request_id: int


@dataclass(frozen=True, slots=True)
class MaskReady:
    """What the request may draw next is known.

    ahead    and behind so many tokens that are likely to be drawn first
    guessed  so many guesses of the engine's were looked at, and those ahead begin with them; 0 if they are copied, or
             what the grammar leaves no choice about. Fewer are ahead if one of them is not legal, or ends the answer
    mask_s   seconds that a mask took
    free     so many tokens may be drawn one behind the other before it changes, whatever they are, unless a row says
             that it was halted; 0 if it changes with each
    masked   whether there will be a mask ever again
    """

    request_id: int
    ahead: int = 0
    free: int = 0
    masked: bool = True
    guessed: int = 0
    mask_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MaskFailed:
    """There is nothing that the request may draw next, or it cannot be known; `code` is what its client is told."""

    request_id: int
    code: str


@dataclass(frozen=True, slots=True)
class StopStringFound:
    """The text of the request ended at one of its stop strings, with its token number `drawn`; what was drawn behind
    that, as in the same round, is void.
    """

    request_id: int
    drawn: int


@dataclass(frozen=True, slots=True)
class Released:
    """The last byte of the answer was written, or the client is gone: whatever is left of the request ends."""

    request_id: int


# --- the device ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartLanded:
    """A part of a prefill unit is done that is not its last."""

    step: int
    device_s: float


@dataclass(frozen=True, slots=True)
class ChunkLanded:
    """A prefill unit is done, with the last of its parts. `drawn` is 1 if it drew the first token, `stopped` if that
    was a stop id; `blocks` holds the digest of the block that this token has filled; `free` as with `RowLanded`.
    """

    step: int
    drawn: int
    stopped: bool
    device_s: float
    blocks: tuple[str, ...] = ()
    free: int = 0


@dataclass(frozen=True, slots=True)
class RowLanded:
    """One row of a round: how many tokens it drew, whether the last is a stop id, and digests of the blocks that they
    have filled.

    drafted    guesses that were verified, at most as many as the row was launched with
    accepted   how many of them, from the first on, were right
    copied     whether they were copied from the request's text
    free       of a request that draws under masks: so many tokens may still be drawn under the one that there was; with
               0 the next is being made, and :class:`MaskReady` tells of it
    """

    request_id: int
    drawn: int
    stopped: bool
    blocks: tuple[str, ...] = ()
    drafted: int = 0
    accepted: int = 0
    copied: bool = False
    free: int = 0


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


# --- slots ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotAsked:
    """Somebody wants to save, restore or erase what a lane retains (serving spec, 15).

    action      `save`, `restore` or `erase`
    expected    whether the session is the one that was named, if one was
    file        name of the file of a save or a restore: the session belongs to it from then on
    tokens, blocks, checkpoints
                of a file to be restored, which has been checked: its ledger, and frontiers of its turn checkpoints
    """

    ticket: int
    lane: int
    action: str
    expected: bool = True
    tokens: int = 0
    blocks: tuple[str, ...] = ()
    checkpoints: tuple[int, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class SlotWritten:
    """What was read for ``SaveEvicted`` is in its file, which has so many bytes, or could not be written."""

    ticket: int
    ok: bool
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class SlotDone:
    """The engine's part of a save or a restore is over: bytes were read, or written."""

    ticket: int
    lane: int
    ok: bool


# --- disk cache ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiskFound:
    """A file of an earlier process suits this server.

    blocks   names of all its blocks
    states   depths in blocks of the states that it holds, ascending; the last is that of the last block
    """

    file: str
    bytes: int
    blocks: tuple[str, ...]
    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DiskRead:
    """The file of ``ReadDisk`` is in memory, checked; or it is missing, damaged or another one."""

    ticket: int
    ok: bool


@dataclass(frozen=True, slots=True)
class DiskDone:
    """What was read is where ``WriteDisk`` wants it, or could not be written there."""

    ticket: int
    ok: bool


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
    | MaskReady
    | MaskFailed
    | StopStringFound
    | Released
    | PartLanded
    | ChunkLanded
    | RoundLanded
    | StepFailed
    | EngineReset
    | EngineLost
    | SlotAsked
    | SlotDone
    | SlotWritten
    | DiskFound
    | DiskRead
    | DiskDone
)
