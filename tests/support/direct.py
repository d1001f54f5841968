"""Scheduler and engine without actors between them: commands are carried out at once, steps land when told to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ninfer.actors.engine import EngineLike, Pending
from ninfer.config import SchedulerSettings
from ninfer.ledger import BlockNames, Ledger, PromptIdentity
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.step import (
    PAGE_TOKENS,
    DecodeResult,
    DecodeRound,
    DecodeRow,
    LaneSetup,
    NextPart,
    PrefillChunk,
    PrefillResult,
)
from ninfer.types import Marks, Sampling
from tests.support.memory import Part

GREEDY = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)
NAMES = BlockNames(b"tests")


@dataclass
class Asked:
    """One request: what it asked for, and what became of it."""

    prompt: tuple[int, ...]
    limit: int
    stop_ids: tuple[int, ...] = ()
    drawn: list[int] = field(default_factory=list)
    cached: int | None = None
    way: str = ""
    lane: int | None = None
    reason: str = ""
    counted: int | None = None
    sampling: Sampling = GREEDY

    @property
    def output(self) -> tuple[int, ...]:
        """Tokens that count."""
        return tuple(self.drawn if self.counted is None else self.drawn[: self.counted])


@dataclass
class Stored:
    """A file of the disk cache: tokens, their pages, and states by frontier."""

    ids: tuple[int, ...]
    pages: bytes
    images: dict[int, bytes]


@dataclass(frozen=True)
class SavedSession:
    """What a slot file holds: tokens, and states by their frontiers, the last one that of the session."""

    ledger: Sequence[int] = field(repr=False)
    pages: bytes = field(repr=False)
    images: dict[int, bytes] = field(repr=False)
    frontier: int


class Direct:
    """A scheduler that serves, and its engine. `guess` says how the output of a request may go on, or is silent;
    `spoilt` whether a file of the disk cache turns out to be damaged.
    """

    def __init__(
        self,
        engine: EngineLike,
        settings: SchedulerSettings,
        pages: int,
        guess: Callable[[Asked], tuple[int, ...] | None] = lambda asked: None,
    ) -> None:
        self.guess = guess
        self.engine = engine
        self.machine = Scheduler(settings)
        self.requests: dict[int, Asked] = {}
        self.ledgers: list[Ledger | None] = [None] * settings.lanes
        self.owners: list[int] = [0] * settings.lanes  # whose histories they are; 0 for a file's
        self.flight: deque[tuple[Any, Pending[Any]]] = deque()
        self.now = 0.0
        self.computed = 0
        self.orders: list[cmd.Command] = []
        self.files: dict[str, Stored] = {}
        self.spoilt: Callable[[], bool] = lambda: False
        self._news: deque[ev.Event] = deque()  # of the disk
        self._reading: dict[int, tuple[Stored, int]] = {}
        self._chunk: cmd.StartChunk | None = None  # the newest
        loaded = ev.ModelLoaded(1, 2, pages, "", engine.folds_late, engine.chunk_parts, engine.appends)
        for event in (ev.PlanMade(1, 2, ""), loaded, ev.WarmedUp()):
            self.send(event)

    def send(self, event: ev.Event) -> None:
        self.now += 0.001
        for command in self.machine.handle(event, self.now):
            self._obey(command)

    def ask(
        self,
        prompt: Sequence[int],
        limit: int,
        *,
        marks: Marks | None = None,
        stop_ids: tuple[int, ...] = (),
        priority: int = 0,
        sampling: Sampling = GREEDY,
    ) -> int:
        """Submit a request; returns its number."""
        self.send(ev.Arrived(1))
        number = max(self.requests)
        asked = self.requests[number]
        asked.prompt, asked.limit, asked.stop_ids = tuple(prompt), limit, stop_ids
        asked.sampling = sampling
        names = NAMES.names(asked.prompt)
        follows = tuple(
            (owner, same)
            for owner, ledger in zip(self.owners, self.ledgers, strict=True)
            if owner and ledger is not None and (same := ledger.in_common(asked.prompt, names))
        )
        marks = marks or Marks(turn=len(prompt))
        self.send(ev.Prepared(number, len(prompt), limit, names, marks, priority, follows=follows))
        return number

    def land(self) -> None:
        """Land the oldest step."""
        command, pending = self.flight.popleft()
        result = pending.wait()
        if isinstance(command, cmd.StartChunk):
            self._land_chunk(command, result)
        elif isinstance(command, Part):
            self.send(ev.PartLanded(command.step, 0.001))
        else:
            start, copied = command
            self._land_round(start, copied, result)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Land steps until nothing is in flight, or `until` holds."""
        while (self.flight or self._news) and not until():
            if self._news:
                self.send(self._news.popleft())
            else:
                self.land()

    def serve(self, prompt: Sequence[int], limit: int, **options: Any) -> Asked:
        """One request from its beginning to its end."""
        number = self.ask(prompt, limit, **options)
        self.run()
        self.release(number)
        return self.requests[number]

    def release(self, number: int) -> None:
        """Nobody reads the answer any more: what is left of the request ends."""
        self.send(ev.Released(number))

    def save(self, lane: int) -> SavedSession | None:
        """What a lane retains; None if that is refused."""
        order = self._slot(ev.SlotAsked(1, lane, "save", file="session"))
        ledger = self.ledgers[lane]
        if not isinstance(order, cmd.ReadSession):
            return None
        assert ledger is not None
        engine = self.engine
        engine.transfer(order.before)
        if order.capture:
            engine.capture(lane, order.image)
        images = {frontier: bytes(engine.read_image(image)) for frontier, image in order.checkpoints}
        if order.state:
            images[order.state] = bytes(engine.read_image(order.image))
        pages = bytes(engine.read_pages(order.pages))
        if order.places:
            pages += bytes(engine.read_places(order.places))
        self.send(ev.SlotDone(order.ticket, lane, True))
        return SavedSession(ledger.ids(order.tokens), pages, images, order.state)

    def restore(self, lane: int, saved: SavedSession) -> bool:
        """Have a lane retain what was saved; False if that is refused."""
        identity = PromptIdentity.of(NAMES, saved.ledger)
        blocks = identity.blocks[: saved.frontier // PAGE_TOKENS]
        checkpoints = tuple(frontier for frontier in sorted(saved.images) if frontier < saved.frontier)
        asked = ev.SlotAsked(1, lane, "restore", True, len(saved.ledger), blocks, checkpoints, "session")
        order, engine = self._slot(asked), self.engine
        if not isinstance(order, cmd.WriteSession):
            return False
        engine.transfer(order.before)
        begin = order.skipped * engine.page_bytes
        engine.write_pages(order.pages, memoryview(saved.pages)[begin : begin + len(order.pages) * engine.page_bytes])
        for frontier, image in order.images:
            engine.write_image(image, memoryview(saved.images[frontier]))
        self.ledgers[lane], self.owners[lane] = Ledger(NAMES, saved.ledger, identity), 0
        self.send(ev.SlotDone(order.ticket, lane, True))
        return True

    def _slot(self, asked: ev.SlotAsked) -> cmd.Command:
        self.orders.clear()
        self.send(asked)
        (order,) = self.orders
        return order

    def _obey(self, command: cmd.Command) -> None:
        match command:
            case cmd.Accept():
                self.requests[command.request_id] = Asked((), 0)
            case cmd.Admit():
                asked = self.requests[command.request_id]
                asked.cached, asked.way, asked.lane = command.cached_tokens, command.way, command.lane
                self.ledgers[command.lane] = Ledger(NAMES, asked.prompt, PromptIdentity.of(NAMES, asked.prompt))
                self.owners[command.lane] = command.request_id
            case cmd.Finish():
                asked = self.requests[command.request_id]
                asked.reason = command.reason
                if command.retained_tokens:
                    asked.counted = command.retained_tokens - len(asked.prompt)
            case cmd.Fail():
                self.requests[command.request_id].reason = command.code
            case cmd.StartChunk():
                self._launch_chunk(command)
            case cmd.ContinueChunk():
                assert self._chunk is not None
                pending = self.engine.launch(NextPart(command.lane))
                landing = replace(self._chunk, step=command.step) if command.last else Part(command.step)
                self.flight.append((landing, pending))
            case cmd.StartRound():
                rows = tuple(self._row(row) for row in command.rows)
                starts = zip(rows, command.rows, strict=True)
                # Without room for copied guesses those that are given stand in for the engine's own.
                copied = tuple(row.copied is not None and start.copies > 0 for row, start in starts)
                self.flight.append(((command, copied), self.engine.launch(DecodeRound(rows, command.before))))
            case cmd.Forget():
                self.ledgers[command.lane] = None
            case cmd.SaveEvicted():
                self._save_evicted(command)
            case cmd.ReadDisk():
                self._read_disk(command)
            case cmd.WriteDisk():
                self._write_disk(command)
            case cmd.DropRead():
                del self._reading[command.ticket]
            case cmd.DropFile():
                self.files.pop(command.file, None)
            case cmd.RefuseSlot() | cmd.Erased() | cmd.ReadSession() | cmd.WriteSession():
                self.orders.append(command)
            case _:
                pass

    def _row(self, row: cmd.RowStart) -> DecodeRow:
        most = max(row.drafts, row.copies)
        guesses = self.guess(self.requests[row.request_id]) if most else None
        if guesses is None:
            return DecodeRow(row.lane, row.position, row.mapping, None, row.drafts)
        return DecodeRow(row.lane, row.position, row.mapping, None, most, guesses[:most])

    def _save_evicted(self, command: cmd.SaveEvicted) -> None:
        order, engine, ledger = command.read, self.engine, self.ledgers[command.read.lane]
        assert command.to_disk
        assert ledger is not None
        engine.transfer(order.before)
        if order.capture:
            engine.capture(order.lane, order.image)
        images = {at: bytes(engine.read_image(image)) for at, image in (*order.checkpoints, (order.state, order.image))}
        pages = bytes(engine.read_pages(order.pages)) + bytes(engine.read_places(order.places) if order.places else b"")
        self.files[command.file] = Stored(tuple(ledger.ids(order.tokens)), pages, images)
        self._news.append(ev.SlotDone(order.ticket, order.lane, True))
        self._news.append(ev.SlotWritten(order.ticket, True, order.tokens))

    def _read_disk(self, command: cmd.ReadDisk) -> None:
        file = self.files[command.file]
        assert NAMES.names(file.ids[: command.depth * PAGE_TOKENS])[-1] == command.block
        ok = not self.spoilt()
        if ok:
            self._reading[command.ticket] = file, command.depth
        self._news.append(ev.DiskRead(command.ticket, ok))

    def _write_disk(self, command: cmd.WriteDisk) -> None:
        (file, depth), engine = self._reading.pop(command.ticket), self.engine
        engine.transfer(command.before)
        begin, end = command.skipped * engine.page_bytes, depth * engine.page_bytes
        engine.write_pages(command.pages, memoryview(bytearray(file.pages[begin:end])))
        engine.write_image(command.image, memoryview(bytearray(file.images[depth * PAGE_TOKENS])))
        self._news.append(ev.DiskDone(command.ticket, True))

    def _launch_chunk(self, command: cmd.StartChunk) -> None:
        asked = self.requests[command.request_id]
        self.computed += command.end - command.begin
        chunk = PrefillChunk(
            lane=command.lane,
            begin=command.begin,
            token_ids=asked.prompt[command.begin : command.end],
            mapping=command.mapping,
            setup=LaneSetup(asked.sampling, asked.stop_ids, asked.prompt) if command.first else None,
            sample=command.sample,
            before=command.before,
            after=command.after,
            parts=command.parts,
        )
        self._chunk = command
        landing = command if command.parts == 1 else Part(command.step)
        self.flight.append((landing, self.engine.launch(chunk)))

    def _land_chunk(self, command: cmd.StartChunk, result: PrefillResult) -> None:
        drawn = result.drawn
        ids = drawn.token_ids if drawn is not None else ()
        self.requests[command.request_id].drawn.extend(ids)
        blocks = self._extend(command.lane, ids)
        stopped = drawn is not None and drawn.stopped
        self.send(ev.ChunkLanded(command.step, len(ids), stopped, 0.001, blocks))

    def _land_round(self, command: cmd.StartRound, copied: Sequence[bool], result: DecodeResult) -> None:
        rows = []
        for row, copies, drawn in zip(command.rows, copied, result.drawn, strict=True):
            self.requests[row.request_id].drawn.extend(drawn.token_ids)
            blocks = self._extend(row.lane, drawn.token_ids)
            count = len(drawn.token_ids)
            rows.append(
                ev.RowLanded(row.request_id, count, drawn.stopped, blocks, drawn.drafted, drawn.accepted, copies)
            )
        self.send(ev.RoundLanded(command.step, tuple(rows), 0.001))

    def _extend(self, lane: int, ids: Sequence[int]) -> tuple[str, ...]:
        ledger = self.ledgers[lane]
        assert ledger is not None
        return ledger.extend(ids)
