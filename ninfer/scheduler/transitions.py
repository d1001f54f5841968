"""The four state machines as data. What is not in a table is illegal; one file owns every transition.

`docs/state-machines.md` is printed from these tables (``python -m ninfer.scheduler.pictures``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import TypeVar

from ninfer.errors import IllegalTransition

S = TypeVar("S", bound=Enum)
G = TypeVar("G", bound=Enum)


class _Alone(Enum):
    """There is one of each member, so hashing need not look at its name: tables are looked up for every row of a round,
    and an enum's own hash is a fifth of what a round takes.
    """

    __hash__ = object.__hash__


class Lifecycle(_Alone):
    """The process as a whole."""

    PLANNING = auto()  # owns a bound port that does not listen, and an artifact's directory
    LOADING = auto()  # listens, answers 503 to everything; weights are on their way to the device
    VALIDATING_MEMORY = auto()  # weights and pools are resident; the plan is compared with what is really free
    WARMING = auto()  # the warm-up generation owns the device
    SERVING = auto()  # owns everything; admits
    DRAINING = auto()  # admits nothing; running requests have a last moment to finish
    STOPPED = auto()  # owns nothing; the process ends
    FAILED = auto()  # start refused, or the engine is beyond repair; admits nothing


class LifeSignal(_Alone):
    """What moves the process on."""

    FITS = auto()
    LOADED = auto()
    WARMED = auto()
    BROKEN = auto()
    STOP = auto()
    DRAINED = auto()


LIFECYCLE: dict[tuple[Lifecycle, LifeSignal], Lifecycle] = {
    (Lifecycle.PLANNING, LifeSignal.FITS): Lifecycle.LOADING,
    (Lifecycle.PLANNING, LifeSignal.BROKEN): Lifecycle.FAILED,
    (Lifecycle.PLANNING, LifeSignal.STOP): Lifecycle.STOPPED,
    (Lifecycle.LOADING, LifeSignal.LOADED): Lifecycle.VALIDATING_MEMORY,
    (Lifecycle.LOADING, LifeSignal.BROKEN): Lifecycle.FAILED,
    (Lifecycle.LOADING, LifeSignal.STOP): Lifecycle.STOPPED,
    (Lifecycle.VALIDATING_MEMORY, LifeSignal.FITS): Lifecycle.WARMING,
    (Lifecycle.VALIDATING_MEMORY, LifeSignal.BROKEN): Lifecycle.FAILED,
    (Lifecycle.WARMING, LifeSignal.WARMED): Lifecycle.SERVING,
    (Lifecycle.WARMING, LifeSignal.BROKEN): Lifecycle.FAILED,
    (Lifecycle.WARMING, LifeSignal.STOP): Lifecycle.STOPPED,
    (Lifecycle.SERVING, LifeSignal.STOP): Lifecycle.DRAINING,
    (Lifecycle.SERVING, LifeSignal.BROKEN): Lifecycle.FAILED,
    (Lifecycle.DRAINING, LifeSignal.DRAINED): Lifecycle.STOPPED,
    (Lifecycle.DRAINING, LifeSignal.STOP): Lifecycle.DRAINING,  # a second signal changes nothing
    (Lifecycle.DRAINING, LifeSignal.BROKEN): Lifecycle.FAILED,
    (Lifecycle.STOPPED, LifeSignal.STOP): Lifecycle.STOPPED,
    (Lifecycle.STOPPED, LifeSignal.LOADED): Lifecycle.STOPPED,  # news that was on its way when the stop came
    (Lifecycle.STOPPED, LifeSignal.WARMED): Lifecycle.STOPPED,
    (Lifecycle.STOPPED, LifeSignal.BROKEN): Lifecycle.STOPPED,
    (Lifecycle.FAILED, LifeSignal.STOP): Lifecycle.STOPPED,
    (Lifecycle.FAILED, LifeSignal.BROKEN): Lifecycle.FAILED,
}


class RequestState(_Alone):
    """One request. Every state but GONE holds one unit of capacity; AHEAD is to be in both steps on the device."""

    PREPARING = auto()  # being rendered and tokenised
    WAITING = auto()  # in the queue
    READING = auto()  # owns a lane and reserved pages; prompt not yet read to its end; nothing in flight
    READING_IN_STEP = auto()  # the same, with a prefill unit on the device
    READING_AHEAD = auto()  # the same, with two prefill units on the device
    GENERATING = auto()  # owns a lane and reserved pages; ready for the next round
    GENERATING_IN_STEP = auto()  # the same, with a row in a round on the device
    GENERATING_AHEAD = auto()  # the same, with a row in the round on the device and in the one behind it
    MASKING = auto()  # owns a lane and reserved pages; what its next token may be is being worked out from its last
    LEAVING = auto()  # ended in mid-step, client told; lane and pages go back when the step lands
    LEAVING_AHEAD = auto()  # the same with two steps to land; what they draw is dropped
    ABANDONED = auto()  # as LEAVING, and the answer is written as well
    ABANDONED_AHEAD = auto()  # as LEAVING_AHEAD, and the answer is written as well
    REPLYING = auto()  # owns neither lane nor pages; the answer is still being written
    GONE = auto()  # owns nothing


class RequestSignal(_Alone):
    """What moves a request on."""

    PREPARED = auto()
    ADMITTED = auto()
    LAUNCHED = auto()
    LANDED_MORE = auto()  # the step is done; there is more prompt to read
    LANDED_READY = auto()  # the step is done and drew a token that is not the last
    LANDED_UNMASKED = auto()  # the same, and the next draw waits for its mask
    MASKED = auto()  # the mask is there
    LANDED_LAST = auto()  # the step is done and with it the generation
    LANDED_VOID = auto()  # the step is done and nothing of it counts: the request had ended before
    ENDED = auto()  # stop string, cancel, deadline, fault: over before its step says so
    RELEASED = auto()  # nobody waits for the answer any more


REQUEST: dict[tuple[RequestState, RequestSignal], RequestState] = {
    (RequestState.PREPARING, RequestSignal.PREPARED): RequestState.WAITING,
    (RequestState.PREPARING, RequestSignal.ENDED): RequestState.REPLYING,
    (RequestState.WAITING, RequestSignal.ADMITTED): RequestState.READING,
    (RequestState.WAITING, RequestSignal.ENDED): RequestState.REPLYING,
    (RequestState.READING, RequestSignal.LAUNCHED): RequestState.READING_IN_STEP,
    (RequestState.READING, RequestSignal.ENDED): RequestState.REPLYING,
    (RequestState.READING_IN_STEP, RequestSignal.LAUNCHED): RequestState.READING_AHEAD,
    (RequestState.READING_IN_STEP, RequestSignal.LANDED_MORE): RequestState.READING,
    (RequestState.READING_IN_STEP, RequestSignal.LANDED_READY): RequestState.GENERATING,
    (RequestState.READING_IN_STEP, RequestSignal.LANDED_UNMASKED): RequestState.MASKING,
    (RequestState.READING_IN_STEP, RequestSignal.LANDED_LAST): RequestState.REPLYING,
    (RequestState.READING_IN_STEP, RequestSignal.ENDED): RequestState.LEAVING,
    (RequestState.READING_AHEAD, RequestSignal.LANDED_MORE): RequestState.READING_IN_STEP,
    (RequestState.READING_AHEAD, RequestSignal.ENDED): RequestState.LEAVING_AHEAD,
    (RequestState.GENERATING, RequestSignal.LAUNCHED): RequestState.GENERATING_IN_STEP,
    (RequestState.GENERATING, RequestSignal.ENDED): RequestState.REPLYING,
    (RequestState.GENERATING_IN_STEP, RequestSignal.LAUNCHED): RequestState.GENERATING_AHEAD,
    (RequestState.GENERATING_IN_STEP, RequestSignal.LANDED_READY): RequestState.GENERATING,
    (RequestState.GENERATING_IN_STEP, RequestSignal.LANDED_UNMASKED): RequestState.MASKING,
    (RequestState.GENERATING_IN_STEP, RequestSignal.LANDED_LAST): RequestState.REPLYING,
    (RequestState.GENERATING_IN_STEP, RequestSignal.ENDED): RequestState.LEAVING,
    (RequestState.GENERATING_AHEAD, RequestSignal.LANDED_READY): RequestState.GENERATING_IN_STEP,
    (RequestState.GENERATING_AHEAD, RequestSignal.LANDED_LAST): RequestState.LEAVING,  # a stop token
    (RequestState.GENERATING_AHEAD, RequestSignal.ENDED): RequestState.LEAVING_AHEAD,
    (RequestState.MASKING, RequestSignal.MASKED): RequestState.GENERATING,
    (RequestState.MASKING, RequestSignal.ENDED): RequestState.REPLYING,
    (RequestState.LEAVING, RequestSignal.LANDED_VOID): RequestState.REPLYING,
    (RequestState.LEAVING, RequestSignal.ENDED): RequestState.LEAVING,  # it has ended already
    (RequestState.LEAVING, RequestSignal.RELEASED): RequestState.ABANDONED,
    (RequestState.LEAVING_AHEAD, RequestSignal.LANDED_VOID): RequestState.LEAVING,
    (RequestState.LEAVING_AHEAD, RequestSignal.ENDED): RequestState.LEAVING_AHEAD,
    (RequestState.LEAVING_AHEAD, RequestSignal.RELEASED): RequestState.ABANDONED_AHEAD,
    (RequestState.ABANDONED, RequestSignal.LANDED_VOID): RequestState.GONE,
    (RequestState.ABANDONED, RequestSignal.ENDED): RequestState.ABANDONED,
    (RequestState.ABANDONED_AHEAD, RequestSignal.LANDED_VOID): RequestState.ABANDONED,
    (RequestState.ABANDONED_AHEAD, RequestSignal.ENDED): RequestState.ABANDONED_AHEAD,
    (RequestState.REPLYING, RequestSignal.PREPARED): RequestState.REPLYING,  # its deadline passed before
    (RequestState.REPLYING, RequestSignal.MASKED): RequestState.REPLYING,  # it ended while its mask was made
    (RequestState.REPLYING, RequestSignal.ENDED): RequestState.REPLYING,  # it has ended already
    (RequestState.REPLYING, RequestSignal.RELEASED): RequestState.GONE,
}


class LaneState(_Alone):
    """One lane: a state slot on the device and a row of the block table."""

    EMPTY = auto()  # owns nothing
    RETAINED = auto()  # keeps the state of a finished session, and gives it up for a request
    SAVING = auto()  # the same, while the session is read for a file
    RESTORING = auto()  # a session is being written into it from a file
    PREFILLING = auto()  # belongs to a request whose prompt is being read
    DECODING = auto()  # belongs to a request that draws tokens
    VACATING = auto()  # its request has ended; a step that still uses it has not landed


class LaneSignal(_Alone):
    """What moves a lane on."""

    TAKEN = auto()
    PROMPT_READ = auto()
    VACATED_IN_STEP = auto()
    FREED = auto()
    KEPT = auto()  # its request has ended and its session stays
    DROPPED = auto()  # the session is forgotten
    SAVE = auto()
    SAVED = auto()
    RESTORE = auto()
    RESTORED = auto()


LANE: dict[tuple[LaneState, LaneSignal], LaneState] = {
    (LaneState.EMPTY, LaneSignal.TAKEN): LaneState.PREFILLING,
    (LaneState.EMPTY, LaneSignal.RESTORE): LaneState.RESTORING,
    (LaneState.RETAINED, LaneSignal.TAKEN): LaneState.PREFILLING,
    (LaneState.RETAINED, LaneSignal.DROPPED): LaneState.EMPTY,
    (LaneState.RETAINED, LaneSignal.SAVE): LaneState.SAVING,
    (LaneState.RETAINED, LaneSignal.RESTORE): LaneState.RESTORING,
    (LaneState.SAVING, LaneSignal.SAVED): LaneState.RETAINED,
    (LaneState.RESTORING, LaneSignal.RESTORED): LaneState.RETAINED,
    (LaneState.RESTORING, LaneSignal.FREED): LaneState.EMPTY,
    (LaneState.PREFILLING, LaneSignal.PROMPT_READ): LaneState.DECODING,
    (LaneState.PREFILLING, LaneSignal.VACATED_IN_STEP): LaneState.VACATING,
    (LaneState.PREFILLING, LaneSignal.FREED): LaneState.EMPTY,
    (LaneState.DECODING, LaneSignal.VACATED_IN_STEP): LaneState.VACATING,
    (LaneState.DECODING, LaneSignal.FREED): LaneState.EMPTY,
    (LaneState.VACATING, LaneSignal.FREED): LaneState.EMPTY,
    (LaneState.PREFILLING, LaneSignal.KEPT): LaneState.RETAINED,
    (LaneState.DECODING, LaneSignal.KEPT): LaneState.RETAINED,
    (LaneState.VACATING, LaneSignal.KEPT): LaneState.RETAINED,
}


class DeviceState(_Alone):
    """The device: at most two steps are on it, done and landing in the order in which they were launched."""

    IDLE = auto()  # owns nothing
    PREFILL_CHUNK = auto()  # a prefill unit is running
    DECODE_ROUND = auto()  # a decode round is running
    CHUNK_THEN_CHUNK = auto()  # a prefill unit is running, the next one waits behind it
    CHUNK_THEN_ROUND = auto()  # a prefill unit is running, a decode round waits behind it
    ROUND_THEN_CHUNK = auto()  # a decode round is running, a prefill unit waits behind it
    ROUND_THEN_ROUND = auto()  # a decode round is running, the next one waits behind it
    VOIDING = auto()  # a step has failed; the one behind it has not landed, and counts for nothing
    RECOVERING = auto()  # nothing is in flight; the engine is being brought back to its empty state after a fault
    LOST = auto()  # beyond repair


class DeviceSignal(_Alone):
    """What moves the device on."""

    CHUNK = auto()
    ROUND = auto()
    CHUNK_LANDED = auto()
    ROUND_LANDED = auto()
    FAULT = auto()
    RESET = auto()
    LOSS = auto()


DEVICE: dict[tuple[DeviceState, DeviceSignal], DeviceState] = {
    (DeviceState.IDLE, DeviceSignal.CHUNK): DeviceState.PREFILL_CHUNK,
    (DeviceState.IDLE, DeviceSignal.ROUND): DeviceState.DECODE_ROUND,
    (DeviceState.PREFILL_CHUNK, DeviceSignal.CHUNK): DeviceState.CHUNK_THEN_CHUNK,
    (DeviceState.PREFILL_CHUNK, DeviceSignal.ROUND): DeviceState.CHUNK_THEN_ROUND,
    (DeviceState.PREFILL_CHUNK, DeviceSignal.CHUNK_LANDED): DeviceState.IDLE,
    (DeviceState.PREFILL_CHUNK, DeviceSignal.FAULT): DeviceState.RECOVERING,
    (DeviceState.DECODE_ROUND, DeviceSignal.CHUNK): DeviceState.ROUND_THEN_CHUNK,
    (DeviceState.DECODE_ROUND, DeviceSignal.ROUND): DeviceState.ROUND_THEN_ROUND,
    (DeviceState.DECODE_ROUND, DeviceSignal.ROUND_LANDED): DeviceState.IDLE,
    (DeviceState.DECODE_ROUND, DeviceSignal.FAULT): DeviceState.RECOVERING,
    (DeviceState.CHUNK_THEN_CHUNK, DeviceSignal.CHUNK_LANDED): DeviceState.PREFILL_CHUNK,
    (DeviceState.CHUNK_THEN_CHUNK, DeviceSignal.FAULT): DeviceState.VOIDING,
    (DeviceState.CHUNK_THEN_ROUND, DeviceSignal.CHUNK_LANDED): DeviceState.DECODE_ROUND,
    (DeviceState.CHUNK_THEN_ROUND, DeviceSignal.FAULT): DeviceState.VOIDING,
    (DeviceState.ROUND_THEN_CHUNK, DeviceSignal.ROUND_LANDED): DeviceState.PREFILL_CHUNK,
    (DeviceState.ROUND_THEN_CHUNK, DeviceSignal.FAULT): DeviceState.VOIDING,
    (DeviceState.ROUND_THEN_ROUND, DeviceSignal.ROUND_LANDED): DeviceState.DECODE_ROUND,
    (DeviceState.ROUND_THEN_ROUND, DeviceSignal.FAULT): DeviceState.VOIDING,
    (DeviceState.VOIDING, DeviceSignal.CHUNK_LANDED): DeviceState.RECOVERING,
    (DeviceState.VOIDING, DeviceSignal.ROUND_LANDED): DeviceState.RECOVERING,
    (DeviceState.VOIDING, DeviceSignal.FAULT): DeviceState.RECOVERING,
    (DeviceState.RECOVERING, DeviceSignal.RESET): DeviceState.IDLE,
    (DeviceState.RECOVERING, DeviceSignal.LOSS): DeviceState.LOST,
}


def after(table: Mapping[tuple[S, G], S], state: S, signal: G) -> S:
    """The state that follows; raises :class:`IllegalTransition` for what the table does not hold."""
    try:
        return table[state, signal]
    except KeyError:
        raise IllegalTransition(f"{type(state).__name__}: {signal.name} while {state.name}") from None
