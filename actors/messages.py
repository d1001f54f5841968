"""Every message that crosses between actors, and between them and the HTTP side. Frozen, typed, without behaviour.

Three families: what a client's request turns into (:class:`GenerationRequest`) and what comes back (:data:`Reply`);
what the scheduler's shell tells its workers; and, for the checkpoint ring and slot persistence, the messages their
actors take, which answer that the function is off until those parts exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer.actors.runtime.replies import Sender
from ninfer.constraints.enforced import Enforced
from ninfer.constraints.matcher import ThinkingControl
from ninfer.errors import NinferError
from ninfer.ledger import PromptIdentity
from ninfer.scheduler.commands import RowStart
from ninfer.speculation.copying import CopyIndex
from ninfer.speculation.statistics import DraftStatistics
from ninfer.step import DecodeRound, PageMapping, TokenLogprobs, Transfer
from ninfer.text.deltas import Delta, ToolCallParse
from ninfer.text.tool_values import DeclaredTools
from ninfer.types import FinishReason, Marks, Sampling

# --- between the protocol adapters and the actors ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prepared request, the same for every API.

    prompt_ids       rendered and tokenised prompt, at least one id
    opens_think      the prompt ends inside an open think block
    max_tokens       output limit after defaults and caps, >= 0; the scheduler clips it to the context
    stops            non-empty stop strings
    stops_in_reasoning
                     whether they also count in reasoning, or in the answer alone
    stop_ids         the model's own stop tokens, empty if the request ignores them
    tools            what the model may call; without any, the markup of calls is text
    tolerant_tool_calls
                     whether calls that are slightly damaged are repaired
    enforced         what the output is held to
    progress         whether the client wants :class:`PrefillProgress`
    identity         what the prompt is known by; None: the actors find out, on the event loop
    copies           where its text repeats, if guesses are copied from there; None likewise
    marks            places in the prompt that later prompts are likely to share
    priority         lower goes first
    logprobs         how many alternatives are told of beside each token of the answer; None: nothing is told of it
    """

    prompt_ids: tuple[int, ...] = field(repr=False)
    opens_think: bool
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    progress: bool = False
    identity: PromptIdentity | None = None
    marks: Marks = field(default_factory=Marks)
    priority: int = 0
    stops_in_reasoning: bool = True
    tools: DeclaredTools | None = field(default=None, repr=False)
    tolerant_tool_calls: bool = False
    enforced: Enforced | None = field(default=None, repr=False)
    copies: CopyIndex | None = field(default=None, repr=False)
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request's lane works for it from now on; `at` is the monotonic time.

    way             where the cached tokens come from (serving spec, 14.2)
    host_restored   whether some of them were in host memory
    """

    lane: int
    cached_tokens: int
    at: float
    way: str = "full_reset"
    host_restored: bool = False


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`processed` of `total` prompt tokens are in the cache, `cached` of them without having been computed."""

    processed: int
    total: int
    cached: int
    at: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Typed pieces of text, in order, and how many output tokens have been counted up to here.

    first_token_at, at   monotonic times of the first token and of the newest; None if there was no token
    logprobs             if asked for, of the tokens that begin in the answer's text of these pieces
    """

    deltas: tuple[Delta, ...]
    completion_tokens: int
    first_token_at: float | None
    at: float | None
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer (serving spec, 5.3 and 5.4)."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class ConstraintReport:
    """How a constrained output went (serving spec, 6.6); the last three are seconds."""

    branch: str
    complete: bool
    terminated: bool
    cache: str
    mask_positions: int
    mask_upload_bytes: int
    prepare_s: float
    mask_s: float
    matcher_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last message of a request that ended as it should. Times are monotonic; None where there was no token.

    stop_string  the stop string that ended it, if one did
    tool_calls   what was seen of tool calls; None for a request whose output was not read for them
    constraint   how a constrained output went
    speculation  what guessing came to; None if there is none
    thinking     what became of a budget of thinking; None if nothing held the output to one
    """

    reason: FinishReason
    usage: Usage
    lane: int | None
    admitted_at: float | None
    first_token_at: float | None
    last_token_at: float | None
    stop_string: str | None = None
    way: str = "full_reset"
    host_restored: bool = False
    session_digest: str = ""
    tool_calls: ToolCallParse | None = None
    constraint: ConstraintReport | None = None
    speculation: DraftStatistics | None = None
    thinking: ThinkingControl | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a request that could not be served to its end."""

    error: NinferError


Reply = Admitted | PrefillProgress | TextDelta | Finished | Failed

# --- from the scheduler's shell to its workers ---------------------------------------------------------------------

ReplySender = Sender[Reply]


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """To the prefill actor: run positions ``[begin, end)`` of this request's prompt, between transfers.

    foresee, recall   see :class:`ninfer.scheduler.commands.RowStart`
    """

    step: int
    request_id: int
    lane: int
    begin: int
    end: int
    mapping: PageMapping
    sample: bool
    request: GenerationRequest
    before: tuple[Transfer, ...] = ()
    after: tuple[Transfer, ...] = ()
    first: bool = True
    mask: bytes | None = field(default=None, repr=False)
    parts: int = 1
    foresee: int = 0
    recall: int = 0


@dataclass(frozen=True, slots=True)
class ReadPart:
    """To the prefill actor: run the next part of the chunk before; `last` if none follows."""

    step: int
    last: bool


@dataclass(frozen=True, slots=True)
class DecodeTogether:
    """To the decode actor: run one round. Row `i` is the plan of ``rows[i]``, which say whose it is and what may be
    copied for it; one that has guesses already has no others.
    """

    step: int
    rows: tuple[RowStart, ...]
    round: DecodeRound


@dataclass(frozen=True, slots=True)
class Assign:
    """To a lane actor: it serves this request now, and `replies` is where its client listens."""

    request_id: int
    request: GenerationRequest
    replies: ReplySender
    cached_tokens: int
    at: float
    way: str = "full_reset"
    host_restored: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """To a lane actor: these ids were drawn for its request; `stopped` if the last is a stop id.

    guesses   verified ones, right ones, and whether they were copied from its text, if it was a round that drew
    logprobs  one for each id, if the request asks for them
    """

    request_id: int
    token_ids: tuple[int, ...]
    stopped: bool
    at: float
    guesses: tuple[int, int, bool] | None = None
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """To a lane actor: so much of its request's prompt is in the cache."""

    request_id: int
    processed: int
    at: float


