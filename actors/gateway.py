"""What the HTTP side may do: ask for a unit of capacity, submit a prepared request, listen, let go."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from ninfer.actors.messages import (
    DescribeSlots,
    Failed,
    GenerationRequest,
    Kept,
    Reply,
    ReplySender,
    RequestTimeline,
    SlotMessage,
    SlotOutcome,
    SlotView,
)
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.actors.runtime.question import Question
from ninfer.actors.runtime.replies import NoticedSender
from ninfer.actors.slots import SlotOrder, SlotQuery
from ninfer.errors import (
    ActorStopped,
    DeadEnd,
    EngineFailure,
    ModelLoading,
    NinferError,
    Overloaded,
    QueueTimeout,
    Unavailable,
)
from ninfer.ledger import BlockNames
from ninfer.scheduler.events import Event, PreparationFailed, Released
from ninfer.scheduler.statistics import SchedulerStatistics
from ninfer.scheduler.transitions import Lifecycle
from ninfer.speculation.copying import CopyRules

NOT_YET = frozenset({Lifecycle.PLANNING, Lifecycle.LOADING, Lifecycle.VALIDATING_MEMORY, Lifecycle.WARMING})

M = TypeVar("M")
A = TypeVar("A")

# Arrivals that may wait for the scheduler's word while the loop is busy. It gives its word within milliseconds, and has
# far fewer places than this; beyond it the answer is the one that it would give.
ARRIVALS_WAITING = 1024


class Arrival:
    """A question for capacity on its way to the scheduler, and the answer on its way back."""

    def __init__(self, received_at: float, name: str = "") -> None:
        self.received_at = received_at
        self.name = name
        self.answered = anyio.Event()
        self.ticket: Ticket | None = None
        self.error: NinferError | None = None

    def accept(self, ticket: Ticket) -> None:
        """Answer with a unit of capacity."""
        self.ticket = ticket
        self.answered.set()

    def refuse(self, error: NinferError) -> None:
        """Answer with an error."""
        self.error = error
        self.answered.set()


class Submission:
    """A prepared request on its way to the scheduler's shell."""

    def __init__(self, request_id: int, request: GenerationRequest) -> None:
        self.request_id = request_id
        self.request = request


SchedulerMessage = Arrival | Submission | Question[SlotQuery, SlotOrder] | Event


def failure(code: str) -> NinferError:
    """The error that ends a request which the scheduler has let in."""
    if code == EngineFailure.kind:
        return EngineFailure()
    return DeadEnd() if code == DeadEnd.code else refusal(code)


def refusal(code: str) -> NinferError:
    """The error that a code of the scheduler stands for."""
    if code == Overloaded.code:
        return Overloaded("All lanes and the whole queue are in use; try again shortly.")
    if code == QueueTimeout.code:
        return QueueTimeout()
    return Unavailable()


class Ticket:
    """One unit of capacity, from the start of preparation until `release`.

    request_id    positive, monotonic per process
    received_at   monotonic time of the arrival; `deadline` is when it has to be admitted
    names         of blocks, for the identity of its prompt
    copying       how guesses are copied from its text; None if they are not
    replies       what comes back once submitted; the last of it is one ``Finished`` or one ``Failed``
    """

    def __init__(
        self,
        request_id: int,
        received_at: float,
        deadline: float,
        mailbox: Mailbox[SchedulerMessage],
        names: BlockNames,
        copying: CopyRules | None = None,
    ) -> None:
        self.request_id = request_id
        self.names = names
        self.copying = copying
        self.received_at = received_at
        self.deadline = deadline
        self._mailbox = mailbox
        send, receive = anyio.create_memory_object_stream[Reply](math.inf)
        self._noticed = NoticedSender(send)
        self.sender: ReplySender = self._noticed
        self.replies: MemoryObjectReceiveStream[Reply] = receive
        self._released = False
        # Set when the request has ended before it was submitted: then that is the answer to the submission.
        self.early_end: Failed | None = None
        # Whoever prepares the request works in here, to be told of such an end at once.
        self.preparation = anyio.CancelScope(deadline=deadline)

    def notice(self, news: Callable[[], None] | None) -> None:
        """Call this at every reply and at their end from now on; None: nothing."""
        self._noticed.news = news

    def end_early(self, end: Failed) -> None:
        """The request has ended before it got a lane."""
        self.early_end = end
        self.preparation.cancel()

    async def submit(self, request: GenerationRequest) -> None:
        """Put the prepared request into the queue; raises what has ended it while it was prepared."""
        if self.early_end is not None:
            raise self.early_end.error
        await self._mailbox.put(Submission(self.request_id, request))

    async def preparation_failed(self) -> None:
        """The request was refused; `release` still has to follow."""
        await self._put(PreparationFailed(self.request_id))

    async def release(self) -> None:
        """Give the unit back. Whatever of the request still runs is cancelled."""
        if self._released:
            return
        self._released = True
        with anyio.CancelScope(shield=True):
            await self._put(Released(self.request_id))
        self.replies.close()
        self.sender.close()

    async def _put(self, event: Event) -> None:
        try:
            await self._mailbox.put(event)
        except ActorStopped:
            return  # the server has stopped: there is no capacity left to give back to


