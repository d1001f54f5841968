"""Slots through the actors: what becomes of a save when the device fails meanwhile."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from ninfer.actors.messages import Finished, RestoreSlot, SaveSlot
from ninfer.actors.slots import SlotFolder
from ninfer.config import SchedulerSettings
from ninfer.errors import DeviceFault, NinferError
from ninfer.ledger import PromptIdentity
from ninfer.scheduler.transitions import LaneState
from ninfer.snapshots.format import KV_FORMATS, SnapshotConfig
from ninfer.snapshots.reader import Limits
from tests.support.engines import FakeBuilder, FakeEngine
from tests.support.system import TOKENIZER, Running, collect, echo, last, request_for, running

pytestmark = pytest.mark.asyncio

CONFIG = SnapshotConfig("tiny", "tiny-1", "bf16", "0123456789abcdef" * 2, *KV_FORMATS["bf16"], 1,
                        FakeEngine.image_bytes, 0, 1, FakeEngine.page_bytes)  # fmt: skip
TWO = SchedulerSettings(lanes=2, images=8)


def folder(path: Path) -> SlotFolder:
    return SlotFolder(path, lambda _engine: CONFIG, Limits(8192, TOKENIZER.id_count, 0))


async def answered(state: Running, text: str, max_tokens: int = 200) -> Finished:
    ticket = await state.system.gateway.arrive()
    request = request_for(text, max_tokens=max_tokens)
    await ticket.submit(replace(request, identity=PromptIdentity.of(ticket.names, request.prompt_ids)))
    end = last(await collect(ticket.replies))
    await ticket.release()
    while state.system.machine.requests:  # a void row behind its last token may be in flight
        await anyio.lowlevel.checkpoint()
    assert isinstance(end, Finished)
    return end


async def test_a_saved_session_is_restored_and_gone_on_from(tmp_path: Path) -> None:
    async with running(TWO, slots=folder(tmp_path)) as state:
        gateway = state.system.gateway
        end = await answered(state, "a b c d " * 40)
        saved = await gateway.act_on_slot(SaveSlot(0, "a.bin", end.session_digest))
        restored = await gateway.act_on_slot(RestoreSlot(1, "a.bin"))
        assert saved.tokens == restored.tokens
        assert saved.file_bytes == restored.file_bytes
        assert saved.session_digest == restored.session_digest == end.session_digest


@pytest.mark.parametrize("when", ["before it is reset", "after it is reset"])
async def test_what_is_read_behind_a_failed_step_is_no_file(tmp_path: Path, when: str) -> None:
    engine = FakeEngine(echo)
    async with running(TWO, engine=engine, slots=folder(tmp_path)) as state:
        await answered(state, "a b c d " * 40)
        gate = engine.gate = threading.Event()
        if when == "before it is reset":
            engine.reset_gate = threading.Event()
        refusals: list[NinferError] = []

        async def save() -> None:
            with pytest.raises(NinferError) as refused:
                await state.system.gateway.act_on_slot(SaveSlot(0, "a.bin", None))
            refusals.append(refused.value)

        ticket = await state.system.gateway.arrive()
        await ticket.submit(request_for("x y z"))
        while not engine.in_flight:
            await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(save)
            while state.system.machine.lanes[0] is not LaneState.SAVING:
                await anyio.lowlevel.checkpoint()
            engine.fail_next = DeviceFault("a step of another lane")
            gate.set()
            await collect(ticket.replies)
            if engine.reset_gate is not None:
                engine.reset_gate.set()
        await ticket.release()
    assert [refusal.code for refusal in refusals] == ["slot_save_failed"]
    assert os.listdir(tmp_path) == []


async def test_three_sessions_that_take_turns_on_one_lane_lose_nothing(tmp_path: Path) -> None:
    settings = SchedulerSettings(lanes=1, images=4, auto_save=True)
    builder = FakeBuilder(FakeEngine(echo), pages=128)
    texts = [f"{word} " * 60 for word in ("alpha", "beta", "gamma")]
    async with running(settings, builder=builder, engine=builder.engine, slots=folder(tmp_path)) as state:
        gateway = state.system.gateway
        digests = []
        for number, text in enumerate(texts):
            end = await answered(state, text, 1)
            await gateway.act_on_slot(SaveSlot(0, f"{number}.bin", end.session_digest))
            grown = await answered(state, text + "and more " * 40, 1)  # the next one displaces it
            digests.append(grown.session_digest)
        await answered(state, "something else", 1)
        with anyio.fail_after(20):
            while (counts := gateway.statistics().kept).auto_saves + counts.auto_save_failures < 3:
                await anyio.lowlevel.checkpoint()
        assert counts.auto_save_failures == 0
        restored = [await gateway.act_on_slot(RestoreSlot(0, f"{number}.bin")) for number in range(3)]
    assert [outcome.session_digest for outcome in restored] == digests


async def test_a_file_that_cannot_be_written_back_is_counted_and_holds_nobody_up(tmp_path: Path) -> None:
    settings = SchedulerSettings(lanes=1, images=4, auto_save=True)
    async with running(settings, slots=folder(tmp_path)) as state:
        gateway = state.system.gateway
        await answered(state, "a b c d " * 40, 1)
        await gateway.act_on_slot(SaveSlot(0, "a.bin", None))
        await answered(state, "a b c d " * 60, 1)
        os.unlink(tmp_path / "a.bin")
        os.mkdir(tmp_path / "a.bin")
        await answered(state, "something else", 1)
        with anyio.fail_after(20):
            while not gateway.statistics().kept.auto_save_failures:
                await anyio.lowlevel.checkpoint()
    assert os.listdir(tmp_path) == ["a.bin"]
