"""The CPU engine behind all actors: what is launched ahead changes no token."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from ninfer.actors.engine import MemoryCheck
from ninfer.actors.eventlog import EventLog
from ninfer.actors.messages import Failed, Finished, GenerationRequest, Reply, TextDelta
from ninfer.actors.system import System
from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.container import Artifact
from ninfer.artifact.tiny import build_tiny
from ninfer.config import EngineSettings, SchedulerSettings
from ninfer.engine.engine import Engine
from ninfer.scheduler.statistics import TotalsView
from ninfer.text.deltas import ContentDelta
from ninfer.text.tokenizer import Tokenizer
from ninfer.types import FinishReason, Sampling
from tests.support.system import GREEDY, STOP_IDS, TOKENIZER, collect

pytestmark = pytest.mark.asyncio

CONTEXT = 512
ENGINE = EngineSettings(max_context_tokens=CONTEXT, kv_capacity_tokens=3 * CONTEXT, lanes=3, prefill_chunk_tokens=64)
SCHEDULER = SchedulerSettings(lanes=3, max_context_tokens=CONTEXT, prefill_chunk_tokens=64, max_pending=32)
WARM = Sampling(temperature=1.0, top_k=20, top_p=0.95, min_p=0.0, presence_penalty=1.5, frequency_penalty=0.5, seed=7)


class Builder:
    """Loads the CPU engine."""

    def __init__(self, bound: BoundArtifact, settings: EngineSettings, tokenizer: Tokenizer) -> None:
        self.bound, self.settings, self.tokenizer = bound, settings, tokenizer

    def plan(self) -> MemoryCheck:
        return MemoryCheck(1, 2, 1, "")

    def load(self) -> tuple[Engine, MemoryCheck]:
        engine = Engine.load(self.bound, self.settings, self.tokenizer.id_count)
        return engine, MemoryCheck(1, 2, engine.memory.pages, "")


def requests() -> list[GenerationRequest]:
    """Prompts of one to three units, some longer than the lanes at once; one in three draws, some meet a stop token."""
    ids = TOKENIZER.encode("The quick brown fox jumps over the lazy dog. " * 20)
    return [
        GenerationRequest(
            prompt_ids=tuple(ids[number : number + 5 + 23 * number]),
            opens_think=False,
            sampling=replace(WARM, seed=number) if number % 3 == 0 else GREEDY,
            max_tokens=12 + number,
            stops=(),
            # Any id may end a generation: one in seven does so in the middle of some.
            stop_ids=tuple(range(number, TOKENIZER.id_count, 7)) if number % 2 else STOP_IDS,
        )
        for number in range(8)
    ]


Answer = tuple[str, FinishReason, int]


async def answers(bound: BoundArtifact, steps_ahead: int) -> tuple[list[Answer], int]:
    """What each request is answered, and how many rows were launched for it all."""
    told, _ended, totals = await serve_all(bound, replace(SCHEDULER, steps_ahead=steps_ahead), ENGINE)
    return told, totals.row_rounds


async def serve_all(
    bound: BoundArtifact,
    scheduler: SchedulerSettings,
    engine: EngineSettings,
    tokenizer: Tokenizer = TOKENIZER,
    asked: Sequence[GenerationRequest] = (),
) -> tuple[list[Answer], list[Finished], TotalsView]:
    """What each request is answered, and how it all went."""
    system = System(scheduler, Builder(bound, engine, tokenizer), tokenizer, EventLog(None), time.time)
    ended: dict[int, list[Reply]] = {}

    async def ask(number: int, request: GenerationRequest) -> None:
        ticket = await system.gateway.arrive()
        await ticket.submit(request)
        ended[number] = await collect(ticket.replies)
        await ticket.release()

    async def serve() -> None:
        assert await system.run(lambda: None, ready.set) == 0, system.last_words

    ready = anyio.Event()
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await ready.wait()
            async with anyio.create_task_group() as asking:
                for number, request in enumerate(asked or requests()):
                    asking.start_soon(ask, number, request)
            while system.machine.requests:
                await anyio.lowlevel.checkpoint()
            totals = system.machine.statistics().totals
            system.stop()
    replies = [ended[number] for number in sorted(ended)]
    ends = [end for reply in replies if isinstance(end := reply[-1], Finished)]
    return [answer(reply) for reply in replies], ends, totals


def answer(replies: list[Reply]) -> tuple[str, FinishReason, int]:
    end = replies[-1]
    assert not isinstance(end, Failed), end.error
    assert isinstance(end, Finished)
    # How a text is cut into deltas depends on how many tokens come at once.
    deltas = [delta for reply in replies if isinstance(reply, TextDelta) for delta in reply.deltas]
    text = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    return text, end.reason, end.usage.completion_tokens


async def test_answers_are_the_same_with_and_without_a_step_ahead(tmp_path: Path) -> None:
    path = tmp_path / "tiny.ninfer"
    build_tiny(path)
    with Artifact.open(path) as artifact:
        bound = bind(artifact)
        one_by_one, rows = await answers(bound, 0)
        ahead, rows_ahead = await answers(bound, 1)
    assert ahead == one_by_one
    assert {reason for _text, reason, _tokens in ahead} == {FinishReason.STOP_TOKEN, FinishReason.OUTPUT_LIMIT}
    assert rows_ahead > rows  # rows behind a stop token were launched, and dropped