async def _asked(mailbox: Mailbox[Question[M, A]], message: M) -> A:
    question: Question[M, A] = Question(message)
    try:
        await mailbox.put(question)
    except ActorStopped:
        raise Unavailable from None
    answer = await question.wait_answer()
    assert answer is not None, "an answer without an error has a value"
    return answer


class Gateway:
    """The only object of the actors that the HTTP side holds."""

    def __init__(
        self,
        mailbox: Mailbox[SchedulerMessage],
        lifecycle: Callable[[], Lifecycle],
        statistics: Callable[[], SchedulerStatistics],
        slots: Mailbox[Question[SlotMessage, SlotOutcome]],
        ring: Mailbox[Question[DescribeSlots, tuple[SlotView, ...]]],
        timeline: Callable[[str], RequestTimeline | None],
        kept: Callable[[], Kept],
    ) -> None:
        self._mailbox = mailbox
        self._slots = slots
        self._ring = ring
        self._timeline = timeline
        self._kept = kept
        self._lifecycle = lifecycle
        self._statistics = statistics
        self.ready_at: float | None = None

    @property
    def lifecycle(self) -> Lifecycle:
        """Where the process stands."""
        return self._lifecycle()

    def statistics(self) -> SchedulerStatistics:
        """A picture of the scheduler; waits for nothing."""
        return self._statistics()

    def kept(self) -> Kept:
        """Sizes of what the engine keeps for later, and what moving it has taken; waits for nothing."""
        return self._kept()

    def timeline(self, wanted: str) -> RequestTimeline | None:
        """What is known of a request under way or of the last ones, by its number or name; waits for nothing."""
        return self._timeline(wanted)

    async def act_on_slot(self, message: SlotMessage) -> SlotOutcome:
        """Save, restore or erase; raises what keeps it from being done."""
        if self.lifecycle in NOT_YET:
            raise ModelLoading
        return await _asked(self._slots, message)

    async def describe_slots(self) -> tuple[SlotView, ...]:
        """What every lane retains."""
        return await _asked(self._ring, DescribeSlots())

    async def arrive(self, name: str = "") -> Ticket:
        """A unit of capacity for one generation request, or the reason why there is none; `name` is what its client
        knows it by.
        """
        if self.lifecycle in NOT_YET:
            raise ModelLoading
        arrival = Arrival(anyio.current_time(), name)
        if self._mailbox.waiting >= ARRIVALS_WAITING:
            raise refusal(Overloaded.code)
        try:
            self._mailbox.put_nowait(arrival)
        except ActorStopped:
            raise Unavailable from None
        try:
            await arrival.answered.wait()
        except BaseException:
            # The client left before the answer: a ticket that is already on its way must not be lost.
            with anyio.CancelScope(shield=True):
                await arrival.answered.wait()
                if arrival.ticket is not None:
                    await arrival.ticket.release()
            raise
        if arrival.error is not None:
            raise arrival.error
        assert arrival.ticket is not None
        return arrival.ticket
