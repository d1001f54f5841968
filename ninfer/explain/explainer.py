"""Watches one request through a replay and writes its account down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ninfer.config import SchedulerSettings
from ninfer.explain.account import (
    FILE,
    Account,
    Admission,
    Begin,
    Cause,
    Chunk,
    Displaced,
    End,
    Fate,
    Gap,
    GivenUp,
    Origin,
    Ran,
    SetAside,
    Wait,
)
from ninfer.explain.witness import Admitted, Began, GaveUp, WitnessScheduler
from ninfer.replay import Onlooker
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.open_blocks import OpenBlock
from ninfer.scheduler.requests import Request
from ninfer.step import PAGE_TOKENS, CaptureState

# The end of a request that was found wrong while it was prepared; what is wrong with it is not in an event log.
REFUSED = "refused"


class Explainer(Onlooker):
    """`wanted` is the number of a request, or the name that its client knows it by; no `account` until it has come."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self.account: Account | None = None
        self._machine: WitnessScheduler | None = None
        self._request: Request | None = None
        self._session: int | None = None  # of the request, once it has begun
        self._lane: int | None = None  # where the session is to be retained
        self._stood = False  # whether it has been since
        self._waits = False
        self._readers: dict[str, int] = {}  # digest of a block: who read or drew it last
        self._blocks: dict[int, list[str]] = {}
        # Under way, by each of their steps, with the names of its blocks.
        self._chunks: dict[int, tuple[cmd.StartChunk, list[str]]] = {}
        self._images: dict[int, int] = {}  # number of an image: whose state it holds
        self._since: list[Ran] = []  # what landed since the last token
        self._paused: tuple[float, dict[str, int]] | None = None

    def scheduler(self, settings: SchedulerSettings) -> WitnessScheduler:
        self._machine = WitnessScheduler(settings)
        return self._machine

    @property
    def has_seen_all(self) -> bool:
        """The request is gone, and so is what it left."""
        account = self.account
        return account is not None and account.released is not None and (self._lane is None or account.fate is not None)

    def decided(self, number: int, now: float, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
        machine = self._machine
        assert machine is not None, "it is made before the first event"
        self._note_event(now, event)
        for admitted in machine.admitted:
            self._note_admission(now, admitted)
        for began in machine.began:
            self._note_begin(now, began)
        for gave_up in machine.gave_up:
            self._note_given_up(now, gave_up)
        for command in commands:
            self._note_command(machine, now, command)
            if isinstance(event, ev.Arrived) and isinstance(command, cmd.Accept):
                self._meet(machine, now, event, command)
        if self.account is not None and self._request is not None:
            self._note_fate(machine, now, event)
            self._note_wait(self.account, self._at(now), machine.cause(self._request))
        machine.admitted.clear()
        machine.began.clear()
        machine.gave_up.clear()

    def _meet(self, machine: WitnessScheduler, now: float, event: ev.Arrived, command: cmd.Accept) -> None:
        if self.account is None and self._wanted in (str(command.request_id), event.name):
            self.account = Account(command.request_id, event.name, now, command.deadline - now)
            self._request = machine.requests[command.request_id]

    def _is_it(self, request_id: int) -> bool:
        return self.account is not None and self.account.request_id == request_id

    def _at(self, now: float) -> float:
        assert self.account is not None
        return now - self.account.arrived

    # --- events ----------------------------------------------------------------------------------------------------

    def _note_event(self, now: float, event: ev.Event) -> None:
        match event:
            case ev.Prepared():
                self._blocks[event.request_id] = list(event.blocks)
                if self._is_it(event.request_id):
                    self._note_prepared(now, event)
            case ev.PartLanded():
                self._land_part(event)
            case ev.ChunkLanded():
                self._land_chunk(now, event)
            case ev.RoundLanded():
                self._land_round(now, event)
            case ev.EngineReset():
                self._chunks.clear()
            case ev.SlotAsked():
                self._readers.update(dict.fromkeys(event.blocks, FILE))
            case ev.DiskFound():
                self._readers.update(dict.fromkeys(event.blocks, FILE))
            case ev.PreparationFailed():
                if self.account is not None and self._is_it(event.request_id) and self.account.end is None:
                    self.account.end = End(self._at(now), REFUSED, 0, None)
            case ev.Released():
                self._blocks.pop(event.request_id, None)
                if self.account is not None and self._is_it(event.request_id):
                    self.account.released = self._at(now)

    def _note_prepared(self, now: float, event: ev.Prepared) -> None:
        account = self.account
        assert account is not None
        account.prepared = self._at(now)
        account.prompt_tokens, account.max_tokens = event.prompt_tokens, event.max_tokens
        account.priority = event.priority

    def _land_part(self, event: ev.PartLanded) -> None:
        command, _blocks = self._chunks[event.step]
        self._since.append(Ran(event.step, "part", (command.request_id,), 0, event.device_s))
        if self._is_it(command.request_id):
            self._chunk_of(command).device_s += event.device_s

    def _chunk_of(self, command: cmd.StartChunk) -> Chunk:
        assert self.account is not None
        return next(chunk for chunk in self.account.chunks if chunk.step == command.step)

    def _land_chunk(self, now: float, event: ev.ChunkLanded) -> None:
        command, blocks = self._chunks[event.step]
        self._chunks = {step: under_way for step, under_way in self._chunks.items() if under_way[0] is not command}
        blocks.extend(event.blocks)
        for digest in blocks[command.begin // PAGE_TOKENS : -(-command.end // PAGE_TOKENS)]:
            self._readers[digest] = command.request_id
        ran = Ran(event.step, "chunk", (command.request_id,), command.end - command.begin, event.device_s)
        self._since.append(ran)
        if not self._is_it(command.request_id):
            return
        chunk = self._chunk_of(command)
        chunk.landed = self._at(now)
        chunk.device_s += event.device_s
        if event.drawn:
            self._draw(now, event.drawn)

    def _land_round(self, now: float, event: ev.RoundLanded) -> None:
        for row in event.rows:
            self._blocks.get(row.request_id, []).extend(row.blocks)
            self._readers.update(dict.fromkeys(row.blocks, row.request_id))
        ids = tuple(row.request_id for row in event.rows)
        self._since.append(Ran(event.step, "round", ids, sum(row.drawn for row in event.rows), event.device_s))
        for row in event.rows:
            if self._is_it(row.request_id) and self.account is not None and self.account.end is None:
                self.account.rounds += 1
                self.account.drafted_tokens += row.drafted
                self.account.accepted_tokens += row.accepted
                self.account.largest_round = max(self.account.largest_round, len(event.rows))
                self._draw(now, row.drawn)

    def _draw(self, now: float, tokens: int) -> None:
        account, at = self.account, self._at(now)
        assert account is not None
        if account.end is not None:
            return
        if account.last_token is None:
            account.first_token = at
        else:
            longest = account.longest_gap
            if longest is None or at - account.last_token > longest.end - longest.begin:
                account.longest_gap = Gap(account.last_token, at, tuple(self._since))
        self._since.clear()
        account.last_token = at
        account.drawn_tokens += tokens

    # --- commands --------------------------------------------------------------------------------------------------

    def _note_command(self, machine: WitnessScheduler, now: float, command: cmd.Command) -> None:
        match command:
            case cmd.StartChunk():
                self._chunks[command.step] = command, self._blocks.get(command.request_id, [])
                stored = [step.image for step in command.after if isinstance(step, CaptureState)]
                self._images.update(dict.fromkeys(stored, command.request_id))
                if self._is_it(command.request_id):
                    self._launch_chunk(now, command)
                else:
                    self._count_aside(now, command)
            case cmd.ContinueChunk():
                self._chunks[command.step] = self._chunks[command.behind]
            case cmd.ReadSession() if command.capture:
                self._images[command.image] = machine.owner_of(command.lane)
            case cmd.WriteSession():
                self._images.update(dict.fromkeys((image for _at, image in command.images), FILE))
            case cmd.WriteDisk():
                self._images[command.image] = FILE
            case cmd.Finish() | cmd.Fail():
                if self._is_it(command.request_id):
                    self._note_end(now, command)

    def _launch_chunk(self, now: float, command: cmd.StartChunk) -> None:
        account, at = self.account, self._at(now)
        assert account is not None
        self._end_pause(account, at)
        stored = sum(isinstance(step, CaptureState) for step in command.after)
        account.chunks.append(Chunk(command.step, command.begin, command.end, at, stored))

    def _count_aside(self, now: float, command: cmd.StartChunk) -> None:
        """Another prompt is read; whether that is in the middle of ours."""
        account, request = self.account, self._request
        if account is None or request is None or account.end is not None or not account.chunks:
            return
        if account.chunks[-1].end < request.prompt:
            begin, tokens = self._paused if self._paused is not None else (self._at(now), {})
            name = str(command.request_id)
            tokens[name] = tokens.get(name, 0) + command.end - command.begin
            self._paused = begin, tokens

    def _end_pause(self, account: Account, at: float) -> None:
        if self._paused is not None:
            begin, tokens = self._paused
            account.set_aside.append(SetAside(begin, at, tokens))
            self._paused = None

    def _note_end(self, now: float, command: cmd.Finish | cmd.Fail) -> None:
        assert self.account is not None
        finish = isinstance(command, cmd.Finish)
        reason = command.reason if isinstance(command, cmd.Finish) else command.code
        retained = command.retained_tokens if isinstance(command, cmd.Finish) else 0
        self._end_pause(self.account, self._at(now))
        if self.account.end is None:
            self.account.end = End(self._at(now), reason, retained, command.lane)
        self._lane = command.lane if finish and retained else None

    # --- choices ---------------------------------------------------------------------------------------------------

    def _note_admission(self, now: float, admitted: Admitted) -> None:
        if self._is_it(admitted.request.id):
            assert self.account is not None
            self.account.admission = Admission(
                self._at(now),
                admitted.lane,
                admitted.pages,
                admitted.choices,
                admitted.passed,
            )

    def _note_begin(self, now: float, began: Began) -> None:
        account, whose = self.account, self._images.get(began.image) if began.image is not None else None
        self._images.update(began.stored)
        if account is None or not self._is_it(began.request.id):
            return
        command, displaced = began.command, None
        if began.displaced is not None:
            displaced = Displaced(began.displaced.tokens, began.displaced_from, _fate(began))
        state = "image" if began.image is not None else "own" if command.cached_tokens else "none"
        account.begin = Begin(
            self._at(now),
            command.lane,
            command.way,
            command.cached_tokens,
            state,
            whose if state == "image" else began.displaced_from if state == "own" else None,
            began.loaded_pages,
            self._origins([node.digest for node in began.path], began.open),
            displaced,
        )
        self._session = began.session

    def _note_given_up(self, now: float, gave_up: GaveUp) -> None:
        if self._is_it(gave_up.request.id):
            assert self.account is not None
            self.account.given_up.append(
                GivenUp(self._at(now), gave_up.pages, gave_up.parked, gave_up.images, gave_up.lanes)
            )

    def _origins(self, digests: Sequence[str], block: OpenBlock | None) -> tuple[Origin, ...]:
        """Who read which part, neighbours of one request together."""
        ends = [(at * PAGE_TOKENS, self._readers[digest]) for at, digest in enumerate(digests, 1)]
        if block is not None:
            ends.append((block.executed, block.owner))
        origins: list[Origin] = []
        begin = 0
        for end, reader in ends:
            if origins and origins[-1].request_id == reader:
                origins[-1] = replace(origins[-1], end=end)
            else:
                origins.append(Origin(begin, end, reader))
            begin = end
        return tuple(origins)

    # --- what is left ----------------------------------------------------------------------------------------------

    def _note_wait(self, account: Account, at: float, cause: Cause | None) -> None:
        if self._waits:
            account.waits[-1].end = at
        if cause is not None and not (self._waits and _same(account.waits[-1].cause, cause)):
            account.waits.append(Wait(at, at, cause))
        self._waits = cause is not None

    def _note_fate(self, machine: WitnessScheduler, now: float, event: ev.Event) -> None:
        account, lane = self.account, self._lane
        assert account is not None
        if lane is None or account.fate is not None:
            return
        session = machine.holdings.sessions[lane]
        if session is not None and session.number == self._session and session.tokens:
            self._stood = True
        elif self._stood or not machine.holdings.trusted:
            what, request_id = self._what_happened(machine, lane, event)
            account.fate = Fate(self._at(now), what, request_id)

    @staticmethod
    def _what_happened(machine: WitnessScheduler, lane: int, event: ev.Event) -> tuple[str, int | None]:
        """Why a session is not in its lane any more, after the decision that took it away."""
        for began in machine.began:
            if began.command.lane == lane:
                return _fate(began), began.request.id
        if isinstance(event, ev.StepFailed) or not machine.holdings.trusted:
            return "fault", None
        if isinstance(event, ev.SlotAsked) and event.lane == lane:
            return ("erased" if event.action == "erase" else "overwritten"), None
        return "given up", next((gave_up.request.id for gave_up in machine.gave_up if lane in gave_up.lanes), None)


def _fate(began: Began) -> str:
    """What becomes of the session of a lane in which a request begins."""
    if began.displaced is not None and began.displaced.number == began.session:
        return "continued"
    return "kept" if began.displaced_is_stored else "lost"


def _same(one: Cause, other: Cause) -> bool:
    """Whether two causes are one but for counts that change with every step."""
    who = [[(holder.lane, holder.request_id) for holder in cause.holders] for cause in (one, other)]
    return one.kind == other.kind and one.ahead == other.ahead and who[0] == who[1]
