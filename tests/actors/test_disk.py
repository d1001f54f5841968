"""The disk cache through the actors: real files, a fake engine that knows what its pages hold."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from ninfer.actors.messages import Finished
from ninfer.actors.slots import SlotFolder
from ninfer.config import SchedulerSettings
from ninfer.errors import DeviceFault
from ninfer.ledger import PromptIdentity
from ninfer.scheduler.statistics import KeptView
from ninfer.scheduler.transitions import LaneState
from ninfer.snapshots.format import KV_FORMATS, SnapshotConfig
from ninfer.snapshots.reader import Limits
from tests.support.engines import FakeBuilder, FakeEngine
from tests.support.system import TOKENIZER, Running, collect, echo, last, request_for, running

pytestmark = pytest.mark.asyncio

SETTINGS = SchedulerSettings(
    lanes=1, images=4, disk_bytes=10_000_000, disk_least_tokens=64, disk_name="kv-00000001", max_context_tokens=512
)
FIRST, SECOND = "alpha " * 60, "gamma " * 60


def folder(path: Path, model: str = "a") -> SlotFolder:
    dtype, group, flags = KV_FORMATS["fp32"]
    config = SnapshotConfig(
        "t", "m", "w", model * 32, dtype, group, flags, 1, 8, FakeEngine.image_bytes - 8, 2, FakeEngine.page_bytes
    )
    return SlotFolder(path, lambda _engine: config, Limits(512, TOKENIZER.id_count, 64))


async def answered(state: Running, text: str) -> Finished:
    request = request_for(text, max_tokens=1)
    ticket = await state.system.gateway.arrive()
    await ticket.submit(replace(request, identity=PromptIdentity.of(ticket.names, request.prompt_ids)))
    end = last(await collect(ticket.replies))
    await ticket.release()
    assert isinstance(end, Finished)
    return end


def served(
    path: Path, settings: SchedulerSettings = SETTINGS, *, model: str = "a"
) -> AbstractAsyncContextManager[Running]:
    """Too few pages for two of the conversations."""
    engine = FakeEngine(echo)
    return running(settings, engine=engine, builder=FakeBuilder(engine, pages=8), disk=folder(path, model))


def kept(state: Running) -> KeptView:
    return state.system.gateway.statistics().kept


async def until(state: Running, **counts: int) -> None:
    with anyio.fail_after(20):
        while any(getattr(kept(state), name) != count for name, count in counts.items()):
            await anyio.lowlevel.checkpoint()


async def test_sessions_that_take_turns_come_back_from_disk(tmp_path: Path) -> None:
    async with served(tmp_path) as state:
        for text in (FIRST, SECOND):
            await answered(state, text)
        end = await answered(state, FIRST + "and more " * 10)
        assert end.way == "restore_disk"
        assert end.usage.cached_tokens == 256
        end = await answered(state, SECOND + "and more")
        assert end.way == "restore_disk"
        assert kept(state).disk_hits == 2
        assert (kept(state).disk_save_failures, kept(state).disk_read_failures) == (0, 0)
        await until(state, disk_saves=3)
        with anyio.fail_after(20):  # the shorter file of the conversation goes
            while sorted(os.listdir(tmp_path)) != [f"kv-00000001-{number}" for number in (2, 3)]:
                await anyio.lowlevel.checkpoint()


async def test_another_process_goes_on_with_the_files(tmp_path: Path) -> None:
    async with served(tmp_path) as state:
        await answered(state, FIRST)
        await answered(state, SECOND)
        await until(state, disk_saves=1)
    (tmp_path / "kv-0000000f-1").write_bytes(b"not a session")
    (tmp_path / "notes.txt").write_text("of somebody else")
    async with served(tmp_path, replace(SETTINGS, disk_name="kv-00000002")) as state:
        await until(state, disk_files=1)
        end = await answered(state, FIRST + "and more")
        assert end.way == "restore_disk"
        assert sorted(os.listdir(tmp_path)) == ["kv-00000001-1", "notes.txt"]


async def test_files_of_another_model_are_removed(tmp_path: Path) -> None:
    async with served(tmp_path) as state:
        await answered(state, FIRST)
        await answered(state, SECOND)
        await until(state, disk_saves=1)
    async with served(tmp_path, model="b") as state:
        with anyio.fail_after(20):
            while os.listdir(tmp_path):
                await anyio.lowlevel.checkpoint()
        assert (await answered(state, FIRST)).way == "full_reset"


@pytest.mark.parametrize("what", ["gone", "damaged", "exchanged"])
async def test_a_file_that_is_not_right_is_a_miss(tmp_path: Path, what: str) -> None:
    async with served(tmp_path) as state:
        await answered(state, FIRST)
        await answered(state, SECOND)
        await until(state, disk_saves=1)
        file = tmp_path / "kv-00000001-1"
        if what == "damaged":
            data = bytearray(file.read_bytes())
            data[-5000] ^= 1
            file.write_bytes(data)
        else:
            file.unlink()
        if what == "exchanged":
            await answered(state, FIRST[: len(FIRST) // 2] + SECOND)
            await until(state, disk_saves=2)
            os.rename(tmp_path / "kv-00000001-2", file)
        end = await answered(state, FIRST + "and more")
        assert end.way == "full_reset"
        assert kept(state).disk_read_failures == 1
        with anyio.fail_after(20):
            while file.exists():
                await anyio.lowlevel.checkpoint()


async def test_a_disk_that_cannot_be_written_costs_the_session_only(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.mkdir()
    async with served(path) as state:
        path.rmdir()
        for _ in range(2):
            await answered(state, FIRST)
            await answered(state, SECOND)
        await until(state, disk_save_failures=3)
        path.mkdir()
        await answered(state, FIRST)
        await until(state, disk_saves=1)


async def test_the_disk_keeps_to_its_size(tmp_path: Path) -> None:
    async with served(tmp_path, replace(SETTINGS, disk_bytes=30_000)) as state:
        for word in ("one", "two", "three", "four", "five"):
            await answered(state, f"{word} " * 70)
        with anyio.fail_after(20):
            while kept(state).disk_saves < 4 or len(os.listdir(tmp_path)) != kept(state).disk_files:
                await anyio.lowlevel.checkpoint()
        assert 0 < sum(entry.stat().st_size for entry in os.scandir(tmp_path)) == kept(state).disk_used <= 30_000


async def test_a_device_that_fails_makes_no_file(tmp_path: Path) -> None:
    async with served(tmp_path, replace(SETTINGS, lanes=2)) as state:
        await answered(state, FIRST)
        gate = state.engine.gate = threading.Event()
        tickets = [await state.system.gateway.arrive() for _ in range(2)]
        await tickets[0].submit(request_for("x y z", max_tokens=1))
        while not state.engine.in_flight:
            await anyio.lowlevel.checkpoint()
        await tickets[1].submit(request_for("w", max_tokens=1))  # displaces the session
        while LaneState.SAVING not in state.system.machine.lanes:
            await anyio.lowlevel.checkpoint()
        state.engine.fail_next = DeviceFault("a step of another lane")
        gate.set()
        for ticket in tickets:
            await collect(ticket.replies)
            await ticket.release()
        await until(state, disk_save_failures=1)
    assert os.listdir(tmp_path) == []
