"""Drives an engine as the scheduler does, one step ahead of the device, and says how long that took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, overload

from ninfer.step import (
    PAGE_TOKENS,
    DecodeResult,
    DecodeRound,
    DecodeRow,
    LaneSetup,
    PageMapping,
    PrefillChunk,
    PrefillResult,
    pages_for,
)
from ninfer.types import Sampling

GREEDY = LaneSetup(Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0), ())
STEPS_AHEAD = 1

R = TypeVar("R", covariant=True)
Result = TypeVar("Result", PrefillResult, DecodeResult)


class Pending(Protocol[R]):
    """A step on its way."""

    def wait(self) -> R: ...


class Steps(Protocol):
    """What is measured: an engine, of whatever device."""

    @overload
    def launch(self, plan: PrefillChunk) -> Pending[PrefillResult]: ...
    @overload
    def launch(self, plan: DecodeRound) -> Pending[DecodeResult]: ...
    def launch(self, plan: PrefillChunk | DecodeRound) -> Pending[PrefillResult] | Pending[DecodeResult]: ...


class AssumesDepth(Protocol):
    """An engine that can take positions for granted."""

    def assume_depth(self, lane: int, setup: LaneSetup, tokens: int, pages: tuple[int, ...]) -> None: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """wall_s: from the first launch to the last result; device_s: sum over the steps, as the engine tells."""

    wall_s: float
    device_s: float


def ahead(steps: Iterable[Pending[Result]]) -> Taken:
    """Launch steps by iterating over them, each before the one before it has been waited for."""
    flying: deque[Pending[Result]] = deque()
    device_s = 0.0
    begin = time.perf_counter()
    for step in steps:
        flying.append(step)
        if len(flying) > STEPS_AHEAD:
            device_s += flying.popleft().wait().device_s
    while flying:
        device_s += flying.popleft().wait().device_s
    return Taken(time.perf_counter() - begin, device_s)


class Driver:
    """Lanes of an engine that all get as far; pages of the pool go to them in turn.

    lanes      in use
    position   of each lane: positions in its cache
    """

    def __init__(self, engine: Steps, lanes: int, chunk_tokens: int) -> None:
        self._engine, self._chunk_tokens = engine, chunk_tokens
        self.lanes = lanes
        self.position = 0
        self._mapped = [0] * lanes

    def read(self, ids: Sequence[int]) -> Taken:
        """Read a prompt into every lane, one lane after the other, and draw a token for each."""
        self.position = len(ids)
        begins = range(0, len(ids), self._chunk_tokens)
        return ahead(
            self._engine.launch(self._chunk(lane, begin, ids)) for lane in range(self.lanes) for begin in begins
        )

    def assume(self, engine: AssumesDepth, tokens: int) -> None:
        """Put every lane at a position without reading anything."""
        self.position = tokens
        for lane in range(self.lanes):
            self._mapped[lane] = 0
            mapping = self._mapping(lane, tokens)
            engine.assume_depth(lane, GREEDY, tokens, mapping.pages)

    def decode(self, rounds: int) -> Taken:
        """Decode so many rounds of all lanes."""
        return ahead(self._engine.launch(self.next_round()) for _ in range(rounds))

    def next_round(self) -> DecodeRound:
        """The next round of all lanes, to be launched now."""
        end = self.position + 1
        rows = tuple(DecodeRow(lane, self.position, self._mapping(lane, end)) for lane in range(self.lanes))
        self.position = end
        return DecodeRound(rows)

    def _chunk(self, lane: int, begin: int, ids: Sequence[int]) -> PrefillChunk:
        assert self._chunk_tokens % PAGE_TOKENS == 0
        end = min(begin + self._chunk_tokens, len(ids))
        if begin == 0:
            self._mapped[lane] = 0
        setup = GREEDY if begin == 0 else None
        return PrefillChunk(lane, begin, tuple(ids[begin:end]), self._mapping(lane, end), setup, end == len(ids))

    def _mapping(self, lane: int, end: int) -> PageMapping:
        first, self._mapped[lane] = self._mapped[lane], max(self._mapped[lane], pages_for(end))
        return PageMapping(first, tuple(block * self.lanes + lane for block in range(first, self._mapped[lane])))
