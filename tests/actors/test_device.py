"""The device gateway by itself: what is launched when, what waits for what, and in which order outcomes are told."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from ninfer.actors.device import DeviceGateway
from ninfer.errors import ActorStopped, DeviceFault

pytestmark = pytest.mark.asyncio

PATIENCE_S = 30


@dataclass
class Held:
    """A step that is done when the test says so."""

    name: str
    journal: list[str]
    error: Exception | None = None
    may_end: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> str:
        assert self.may_end.wait(PATIENCE_S), "the test never let the step end"
        if self.error is not None:
            raise self.error
        return self.name


@dataclass
class Bench:
    """A gateway, and a journal of what happened in which order."""

    gateway: DeviceGateway
    journal: list[str] = field(default_factory=list)
    threads: dict[str, str] = field(default_factory=dict)

    def launch(self, number: int, held: Held, *, refuse: Exception | None = None) -> None:
        def start() -> Held:
            self.journal.append(f"launch {held.name}")
            self.threads["launch"] = threading.current_thread().name
            if refuse is not None:
                raise refuse
            return held

        def failed(error: BaseException) -> None:
            self.journal.append(f"{held.name} failed: {error}")

        self.gateway.launch(number, start, lambda name: self.journal.append(f"{name} landed"), failed)

    def held(self, name: str, error: Exception | None = None) -> Held:
        return Held(name, self.journal, error)

    async def until(self, entry: str) -> None:
        while entry not in self.journal:
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    with anyio.fail_after(PATIENCE_S):
        async with DeviceGateway() as gateway, anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.deliver)
            yield Bench(gateway)
            tasks.cancel_scope.cancel()


async def test_a_launch_does_not_wait_for_the_step_before_it() -> None:
    async with bench() as b:
        first, second = b.held("first"), b.held("second")
        b.launch(1, first)
        b.launch(2, second)
        await b.until("launch second")
        assert b.journal == ["launch first", "launch second"]
        second.may_end.set()
        first.may_end.set()
        await b.until("second landed")
        assert b.journal[2:] == ["first landed", "second landed"]


async def test_steps_that_come_out_of_order_are_launched_in_order() -> None:
    async with bench() as b:
        steps = [b.held(f"step {number}") for number in range(1, 5)]
        for step in steps:
            step.may_end.set()
        for number in (2, 1, 4, 3):
            b.launch(number, steps[number - 1])
        await b.until("step 4 landed")
        assert [entry for entry in b.journal if "launch" in entry] == [f"launch step {n}" for n in range(1, 5)]
        assert [entry for entry in b.journal if "landed" in entry] == [f"step {n} landed" for n in range(1, 5)]


async def test_a_fault_and_a_refused_plan_land_in_their_turn() -> None:
    async with bench() as b:
        first, second, third = b.held("first", DeviceFault("nan")), b.held("second"), b.held("third")
        b.launch(1, first)
        b.launch(2, second, refuse=ValueError("no such lane"))
        b.launch(3, third)
        third.may_end.set()
        await b.until("launch third")
        assert not [entry for entry in b.journal if "failed" in entry]
        first.may_end.set()
        await b.until("third landed")
        assert b.journal[3:] == ["first failed: nan", "second failed: no such lane", "third landed"]


async def test_other_work_begins_when_everything_before_it_was_waited_for_and_before_what_follows() -> None:
    async with bench() as b:
        before, after = b.held("before"), b.held("after")
        after.may_end.set()
        b.launch(1, before)

        def reset() -> str:
            assert before.may_end.is_set()
            b.journal.append("reset")
            return threading.current_thread().name

        async def ask() -> None:
            assert await b.gateway.run(reset) == "ninfer-device"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await b.until("launch before")
            b.launch(2, after)
            await anyio.wait_all_tasks_blocked()
            assert b.journal == ["launch before"]
            before.may_end.set()
        await b.until("after landed")
        # The news of a step may be on its way to the loop still when the work after it begins.
        on_device = [entry for entry in b.journal if "landed" not in entry]
        assert on_device == ["launch before", "reset", "launch after"]


async def test_work_that_raises_tells_who_asked_for_it() -> None:
    async with bench() as b:

        def broken() -> None:
            raise DeviceFault("out of memory")

        with pytest.raises(DeviceFault, match="out of memory"):
            await b.gateway.run(broken)
        assert await b.gateway.run(lambda: 7) == 7


async def test_leaving_waits_for_what_the_device_runs_and_takes_nothing_more() -> None:
    ended: list[str] = []

    @dataclass
    class Last:
        may_end: threading.Event

        def wait(self) -> None:
            assert self.may_end.wait(PATIENCE_S)
            ended.append("last")

    last = Last(threading.Event())

    def nothing(_outcome: object) -> None:
        return None

    with anyio.fail_after(PATIENCE_S):
        async with DeviceGateway() as gateway:
            gateway.launch(1, lambda: last, nothing, nothing)
            last.may_end.set()
        assert ended == ["last"]
        with pytest.raises(ActorStopped):
            gateway.launch(2, lambda: last, nothing, nothing)
        with pytest.raises(ActorStopped):
            await gateway.run(lambda: None)
