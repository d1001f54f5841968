"""The scheduler actor: the shell around the pure machine. It stamps events with the time, logs, passes orders on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ninfer.actors.decode import DecodeActor
from ninfer.actors.eventlog import EventLog
from ninfer.actors.gateway import Arrival, SchedulerMessage, Submission, Ticket, failure, refusal
from ninfer.actors.lane import LaneActor
from ninfer.actors.ledgers import Ledgers
from ninfer.actors.masks import Masks
from ninfer.actors.messages import (
    Assign,
    Close,
    CloseWithError,
    DecodeTogether,
    Failed,
    Finished,
    GenerationRequest,
    ReadChunk,
    ReadPart,
    RequestTimeline,
    Usage,
)
from ninfer.actors.prefill import PrefillActor
from ninfer.actors.runtime.clock import Clock
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.actors.runtime.question import Question
from ninfer.actors.runtime.replies import send_last
from ninfer.actors.slots import SlotOrder, SlotQuery, slot_refusal
from ninfer.actors.timeline import Timelines
from ninfer.errors import EngineFailure
from ninfer.ledger import Ledger
from ninfer.scheduler import commands as cmd
from ninfer.scheduler.events import Arrived, Event, Prepared, Released, SlotAsked
from ninfer.scheduler.machine import Scheduler
from ninfer.step import DecodeRound, DecodeRow
from ninfer.types import FinishReason

DiskOrder = cmd.ReadDisk | cmd.WriteDisk | cmd.DropRead | cmd.DropFile


class Office(Protocol):
    """What the process does for the scheduler outside of any request."""

    def load_model(self) -> None:
        """Listen and load."""
        ...

    def warm_up(self) -> None:
        """Run the warm-up generation."""
        ...

    def announce_ready(self) -> None:
        """Say that the server serves."""
        ...

    def reset_engine(self) -> None:
        """Bring the engine back to its empty state."""
        ...

    def exit(self, status: int, message: str) -> None:
        """End the process."""
        ...

    def save_evicted(self, order: cmd.SaveEvicted, ledger: Ledger) -> None:
        """Write a session that is about to be displaced to a file."""
        ...

    def use_disk(self, order: DiskOrder) -> None:
        """Read, use or remove a file of the disk cache."""
        ...

    def wake_at(self, at: float) -> None:
        """Send a tick at this time, instead of the one asked for before."""
        ...


@dataclass(slots=True)
class _Client:
    """Where a request came from, and what it wants once it is prepared."""

    ticket: Ticket
    request: GenerationRequest | None = None


class SchedulerActor:
    """Receives, calls the machine, performs the commands. No decision is made here."""

    def __init__(
        self,
        machine: Scheduler,
        mailbox: Mailbox[SchedulerMessage],
        lanes: Sequence[LaneActor],
        prefill: PrefillActor,
        decode: DecodeActor,
        ledgers: Ledgers,
        masks: Masks,
        office: Office,
        log: EventLog,
        clock: Clock,
    ) -> None:
        self.machine = machine
        self.mailbox = mailbox
        self._lanes = lanes
        self._prefill = prefill
        self._decode = decode
        self._ledgers = ledgers
        self._masks = masks
        self._office = office
        self._log = log
        self._clock = clock
        self._clients: dict[int, _Client] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._timelines = Timelines()
        self._slots: dict[int, Question[SlotQuery, SlotOrder]] = {}
        self._assigned: dict[int, int] = {}  # lane to the request that its actor was told of last
        self._tickets = 0

    async def run(self) -> None:
        """Handle messages until the mailbox is closed."""
        self._log.start(self.machine.settings)
        async for message in self.mailbox.messages():
            self.take(message)

    def take(self, message: SchedulerMessage) -> None:
        """Handle one message; never waits."""
        match message:
            case Arrival():
                self._tickets += 1
                self._arrivals[self._tickets] = message
                self._decide(Arrived(self._tickets, message.name))
            case Submission():
                self._submit(message)
            case Question():
                self._ask_slot(message)
            case _:
                self._decide(message)

    def timeline(self, wanted: str) -> RequestTimeline | None:
        """What is known of the request with this number or name; None if nothing is, or not any more."""
        now = self._clock.now()
        return self._timelines.find(wanted, now, lambda request_id: self.machine.ahead_of(request_id, now))

    def stop(self) -> None:
        """Answer everybody who still waits for something."""
        for message in self.mailbox.drain():
            if isinstance(message, Arrival | Question):
                message.refuse(refusal("service_unavailable"))
        for question in self._slots.values():
            question.refuse(refusal("service_unavailable"))
        self._slots.clear()
        for arrival in self._arrivals.values():  # the one whose decision broke a rule
            arrival.refuse(refusal("service_unavailable"))
        self._arrivals.clear()
        for client in self._clients.values():
            send_last(client.ticket.sender, Failed(EngineFailure()))
        self._clients.clear()

    def _submit(self, message: Submission) -> None:
        client = self._clients.get(message.request_id)
        if client is not None:
            request = message.request
            client.request = request
            self._log.prompt(
                self._clock.now(), message.request_id, request.prompt_ids, request.sampling, request.stop_ids
            )
            if request.enforced is not None:
                self._masks.begin(message.request_id, request.enforced)
            blocks = request.identity.blocks if request.identity is not None else ()
            self._decide(
                Prepared(
                    message.request_id,
                    len(request.prompt_ids),
                    request.max_tokens,
                    blocks,
                    request.marks,
                    request.priority,
                    masked=request.enforced is not None and not request.enforced.matcher.is_free,
                    follows=self._ledgers.followed(request.prompt_ids, blocks),
                )
            )

    def _ask_slot(self, question: Question[SlotQuery, SlotOrder]) -> None:
        query = question.message
        self._tickets += 1
        self._slots[self._tickets] = question
        self._decide(
            SlotAsked(
                self._tickets,
                query.lane,
                query.action,
                query.if_digest is None or query.if_digest == self._session_digest(query.lane),
                query.tokens,
                query.blocks,
                query.checkpoints,
                query.file,
            )
        )

    def _session_digest(self, lane: int) -> str:
        """Of what an idle lane retains; empty for one that retains nothing, which is no session's."""
        ledger, tokens = self._ledgers[lane], self.machine.statistics().lanes[lane].prompt_tokens
        return ledger.digest(tokens) if ledger is not None and tokens else ""

    def _decide(self, event: Event) -> None:
        now = self._clock.now()
        commands = self.machine.handle(event, now)
        self._log.decision(now, event, commands)
        self._timelines.saw(now, event, commands)
        for command in commands:
            PERFORM[type(command)](self, command, now)
        if isinstance(event, Released):
            self._clients.pop(event.request_id, None)
            self._masks.forget(event.request_id)

    def _accept(self, command: cmd.Accept, _now: float) -> None:
        arrival = self._arrivals.pop(command.ticket)
        ticket = Ticket(
            command.request_id,
            arrival.received_at,
            command.deadline,
            self.mailbox,
            self._ledgers.names,
            self._ledgers.copying,
        )
        self._clients[command.request_id] = _Client(ticket)
        arrival.accept(ticket)

    def _refuse(self, command: cmd.Refuse, _now: float) -> None:
        self._arrivals.pop(command.ticket).refuse(refusal(command.code))

    def _admit(self, command: cmd.Admit, now: float) -> None:
        client = self._clients[command.request_id]
        assert client.request is not None
        self._ledgers.begin(command.lane, command.request_id, client.request)
        self._assigned[command.lane] = command.request_id
        assignment = Assign(
            command.request_id,
            client.request,
            client.ticket.sender,
            command.cached_tokens,
            now,
            command.way,
            command.host_restored,
        )
        self._lanes[command.lane].mailbox.put_nowait(assignment)

    def _start_chunk(self, command: cmd.StartChunk, _now: float) -> None:
        request = self._clients[command.request_id].request
        assert request is not None
        self._prefill.mailbox.put_nowait(
            ReadChunk(
                command.step,
                command.request_id,
                command.lane,
                command.begin,
                command.end,
                command.mapping,
                command.sample,
                request,
                command.before,
                command.after,
                command.first,
                self._masks.mask(command.request_id) if command.sample else None,
                command.parts,
                command.foresee,
                command.recall,
            )
        )

    def _continue_chunk(self, command: cmd.ContinueChunk, _now: float) -> None:
        self._prefill.mailbox.put_nowait(ReadPart(command.step, command.last))

    def _start_round(self, command: cmd.StartRound, _now: float) -> None:
        plan = DecodeRound(tuple(self._row(row) for row in command.rows), command.before)
        self._decode.mailbox.put_nowait(DecodeTogether(command.step, command.rows, plan))

    def _row(self, row: cmd.RowStart) -> DecodeRow:
        mask = self._masks.mask(row.request_id)
        halts = self._masks.halts(row.request_id)
        if mask is None or halts is not None:
            return DecodeRow(row.lane, row.position, row.mapping, mask, row.drafts, halts=halts)
        # Not None even if there are none: behind a mask nobody else may guess.
        guesses, behind = self._masks.ahead(row.request_id, max(row.drafts, row.copies))
        return DecodeRow(row.lane, row.position, row.mapping, mask, len(guesses), guesses, behind, foresee=row.foresee)

    def _finish(self, command: cmd.Finish, _now: float) -> None:
        reason = FinishReason(command.reason)
        if command.lane is not None and self._serves(command.request_id, command.lane):
            digest = ""
            ledger = self._ledgers[command.lane]
            if command.retained_tokens and ledger is not None and reason is not FinishReason.CANCELLED:
                digest = ledger.digest(command.retained_tokens)
            self._lanes[command.lane].mailbox.put_nowait(Close(command.request_id, reason, digest))
            return
        client = self._clients[command.request_id]
        prompt_tokens = len(client.request.prompt_ids) if client.request is not None else 0
        nothing = Usage(prompt_tokens, cached_tokens=0, completion_tokens=0, reasoning_tokens=0)
        send_last(client.ticket.sender, Finished(reason, nothing, None, None, None, None))

    def _fail(self, command: cmd.Fail, _now: float) -> None:
        error = failure(command.code)
        if command.lane is not None and self._serves(command.request_id, command.lane):
            self._lanes[command.lane].mailbox.put_nowait(CloseWithError(command.request_id, error))
            return
        ticket = self._clients[command.request_id].ticket
        end = Failed(error)
        ticket.end_early(end)
        send_last(ticket.sender, end)

    def _serves(self, request_id: int, lane: int) -> bool:
        """Whether the lane's actor has been told of the request: it is when its first chunk is launched."""
        return self._assigned.get(lane) == request_id

    def _answer_slot(self, command: SlotOrder, _now: float) -> None:
        self._slots.pop(command.ticket).answer(command)

    def _save_evicted(self, command: cmd.SaveEvicted, _now: float) -> None:
        ledger = self._ledgers[command.read.lane]
        assert ledger is not None, "a lane with a session has its tokens"
        self._office.save_evicted(command, ledger)

    def _refuse_slot(self, command: cmd.RefuseSlot, _now: float) -> None:
        self._slots.pop(command.ticket).refuse(slot_refusal(command.code))

    def _forget(self, command: cmd.Forget, _now: float) -> None:
        self._ledgers.put(command.lane, None)


