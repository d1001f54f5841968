"""Everything the scheduler can order. Frozen, serialisable, without methods; the actors carry them out."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.step import PageMapping, Transfer

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
    """The request's lane begins to work for it, `cached_tokens` of its prompt being there already.

    way             where they come from, by a name of serving spec 14.2
    host_restored   whether pages of them were in host memory
    """

    request_id: int
    lane: int
    cached_tokens: int
    way: str = "full_reset"
    host_restored: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """The request's one terminal message, after all its text: `reason` is a value of ``FinishReason``.

    retained_tokens   of the session that the lane keeps, prompt and output; 0 if it keeps none
    """

    request_id: int
    lane: int | None
    reason: str
    retained_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """The request's one terminal message when it cannot go on; `code` is one of the serving contract's."""

    request_id: int
    lane: int | None
    code: str


# --- the device ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartChunk:
    """Run prompt positions ``[begin, end)`` of the request through the model; `sample` draws the first token.

    before, after   transfers around it; see :class:`ninfer.step.PrefillChunk`
    first           whether this is the request's first chunk
    parts           steps that carry it out: this one and a :class:`ContinueChunk` for each other
    foresee, recall guesses for the row behind the first token, see :class:`RowStart`
    """

    step: int
    request_id: int
    lane: int
    begin: int
    end: int
    mapping: PageMapping
    sample: bool
    before: tuple[Transfer, ...] = ()
    after: tuple[Transfer, ...] = ()
    first: bool = True
    parts: int = 1
    foresee: int = 0
    recall: int = 0


@dataclass(frozen=True, slots=True)
class ContinueChunk:
    """Run the next part of the chunk under way, whose part before is step `behind`.

    last   whether none follows
    """

    step: int
    request_id: int
    lane: int
    behind: int
    last: bool


@dataclass(frozen=True, slots=True)
class RowStart:
    """One lane's part of a round; `position` is the number of its positions already in the cache.

    drafts   guesses of the engine's own that may be verified along with its anchor
    copies   guesses copied from its text that may be verified instead; the mapping covers the positions of either
    foresee  guesses that the engine is to make for the row behind this one, so that masks can be made behind them
    recall   guesses that may be copied for that row instead
    """

    request_id: int
    lane: int
    position: int
    mapping: PageMapping
    drafts: int = 0
    copies: int = 0
    foresee: int = 0
    recall: int = 0


@dataclass(frozen=True, slots=True)
class StartRound:
    """Advance these rows by one decode round in one batch, behind the transfers `before`."""

    step: int
    rows: tuple[RowStart, ...]
    before: tuple[Transfer, ...] = ()


# --- slots ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RefuseSlot:
    """A slot action cannot be done; `code` is one of serving spec 15.1."""

    ticket: int
    code: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The lane retains nothing any more."""

    lane: int


@dataclass(frozen=True, slots=True)
class Erased:
    """A slot was erased: so many tokens."""

    ticket: int
    lane: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ReadSession:
    """Read a retained session from the device for a file.

    state         tokens in front of the block whose entry state is stored, and where from: an image, or the lane itself
                  by way of image `image` if `capture`
    pages         of the positions below `state`, in order
    places        of those behind them that are in host memory only
    faults        how many the engine has had; with another one, nothing that is read is worth anything
    checkpoints   frontiers and images of its turn checkpoints, ascending
    before        transfers that have to come first
    """

    ticket: int
    lane: int
    tokens: int
    executed: int
    state: int
    image: int
    capture: bool
    pages: tuple[int, ...]
    places: tuple[int, ...]
    faults: int
    checkpoints: tuple[tuple[int, int], ...]
    before: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveEvicted:
    """Write a session to a file before it is displaced: ``SlotDone`` follows when it is read, then ``SlotWritten``.

    to_disk   to one of the disk cache, not to its slot file
    """

    file: str
    read: ReadSession
    to_disk: bool = False


@dataclass(frozen=True, slots=True)
class WriteSession:
    """Fill pages and images from a file that has been checked.

    skipped   blocks from the beginning that are there already; `pages` are for those behind them
    images    frontier and image of every state: turn checkpoints, ascending, and last the state itself
    before    transfers that have to come first
    """

    ticket: int
    lane: int
    tokens: int
    skipped: int
    pages: tuple[int, ...]
    images: tuple[tuple[int, int], ...]
    before: tuple[Transfer, ...] = ()


# --- disk cache ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadDisk:
    """Read a file of the disk cache and check it, and that `block` is the name of its block at `depth`."""

    ticket: int
    file: str
    depth: int
    block: str


@dataclass(frozen=True, slots=True)
class WriteDisk:
    """Fill pages and an image from what was read, up to the depth that was asked for.

    skipped   blocks from the beginning that are there already; `pages` are for those behind them
    image     for the state at that depth
    before    transfers that have to come first
    """

    ticket: int
    skipped: int
    pages: tuple[int, ...]
    image: int
    before: tuple[Transfer, ...] = ()


@dataclass(frozen=True, slots=True)
class DropRead:
    """What was read is not wanted any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class DropFile:
    """Remove a file of the disk cache."""

    file: str


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
    | ContinueChunk
    | StartRound
    | RefuseSlot
    | Forget
    | Erased
    | ReadSession
    | SaveEvicted
    | WriteSession
    | ReadDisk
    | WriteDisk
    | DropRead
    | DropFile
)
