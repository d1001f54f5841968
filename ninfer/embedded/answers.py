"""Greedy answers from the engine, one conversation at a time, as a server would give them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer.engine.engine import Engine
from ninfer.step import PAGE_TOKENS, DecodeRound, DecodeRow, Drawn, LaneSetup, PageMapping, PrefillChunk, pages_for
from ninfer.types import Sampling

if TYPE_CHECKING:
    from ninfer.engine.device_engine import DeviceEngine

GREEDY = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)
CHUNK_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """Generated ids without the stop token, the seconds spent on decoding them, and what each round drew."""

    ids: tuple[int, ...]
    decode_s: float
    rounds: tuple[Drawn, ...]


class Pages:
    """Maps the one lane's pages in order: the pool is large enough for the longest sequence."""

    def __init__(self) -> None:
        self._mapped = 0

    def up_to(self, tokens: int) -> PageMapping:
        first, self._mapped = self._mapped, max(self._mapped, pages_for(tokens))
        return PageMapping(first, tuple(range(first, self._mapped)))


def answer(
    engine: Engine | DeviceEngine, prompt: list[int], stop_ids: frozenset[int], limit: int, drafts: int = 0
) -> Answer:
    """At most `limit` ids after `prompt` on lane 0 of an engine whose pool holds both, with so many guesses a round."""
    assert CHUNK_TOKENS % PAGE_TOKENS == 0
    pages = Pages()
    drawn: Drawn | None = None
    for begin in range(0, len(prompt), CHUNK_TOKENS):
        end = min(begin + CHUNK_TOKENS, len(prompt))
        setup = LaneSetup(GREEDY, tuple(sorted(stop_ids))) if begin == 0 else None
        chunk = PrefillChunk(0, begin, tuple(prompt[begin:end]), pages.up_to(end), setup, end == len(prompt))
        drawn = engine.run(chunk).drawn
    assert drawn is not None
    ids: list[int] = []
    rounds: list[Drawn] = []
    began = time.perf_counter()
    while True:
        ids += drawn.token_ids
        if drawn.stopped:
            ids.pop()
            break
        if len(ids) >= limit:
            break
        position = len(prompt) + len(ids) - 1
        guesses = min(drafts, limit - len(ids) - 1)
        row = DecodeRow(0, position, pages.up_to(position + 1 + guesses), None, guesses)
        drawn = engine.run(DecodeRound((row,))).drawn[0]
        rounds.append(drawn)
    return Answer(tuple(ids), time.perf_counter() - began, tuple(rounds))
