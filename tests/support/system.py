"""A running system around a fake engine, for tests of the actors and of the HTTP side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from ninfer.actors.eventlog import EventLog
from ninfer.actors.messages import Failed, Finished, GenerationRequest, Reply, TextDelta
from ninfer.actors.slots import SlotFolder
from ninfer.actors.system import System
from ninfer.artifact.frontend import small_frontend
from ninfer.config import SchedulerSettings
from ninfer.scheduler.transitions import Lifecycle
from ninfer.speculation.copying import DEFAULT_MIN_MATCH
from ninfer.text.output import ContentDelta
from ninfer.text.tokenizer import Tokenizer
from ninfer.types import Sampling
from tests.support.engines import FakeBuilder, FakeEngine

GREEDY = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)


def small_tokenizer() -> Tokenizer:
    """The tokenizer of the tiny artifact."""
    files = small_frontend()
    return Tokenizer.from_resources(
        files["tokenizer.json"], files["tokenizer_config.json"], files["generation_config.json"]
    )


TOKENIZER = small_tokenizer()
STOP_IDS = tuple(sorted(TOKENIZER.stop_ids))


def echo(prompt: tuple[int, ...]) -> list[int]:
    """The model's words: the prompt, backwards."""
    return list(reversed(prompt))


def request_for(text: str, *, max_tokens: int = 1000, stops: tuple[str, ...] = (), progress: bool = False,
                stop_ids: tuple[int, ...] = STOP_IDS) -> GenerationRequest:  # fmt: skip
    """A prepared request whose prompt is this text."""
    return GenerationRequest(tuple(TOKENIZER.encode(text)), False, GREEDY, max_tokens, stops, stop_ids, progress)


def echoed(text: str) -> str:
    """What the echo engine answers to a prompt of this text."""
    return TOKENIZER.decode(reversed(TOKENIZER.encode(text)))


@dataclass
class Running:
    """A served system."""

    system: System
    engine: FakeEngine
    builder: FakeBuilder
    status: int | None = None
    listened: int = 0

    async def wait_serving(self) -> None:
        while self.system.gateway.lifecycle is not Lifecycle.SERVING:
            await anyio.lowlevel.checkpoint()

    async def wait_status(self) -> int:
        while self.status is None:
            await anyio.lowlevel.checkpoint()
        return self.status


@asynccontextmanager
async def running(
    settings: SchedulerSettings | None = None,
    *,
    engine: FakeEngine | None = None,
    builder: FakeBuilder | None = None,
    log: EventLog | None = None,
    slots: SlotFolder | None = None,
    disk: SlotFolder | None = None,
    serving: bool = True,
    copy_min_match: int = DEFAULT_MIN_MATCH,
) -> AsyncIterator[Running]:
    """A system that serves (unless told not to wait for it), stopped at the end."""
    engine = engine if engine is not None else FakeEngine(echo)
    builder = builder if builder is not None else FakeBuilder(engine)
    log = log if log is not None else EventLog(None)
    # What is reused has tests of its own: here every request is read anew.
    system = System(
        settings or SchedulerSettings(prefix_reuse=False),
        builder,
        TOKENIZER,
        log,
        unix_time=lambda: 1_790_000_000.0,
        slots=slots,
        disk=disk,
        copy_min_match=copy_min_match,
    )
    state = Running(system, engine, builder)

    def on_listen() -> None:
        state.listened += 1

    async def serve() -> None:
        state.status = await system.run(on_listen)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            if serving:
                await state.wait_serving()
            yield state
            if state.status is None:
                system.stop()


async def collect(replies: AsyncIterator[Reply]) -> list[Reply]:
    """Every reply up to the last."""
    return [reply async for reply in replies]


def content(replies: list[Reply]) -> str:
    """The answer that the replies join to."""
    deltas = [delta for reply in replies if isinstance(reply, TextDelta) for delta in reply.deltas]
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def last(replies: list[Reply]) -> Finished | Failed:
    """The one terminal reply."""
    ends = [reply for reply in replies if isinstance(reply, Finished | Failed)]
    assert len(ends) == 1
    assert replies[-1] is ends[0]
    return ends[0]
