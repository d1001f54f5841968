"""The masks of requests that draw under constraints: each is made on a worker thread, beside the running steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import structlog
from anyio import to_thread

from ninfer.actors.messages import ConstraintReport
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.constraints.ahead import NOTHING, Ahead
from ninfer.constraints.enforced import Enforced
from ninfer.constraints.matcher import Branch, ThinkingControl
from ninfer.errors import ActorStopped, DeadEnd
from ninfer.scheduler.events import Event, MaskFailed, MaskReady

# Masks are made beside each other, but not so many that the event loop gets no turn.
AT_ONCE = 4

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Guesses:
    """What somebody guesses that a request draws next.

    own   whether it is the engine; else it is copied from the request's text
    """

    ids: tuple[int, ...] = ()
    own: bool = False


NO_GUESSES = Guesses()


@dataclass(slots=True)
class _Held:
    """A request's constraint where it stands.

    settled   set when nothing of it is being worked out
    free      tokens that may be drawn under the mask before it changes
    """

    enforced: Enforced
    mask: bytes | None
    ahead: Ahead
    may_end: bool
    branch: Branch
    free: int
    settled: anyio.Event = field(default_factory=anyio.Event)
    positions: int = 0
    upload_bytes: int = 0
    mask_s: float = 0.0
    matcher_s: float = 0.0

    def advance(self, token_ids: Sequence[int]) -> None:
        """The matcher takes tokens; it has gone as far as they lead."""
        matcher = self.enforced.matcher
        matcher.advance(token_ids)
        self.may_end, self.branch, self.free = matcher.may_end, matcher.branch, matcher.free

    def count(self) -> None:
        """A mask is there that a step will be given."""
        for mask in (self.mask, *self.ahead.masks):
            if mask is not None:
                self.positions += 1
                self.upload_bytes += len(mask)


@dataclass(frozen=True, slots=True)
class _Advance:
    request_id: int
    held: _Held
    token_ids: tuple[int, ...]
    guesses: Guesses


class Masks:
    """Holds the matcher of every constrained request from its submission until it is forgotten.

    Where the mask is the same behind nearly all tokens, as in thinking, tokens are taken in passing: nobody waits.

    report   takes the news of each mask, which the scheduler waits for
    note     takes each mask before that, by request, and those behind likely tokens
    most     tokens that are looked ahead
    clock    monotonic seconds, for durations; read on worker threads, where the clock of the loop does not run
    """

    def __init__(
        self,
        report: Callable[[Event], None],
        note: Callable[[int, bytes | None, tuple[bytes, ...]], None],
        clock: Callable[[], float] = time.monotonic,
        most: int = 0,
    ) -> None:
        self._most = most
        # Unlimited, because a request has one message at most in it.
        self.mailbox: Mailbox[_Advance] = Mailbox("masks", math.inf)
        self._report = report
        self._note = note
        self._clock = clock
        self._held: dict[int, _Held] = {}

    def begin(self, request_id: int, enforced: Enforced) -> None:
        """A request has come that brings the mask of its first draw."""
        matcher = enforced.matcher
        held = _Held(
            enforced, enforced.mask, NOTHING, matcher.may_end, matcher.branch, matcher.free, mask_s=enforced.mask_s
        )
        held.settled.set()
        held.count()
        self._held[request_id] = held
        self._note(request_id, held.mask, ())

    def forget(self, request_id: int) -> None:
        """The request is over."""
        self._held.pop(request_id, None)

    def mask(self, request_id: int) -> bytes | None:
        """What the request may draw next; None for everything."""
        held = self._held.get(request_id)
        return held.mask if held is not None else None

    def ahead(self, request_id: int, count: int) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """The first `count` tokens that the request is likely to draw next, and what it may draw behind each."""
        ahead = self._held[request_id].ahead
        return ahead.ids[:count], ahead.masks[:count]

    def halts(self, request_id: int) -> bytes | None:
        """Ids behind which the request has another mask; None where it has one behind each, or none at all."""
        held = self._held.get(request_id)
        return held.enforced.matcher.halts if held is not None and held.free else None

    def drawn(self, request_id: int, token_ids: Sequence[int], guesses: Guesses = NO_GUESSES) -> int:
        """These ids were drawn for a request, and none of them ends it: make the next mask, if it needs one.

        guesses   of what it draws behind them, for masks behind each
        returns  tokens that it may draw under the mask that it has; 0 if another one is being made, or it has none
        """
        held = self._held.get(request_id)
        if held is None:
            return 0
        if held.enforced.matcher.is_free:
            held.advance(token_ids)
            return 0
        if held.free:
            # Up to the last of them the mask was the same, and no grammar is asked.
            held.advance(token_ids)
            held.positions += len(token_ids) - 1
            token_ids = ()
            if held.free:
                held.positions += 1
                return held.free
        held.settled = anyio.Event()
        try:
            self.mailbox.put_nowait(_Advance(request_id, held, tuple(token_ids), guesses))
        except ActorStopped:
            held.settled.set()  # its client has been told
        return 0

    def stopped(self, request_id: int, token_ids: Sequence[int]) -> None:
        """These ids were drawn for a request, and the last ends it: there is no next mask, but a report."""
        held = self._held.get(request_id)
        # Where a grammar has the word the end is legal, and the branch was decided by the first token.
        if held is not None and held.enforced.matcher.is_free:
            held.advance(token_ids)

    async def settled(self, request_id: int) -> None:
        """Wait until nothing is being worked out for the request."""
        held = self._held.get(request_id)
        if held is not None:
            await held.settled.wait()

    def control(self, request_id: int) -> ThinkingControl | None:
        """What became of its budget of thinking; None for a request without a constraint."""
        held = self._held.get(request_id)
        return held.enforced.matcher.control if held is not None else None

    def report(self, request_id: int, *, terminated: bool) -> ConstraintReport | None:
        """How it went (serving spec, 6.6); None for a request without a constraint.

        terminated   whether the end of the turn was drawn
        """
        held = self._held.get(request_id)
        if held is None:
            return None
        return ConstraintReport(
            branch=held.branch.value,
            complete=terminated or held.may_end,
            terminated=terminated,
            cache=held.enforced.cache,
            mask_positions=held.positions,
            mask_upload_bytes=held.upload_bytes,
            prepare_s=held.enforced.prepare_s,
            mask_s=held.mask_s,
            matcher_s=held.matcher_s,
        )

    async def run(self) -> None:
        """Make masks until the mailbox is closed."""
        limiter = anyio.CapacityLimiter(AT_ONCE)
        async with anyio.create_task_group() as tasks:
            async for message in self.mailbox.messages():
                tasks.start_soon(self._make, message, limiter)

    async def _make(self, message: _Advance, limiter: anyio.CapacityLimiter) -> None:
        event: Event
        try:
            mask_s = await to_thread.run_sync(self._step, message, limiter=limiter)
        except DeadEnd as error:
            event = MaskFailed(message.request_id, error.code)
        except Exception as error:
            log.exception("a mask could not be made", error=f"{type(error).__name__}: {error}")
            event = MaskFailed(message.request_id, "internal_error")
        else:
            held, ahead, guesses = message.held, message.held.ahead, message.guesses
            self._note(message.request_id, held.mask, ahead.masks)
            event = MaskReady(
                message.request_id,
                len(ahead.ids),
                held.free,
                masked=not held.enforced.matcher.is_free,
                guessed=len(guesses.ids) if guesses.own and (ahead.guessed or not ahead.ids) else 0,
                mask_s=mask_s,
            )
        message.held.settled.set()
        self._report(event)

    def _step(self, message: _Advance) -> float:
        """On a worker thread, which has the matcher for itself until the scheduler is told; returns seconds a mask."""
        held = message.held
        matcher, begin = held.enforced.matcher, self._clock()
        held.advance(message.token_ids)
        advanced = self._clock()
        held.mask = matcher.mask()
        held.ahead = matcher.ahead(self._most, message.guesses.ids) if held.mask is not None else NOTHING
        made = self._clock()
        held.matcher_s += advanced - begin
        held.mask_s += made - advanced
        held.count()
        return (made - advanced) / (1 + len(held.ahead.masks))