@dataclass(frozen=True, slots=True)
class Close:
    """To a lane actor: its request is over, publish what is held back and the last message.

    session_digest   of what the lane retains; empty if it retains nothing
    """

    request_id: int
    reason: FinishReason
    session_digest: str = ""


@dataclass(frozen=True, slots=True)
class CloseWithError:
    """To a lane actor: its request cannot go on."""

    request_id: int
    error: NinferError


LaneMessage = Assign | Draw | Progress | Close | CloseWithError


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of a page and of a state that the engine keeps, and seconds that went into moving pages between the device
    and host memory; all 0 without an engine.
    """

    page_bytes: int = 0
    image_bytes: int = 0
    park_s: float = 0.0
    load_s: float = 0.0


# --- what is known of a request ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """One request so far. Times are seconds since its arrival; None is what has not happened.

    name            that its client knows it by (``x-request-id``)
    state           `preparing`, `waiting`, `prefilling`, `decoding` or `ended`
    position        requests in front of it in the queue; None if it is not in it, or has the promise of a lane
    age_s           from the arrival to this moment; `deadline_s` is when it has to be admitted
    admitted_s      when its lane began to work for it
    released_s      when its answer was written, or its client had gone
    read_tokens     prompt tokens in the cache, of which `cached_tokens` were there; in `chunks` steps so far
    drawn_tokens    in the first token and `rounds` rounds, which verified `drafted_tokens` guesses and found
                    `accepted_tokens` of them right
    finish_reason   how it ended, or `error_code` why it could not go on
    """

    request_id: int
    name: str
    state: str
    position: int | None
    age_s: float
    deadline_s: float
    prepared_s: float | None
    admitted_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float | None
    released_s: float | None
    prompt_tokens: int
    max_tokens: int
    priority: int
    lane: int | None
    way: str | None
    cached_tokens: int
    host_restored: bool
    read_tokens: int
    chunks: int
    drawn_tokens: int
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    finish_reason: str | None
    error_code: str | None
    retained_tokens: int


# --- checkpoint ring and slot persistence --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribeSlots:
    """To the checkpoint ring: what every lane retains."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """One lane as ``/slots`` shows it: its session's digest, and frontier and digest of every turn checkpoint."""

    lane: int
    session_digest: str
    checkpoints: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class SaveSlot:
    """To slot persistence: write this lane's session to a file of the slot folder."""

    lane: int
    filename: str
    if_digest: str | None


@dataclass(frozen=True, slots=True)
class RestoreSlot:
    """To slot persistence: read a session from a file of the slot folder into this lane."""

    lane: int
    filename: str


@dataclass(frozen=True, slots=True)
class EraseSlot:
    """To slot persistence: forget this lane's session."""

    lane: int
    if_digest: str | None


SlotMessage = SaveSlot | RestoreSlot | EraseSlot


@dataclass(frozen=True, slots=True)
class SlotOutcome:
    """What a slot action did: tokens of the session, bytes of the file, the session's digest, seconds."""

    tokens: int
    file_bytes: int
    session_digest: str
    seconds: float
