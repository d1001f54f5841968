"""An engine without a model: strict about the plans it is given, and its words are a function of the prompt alone.

A launch checks the plan and takes its effects, as a queue of work on a device would; the gate and the faults of a
test are met by whoever waits for the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, overload

from ninfer.actors.engine import MemoryCheck
from ninfer.errors import StartupError
from ninfer.step import (
    PAGE_TOKENS,
    DecodeResult,
    DecodeRound,
    Drawn,
    LaneSetup,
    PageMapping,
    PrefillChunk,
    PrefillResult,
    pages_for,
)

R = TypeVar("R")
Words = Callable[[tuple[int, ...]], list[int]]


@dataclass
class _Lane:
    setup: LaneSetup
    prompt: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    words: list[int] | None = None
    drawn: int = 0


@dataclass
class FakePending(Generic[R]):
    """A step given to the fake engine."""

    engine: FakeEngine
    result: R

    def wait(self) -> R:
        self.engine.done()
        return self.result


class FakeEngine:
    """Draws ``words(prompt)`` token by token, then the first stop id, then zeros; checks every plan on the way."""

    def __init__(self, words: Words, lanes: int = 8, pages: int = 1 << 20) -> None:
        self._words = words
        self._lanes: list[_Lane | None] = [None] * lanes
        self._pages = pages
        self.threads: set[int] = set()
        self.fail_next: Exception | None = None
        self.fail_reset: Exception | None = None
        self.gate: threading.Event | None = None
        self.reset_gate: threading.Event | None = None
        self.resets = 0
        self._lock = threading.Lock()
        self.in_flight = 0
        self.most_in_flight = 0
        self.rows_seen: list[int] = []

    @overload
    def launch(self, plan: PrefillChunk) -> FakePending[PrefillResult]: ...
    @overload
    def launch(self, plan: DecodeRound) -> FakePending[DecodeResult]: ...
    def launch(self, plan: PrefillChunk | DecodeRound) -> FakePending[PrefillResult] | FakePending[DecodeResult]:
        self.threads.add(threading.get_ident())
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if isinstance(plan, PrefillChunk):
            return FakePending(self, self._prefill(plan))
        return FakePending(self, self._decode(plan))

    def done(self) -> None:
        """A step is waited for: here it takes its time, or fails."""
        if self.gate is not None:
            assert self.gate.wait(30), "the test never opened the gate"
        with self._lock:
            self.in_flight -= 1
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error

    def reset(self) -> None:
        assert self.in_flight == 0, "a reset with steps in flight"
        if self.reset_gate is not None:
            assert self.reset_gate.wait(30), "the test never opened the gate"
        if self.fail_reset is not None:
            raise self.fail_reset
        self.resets += 1
        self._lanes = [None] * len(self._lanes)

    def _prefill(self, plan: PrefillChunk) -> PrefillResult:
        assert (plan.setup is not None) == (plan.begin == 0)
        assert plan.begin % PAGE_TOKENS == 0
        assert plan.token_ids
        if plan.setup is not None:
            self._lanes[plan.lane] = _Lane(plan.setup)
        lane = self._lane(plan.lane)
        assert len(lane.prompt) == plan.begin
        lane.prompt.extend(plan.token_ids)
        self._map(plan.lane, plan.mapping, len(lane.prompt))
        return PrefillResult(self._draw(plan.lane) if plan.sample else None, 0.001)

    def _decode(self, plan: DecodeRound) -> DecodeResult:
        self.rows_seen.append(len(plan.rows))
        for row in plan.rows:
            lane = self._lane(row.lane)
            assert row.position == len(lane.prompt) + lane.drawn - 1
            self._map(row.lane, row.mapping, row.position + 1)
        return DecodeResult(tuple(self._draw(row.lane) for row in plan.rows), 0.0005)

    def _lane(self, index: int) -> _Lane:
        lane = self._lanes[index]
        assert lane is not None, f"lane {index} was never set up"
        return lane

    def _map(self, index: int, mapping: PageMapping, tokens: int) -> None:
        lane = self._lane(index)
        assert mapping.first == len(lane.table)
        assert all(0 <= page < self._pages for page in mapping.pages)
        lane.table.extend(mapping.pages)
        assert len(lane.table) >= pages_for(tokens)

    def _draw(self, index: int) -> Drawn:
        lane = self._lane(index)
        if lane.words is None:
            lane.words = self._words(tuple(lane.prompt))
        stop_ids = lane.setup.stop_ids
        at = lane.drawn
        lane.drawn += 1
        if at < len(lane.words):
            token = lane.words[at]
        else:
            token = stop_ids[0] if stop_ids else 0
        return Drawn(index, (token,), token in stop_ids)


class FakeBuilder:
    """Plans and loads a fake engine in no time."""

    def __init__(self, engine: FakeEngine, pages: int = 4096, required: int = 1, available: int = 2) -> None:
        self.engine = engine
        self.check = MemoryCheck(required, available, pages, "runtime reservation requires more than there is")
        self.load_error: StartupError | None = None
        self.late: MemoryCheck | None = None

    def plan(self) -> MemoryCheck:
        return self.check

    def load(self) -> tuple[FakeEngine, MemoryCheck]:
        if self.load_error is not None:
            raise self.load_error
        return self.engine, self.late if self.late is not None else self.check
