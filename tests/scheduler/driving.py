"""Driving the machine with whole requests: tokens are bytes, an engine answers, a model of the device checks."""

from __future__ import annotations

import random
import zlib

from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.step import PAGE_TOKENS, CaptureState
from ninfer.types import Marks
from tests.scheduler.test_machine import serving
from tests.support.memory import DeviceMemory


def text(tokens: int, seed: int = 0) -> bytes:
    """So many tokens that no other seed gives."""
    return random.Random(seed).randbytes(tokens)


def blocks(history: bytes) -> tuple[str, ...]:
    """Chained digests of the full blocks."""
    digests, crc = [], 0
    for begin in range(0, len(history) - PAGE_TOKENS + 1, PAGE_TOKENS):
        crc = zlib.crc32(history[begin : begin + PAGE_TOKENS], crc)
        digests.append(f"{begin}:{crc}")
    return tuple(digests)


class Driver:
    """A server whose steps land when the test says so. `out` is everything it has ordered, `now` its clock; `accepts`
    of a row's guesses are right, if there are so many, and a round takes `round_s`.
    """

    def __init__(
        self,
        pages: int = 128,
        *,
        folds_late: bool = False,
        parts: tuple[int, ...] = (1,),
        appends: bool = False,
        **settings: object,
    ) -> None:
        defaults = {"lanes": 2, "prefix_reuse": True, "images": 8, "prefill_chunk_tokens": 256, "max_pending": 64}
        self.machine: Scheduler = serving(
            pages, folds_late=folds_late, parts=parts, appends=appends, **{**defaults, **settings}
        )
        self.memory = DeviceMemory(self.machine.settings.lanes, folds_late)
        self.histories: dict[int, bytes] = {}
        self.prompts: dict[int, int] = {}
        self.out: list[cmd.Command] = []
        self.now = 0.0
        self.accepts = 15
        self.round_s = 0.001
        self._draw = random.Random(7)
        self._tickets = 0
        self._at: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._ended: set[int] = set()

    # --- events ----------------------------------------------------------------------------------------------------

    def send(self, event: ev.Event) -> list[cmd.Command]:
        commands = self.machine.handle(event, self.now)
        self.out.extend(commands)
        for command in commands:
            self._obey(command)
        self.machine.audit()
        return commands

    def ask(
        self,
        prompt: bytes,
        limit: int = 1,
        marks: Marks | None = None,
        priority: int = 0,
        follows: tuple[tuple[int, int], ...] = (),
    ) -> int:
        """A prepared request; returns its id."""
        self._tickets += 1
        (accept,) = (c for c in self.send(ev.Arrived(self._tickets)) if isinstance(c, cmd.Accept))
        self.histories[accept.request_id] = prompt
        self.prompts[accept.request_id] = len(prompt)
        marks = marks if marks is not None else Marks()
        self.send(ev.Prepared(accept.request_id, len(prompt), limit, blocks(prompt), marks, priority, follows=follows))
        return accept.request_id

    def land(self, *, stop: int = 0) -> list[cmd.Command]:
        """The oldest step lands; the request `stop` draws a stop token."""
        step = self.machine.flight.steps[0]
        if step.is_part:
            return self.send(ev.PartLanded(step.number, 0.01))
        if step.end:
            (request,) = step.requests
            sampled = int(step.end == self.prompts[request.id] and request.limit > 0)
            filled = self._filled(request.id, step.end + 1) if sampled else ()
            return self.send(ev.ChunkLanded(step.number, sampled, request.id == stop, 0.01, filled))
        rows = []
        for request in step.requests:
            at, drafts, count = self._at[step.number, request.id]
            filled = tuple(name for end in range(at + 2, at + 2 + count) for name in self._filled(request.id, end))
            rows.append(ev.RowLanded(request.id, count, request.id == stop, filled, drafts, count - 1))
        return self.send(ev.RoundLanded(step.number, tuple(rows), self.round_s))

    def run(self) -> None:
        """Everything in flight and everything that follows from it lands."""
        while self.machine.flight.steps:
            self.land()

    def say(self, prompt: bytes, limit: int = 1, marks: Marks | None = None) -> int:
        """A request from its arrival to its last byte; returns its id."""
        request = self.ask(prompt, limit, marks)
        self.run()
        self.send(ev.Released(request))
        return request

    def slot(self, lane: int, action: str, file: bytes = b"", checkpoints: tuple[int, ...] = ()) -> list[cmd.Command]:
        """Ask for a slot action; a restore is of the session `file`."""
        self._tickets += 1
        return self.send(ev.SlotAsked(self._tickets, lane, action, True, len(file), blocks(file), checkpoints))

    # --- what came of it -------------------------------------------------------------------------------------------

    def admission(self, request: int) -> cmd.Admit:
        """The request's one admission."""
        (admit,) = (c for c in self.out if isinstance(c, cmd.Admit) and c.request_id == request)
        return admit

    def chunks(self, request: int) -> list[cmd.StartChunk]:
        """Its chunks, in order."""
        return [c for c in self.out if isinstance(c, cmd.StartChunk) and c.request_id == request]

    def reused(self, request: int) -> tuple[int, str, int]:
        """Lane, way and tokens of its admission."""
        admit = self.admission(request)
        return admit.lane, admit.way, admit.cached_tokens

    @property
    def tokens_read(self) -> int:
        """Prompt tokens computed so far."""
        return self.machine.statistics().totals.prefill_tokens

    def images(self) -> dict[int, str]:
        """Frontier of every stored state, and its kind."""
        stored = self.machine.holdings.images.stored
        return {image.node.depth * PAGE_TOKENS: image.kind.name for image in stored if image.node is not None}

    # --- the engine ------------------------------------------------------------------------------------------------

    def _obey(self, command: cmd.Command) -> None:
        match command:
            case cmd.StartChunk():
                self.memory.chunk(command, self.histories[command.request_id])
                if command.sample:
                    self._draw_for(command.request_id)
            case cmd.StartRound():
                counts = {row.request_id: 1 + min(row.drafts, self.accepts) for row in command.rows}
                for row in command.rows:
                    self._at[command.step, row.request_id] = (row.position, row.drafts, counts[row.request_id])
                    self._draw_for(row.request_id, counts[row.request_id])
                self.memory.round(command, self.histories, counts)
            case cmd.Finish() | cmd.Fail():
                self._ended.add(command.request_id)
            case cmd.ReadSession() | cmd.WriteSession():
                for transfer in command.before:
                    self.memory.transfer(transfer)
                if isinstance(command, cmd.ReadSession) and command.capture:
                    self.memory.transfer(CaptureState(command.lane, command.image))
            case _:
                pass
        in_flight = {request.id for step in self.machine.flight.steps for request in step.requests}
        for request in self._ended - in_flight:
            self.memory.leave(request)

    def _draw_for(self, request: int, count: int = 1) -> None:
        self.histories[request] += self._draw.randbytes(count)

    def _filled(self, request: int, tokens: int) -> tuple[str, ...]:
        return () if tokens % PAGE_TOKENS else blocks(self.histories[request][:tokens])[-1:]