PERFORM: dict[type[Any], Callable[[SchedulerActor, Any, float], None]] = {
    cmd.LoadModel: lambda actor, _command, _now: actor._office.load_model(),
    cmd.WarmUp: lambda actor, _command, _now: actor._office.warm_up(),
    cmd.AnnounceReady: lambda actor, _command, _now: actor._office.announce_ready(),
    cmd.ResetEngine: lambda actor, _command, _now: actor._office.reset_engine(),
    cmd.Exit: lambda actor, command, _now: actor._office.exit(command.status, command.message),
    cmd.WakeAt: lambda actor, command, _now: actor._office.wake_at(command.at),
    cmd.Accept: SchedulerActor._accept,
    cmd.Refuse: SchedulerActor._refuse,
    cmd.Admit: SchedulerActor._admit,
    cmd.Finish: SchedulerActor._finish,
    cmd.Fail: SchedulerActor._fail,
    cmd.StartChunk: SchedulerActor._start_chunk,
    cmd.ContinueChunk: SchedulerActor._continue_chunk,
    cmd.StartRound: SchedulerActor._start_round,
    cmd.RefuseSlot: SchedulerActor._refuse_slot,
    cmd.Forget: SchedulerActor._forget,
    cmd.Erased: SchedulerActor._answer_slot,
    cmd.ReadSession: SchedulerActor._answer_slot,
    cmd.WriteSession: SchedulerActor._answer_slot,
    cmd.SaveEvicted: SchedulerActor._save_evicted,
    **{
        kind: lambda actor, command, _now: actor._office.use_disk(command)
        for kind in (cmd.ReadDisk, cmd.WriteDisk, cmd.DropRead, cmd.DropFile)
    },
}
