"""One generation request from its unit of capacity to its last word, the same for every protocol.

Every session that is opened ends in exactly one of: rejected, done, error. It is closed when the answer is written or
the peer is gone (serving spec, 13.1, 16.2).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import anyio
import structlog
from anyio import to_thread

from ninfer.actors.gateway import Gateway, Ticket
from ninfer.actors.messages import Failed, Finished, GenerationRequest, PrefillProgress, Reply, TextDelta
from ninfer.api.answers import first_call_only
from ninfer.api.edge import Exchange
from ninfer.api.envelopes import Fault, fault_of
from ninfer.api.observed import Observed, Outcome, Watched
from ninfer.errors import NinferError, Overloaded, QueueTimeout
from ninfer.ledger import PromptIdentity
from ninfer.requestlog import records
from ninfer.requestlog.records import Guessing, PreparedFacts, RequestFacts
from ninfer.requestlog.writer import RequestLog
from ninfer.types import Sampling

_PACKED_AT_ONCE = 1 << 12
DISCONNECTED = "client disconnected"

log = structlog.get_logger(__name__)


Closed = Callable[[RequestFacts, Outcome], None]


class _Stage(Enum):
    PREPARING = auto()  # holds capacity; nothing is logged yet
    STARTED = auto()  # logged as started; owes the log one terminal record
    ENDED = auto()  # owes nothing but its release


@dataclass(frozen=True, slots=True)
class Prepared:
    """What preparation makes: the request, whether it thinks and how long at most, whether only its first tool call is
    wanted.
    """

    request: GenerationRequest
    enable_thinking: bool
    one_call: bool = False
    thinking_budget: int | None = None


class Session:
    """See above. Made by :func:`open_session`; `facts` say what was asked."""

    def __init__(
        self,
        ticket: Ticket,
        facts: RequestFacts,
        request_log: RequestLog,
        observed: Observed,
        guessing: Guessing,
        closed: Closed | None = None,
    ) -> None:
        self._ticket = ticket
        self._closed = closed
        self._outcome = Outcome.REJECTED
        self._watched = Watched(observed, ticket.received_at, constrained=facts.constraint_kind is not None)
        self._wants_progress = False
        self._facts = facts
        self._log = request_log
        self._guessing = guessing
        self._stage = _Stage.PREPARING
        self._prepared: PreparedFacts | None = None
        self._one_call = False
        self.prompt_tokens = 0

    @property
    def received_at(self) -> float:
        """Monotonic time of the receipt."""
        return self._ticket.received_at

    @property
    def sampling(self) -> Sampling:
        """The resolved sampling law; known once the request is prepared."""
        assert self._prepared is not None
        return self._prepared.sampling

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._stage is _Stage.ENDED

    def notice(self, news: Callable[[], None] | None) -> None:
        """Call this at every reply and at their end from now on; None: nothing."""
        self._ticket.notice(news)

    async def prepare(self, work: Callable[[], Prepared]) -> None:
        """Do the work on a worker thread, then put the request into the queue.

        raises what the work raises, QueueTimeout when the deadline passes first, Unavailable when the server stops
        """
        try:
            with self._ticket.preparation as scope:
                prepared = await to_thread.run_sync(self._identified, work, abandon_on_cancel=True)
            if scope.cancelled_caught:
                early_end = self._ticket.early_end
                raise early_end.error if early_end is not None else QueueTimeout
            self.prompt_tokens = len(prepared.request.prompt_ids)
            self._one_call = prepared.one_call
            sampling = prepared.request.sampling
            self._prepared = PreparedFacts(
                prepared.enable_thinking,
                sampling,
                anyio.current_time() - self._ticket.received_at,
                prepared.thinking_budget if prepared.enable_thinking else None,
            )
            # Told of every chunk, we know what a client that leaves has cost.
            self._wants_progress = prepared.request.progress
            await self._ticket.submit(replace(prepared.request, progress=True))
        except Exception as error:
            await self.give_up(error)
            raise
        self._stage = _Stage.STARTED
        self._write("request_start", records.request_start(self._facts, self._prepared))
        log.info(
            f"req#{self._facts.request_id} {self._facts.protocol} submitted",
            prompt=self.prompt_tokens,
            max_tokens=prepared.request.max_tokens,
            stream=self._facts.stream,
            seed=sampling.seed,
            temperature=sampling.temperature,
            x_request_id=self._facts.x_request_id,
        )

    async def give_up(self, error: Exception) -> None:
        """The request is refused while it is prepared."""
        self._reject(fault_of(error))
        await self._ticket.preparation_failed()

    def _identified(self, work: Callable[[], Prepared]) -> Prepared:
        """What was prepared, with what its prompt is known by; on a worker thread."""
        prepared = work()
        request, copying = prepared.request, self._ticket.copying
        identity = PromptIdentity.of(self._ticket.names, packed(request.prompt_ids))
        copies = copying.index(request.prompt_ids, request.max_tokens) if copying is not None else None
        return replace(prepared, request=replace(request, identity=identity, copies=copies))

    async def next_reply(self) -> Reply:
        """One reply; raises the error of a ``Failed``. Not to be called after the ``Finished``."""
        while isinstance(reply := await self._receive(), PrefillProgress) and not self._wants_progress:
            pass
        return reply

    def reply_at_hand(self) -> Reply | None:
        """The same if there is one already, else None."""
        try:
            while True:
                reply = self._seen(self._ticket.replies.receive_nowait())
                if not isinstance(reply, PrefillProgress) or self._wants_progress:
                    return reply
        except anyio.WouldBlock:
            return None
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise NinferError("the replies ended without a last one") from None

    async def _receive(self) -> Reply:
        try:
            return self._seen(await self._ticket.replies.receive())
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise NinferError("the replies ended without a last one") from None

    def _seen(self, reply: Reply) -> Reply:
        """A reply, with what we keep of it noted; raises the error of a ``Failed``."""
        if isinstance(reply, Failed):
            refused = isinstance(reply.error, QueueTimeout)
            self._fail(fault_of(reply.error).message, Outcome.REJECTED if refused else Outcome.FAILED)
            raise reply.error
        self._watched.saw(reply)
        if isinstance(reply, Finished):
            self._finish(reply)
        if isinstance(reply, TextDelta) and self._one_call:
            return replace(reply, deltas=first_call_only(reply.deltas))
        return reply

    async def close(self) -> None:
        """Give the unit of capacity back; a request that has not ended by now is cancelled."""
        if self._stage is _Stage.STARTED:
            self._see_what_is_left()
            self._fail(DISCONNECTED, Outcome.CANCELLED)
        elif self._stage is _Stage.PREPARING:
            gone = Fault(499, "request_cancelled", "client_disconnected", None, DISCONNECTED)
            self._reject(gone, Outcome.CANCELLED)
        await self._ticket.release()
        if self._closed is not None:
            self._closed(self._facts, self._outcome)

    def fail(self, message: str) -> None:
        """Note that the answer broke off on our side."""
        if self._stage is _Stage.STARTED:
            self._fail(message, Outcome.FAILED)

    def _see_what_is_left(self) -> None:
        """Replies that came while nobody read them; the client has gone."""
        try:
            while not isinstance(reply := self._ticket.replies.receive_nowait(), Failed):
                self._watched.saw(reply)
        except (anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
            return

    def _end(self, outcome: Outcome) -> None:
        self._stage = _Stage.ENDED
        self._outcome = outcome
        self._watched.ended(outcome, anyio.current_time())

    def _reject(self, fault: Fault, outcome: Outcome = Outcome.REJECTED) -> None:
        self._end(outcome)
        error = {"type": fault.kind, "code": fault.code, "param": fault.param, "message": fault.message}
        self._write("request_rejected", records.request_rejected(self._facts, fault.status, error))
        log.info(f"req#{self._facts.request_id} rejected {fault.message}", x_request_id=self._facts.x_request_id)

    def _fail(self, message: str, outcome: Outcome) -> None:
        assert self._prepared is not None
        self._end(outcome)
        self._write("request_error", records.request_error(self._facts, self._prepared, message))
        log.warning(f"req#{self._facts.request_id} error {message}", x_request_id=self._facts.x_request_id)

    def _finish(self, finished: Finished) -> None:
        assert self._prepared is not None
        self._end(Outcome.COMPLETED)
        record = records.request_done(
            self._facts, self._prepared, finished, self._ticket.received_at, anyio.current_time(), self._guessing
        )
        self._write("request_done", record)
        log.info(done_line(self._facts.request_id, record))

    def _write(self, event: str, record: records.Record) -> None:
        self._log.write(event, record)


def packed(ids: Sequence[int]) -> array[int]:
    """Ids as an array, piece by piece: of a long prompt at once it keeps the interpreter for milliseconds."""
    words = array("i")
    for begin in range(0, len(ids), _PACKED_AT_ONCE):
        words.extend(ids[begin : begin + _PACKED_AT_ONCE])
    return words


def done_line(request_id: int, record: records.Record) -> str:
    """The console line of a finished request (serving spec, 17)."""
    result, times = record["result"], record["timings_seconds"]
    assert isinstance(result, dict)
    assert isinstance(times, dict)
    decoded = max(result["completion_tokens"] - 1, 0)
    return (
        f"req#{request_id} done finish={result['finish_reason']} prompt={result['prompt_tokens']} "
        f"gen={result['completion_tokens']} cache={result['prefix_cache_hit_tokens']} "
        f"reuse={result['prefix_reuse_path']} ttft={1000 * times['ttft']:.0f}ms queue {1000 * times['queue']:.0f} ms "
        f"prefill={_rate(result['computed_prefill_tokens'], times['prefill'])}tok/s "
        f"decode={_rate(decoded, times['decode'])}tok/s wall={times['total']:.2f}s speculative={_told(record)}"
    )


def _told(record: records.Record) -> str:
    """The drafter and its acceptance, on the console."""
    speculative = record["speculative"]
    assert isinstance(speculative, dict)
    if not speculative["drafted_tokens"]:
        return str(speculative["backend"])
    return f"{speculative['backend']}:{speculative['accepted_tokens']}/{speculative['drafted_tokens']}"


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f}" if seconds > 0 else "0.0"


async def open_sessions(
    gateway: Gateway,
    exchange: Exchange,
    facts: Callable[[int], RequestFacts],
    request_log: RequestLog,
    observed: Observed,
    guessing: Guessing,
    count: int = 1,
    closed: Closed | None = None,
) -> tuple[Session, ...]:
    """Take units of capacity, all that are wanted or none, to be given back when the exchange closes.

    facts    what was asked, given the request id
    closed   told of each when it is over and its capacity is given back
    raises Overloaded, Unavailable, ModelLoading
    """
    tickets: list[Ticket] = []
    try:
        while len(tickets) < count:
            tickets.append(await gateway.arrive(exchange.request_id))
    except BaseException as error:
        observed.outcomes[Outcome.REJECTED] += isinstance(error, Overloaded)
        for ticket in tickets:
            await ticket.release()  # shielded against a client that leaves
        raise
    sessions = tuple(
        Session(ticket, facts(ticket.request_id), request_log, observed, guessing, closed) for ticket in tickets
    )
    for session in sessions:
        exchange.on_close(session.close)
    return sessions
