"""A step ahead, with all actors: the device has the next round before the text of the last one is touched."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import anyio
import pytest

from ninfer.actors.messages import Draw, Failed, Finished, GenerationRequest, LaneMessage
from ninfer.config import SchedulerSettings
from ninfer.errors import EngineFailure
from ninfer.step import DecodeResult, DecodeRound, PrefillChunk
from ninfer.types import FinishReason
from tests.support.engines import FakeEngine, FakePending
from tests.support.system import TOKENIZER, Running, collect, content, echo, last, request_for, running

pytestmark = pytest.mark.asyncio

PATIENCE_S = 30


async def ask(state: Running, request: GenerationRequest) -> list[object]:
    ticket = await state.system.gateway.arrive()
    await ticket.submit(request)
    replies = await collect(ticket.replies)
    await ticket.release()
    return replies  # type: ignore[return-value]


async def settle(state: Running) -> None:
    while state.system.machine.requests or state.system.machine.flight.steps:
        await anyio.lowlevel.checkpoint()
    state.system.machine.audit()


class Overlapped(FakeEngine):
    """Round `n` is not done before round ``n + 1`` was launched, up to the round that is the last.

    journal   what happened, as (what, number of the round)
    """

    def __init__(self, rounds: int) -> None:
        super().__init__(lambda _prompt: [97] * (rounds + 1))
        self.rounds = rounds
        self.journal: list[tuple[str, int]] = []
        self.launched = threading.Condition()
        self.count = 0

    def launch(self, plan: PrefillChunk | DecodeRound) -> object:  # type: ignore[override]
        if isinstance(plan, PrefillChunk) or self.resets == 0:  # the warm-up waits for each of its rounds
            return super().launch(plan)
        with self.launched:
            self.count += 1
            self.journal.append(("launched", self.count))
            self.launched.notify_all()
        return WaitsForTheNext(self, super().launch(plan), self.count)


@dataclass
class WaitsForTheNext:
    engine: Overlapped
    pending: FakePending[DecodeResult]
    number: int

    def wait(self) -> DecodeResult:
        engine = self.engine
        behind = min(self.number + 1, engine.rounds)
        with engine.launched:
            assert engine.launched.wait_for(lambda: engine.count >= behind, PATIENCE_S), "no round behind this one"
        engine.journal.append(("done", self.number))
        return self.pending.wait()


async def test_the_next_round_is_launched_before_the_lanes_get_the_tokens_of_the_last() -> None:
    rounds = 20
    engine = Overlapped(rounds)
    async with running(engine=engine) as state:
        lane = state.system.lanes[0]
        handle = lane.handle
        draws = 0

        def watched(message: LaneMessage) -> None:
            nonlocal draws
            if isinstance(message, Draw):
                engine.journal.append(("drawn", draws))  # that of the prefill is number 0
                draws += 1
            handle(message)

        lane.handle = watched  # type: ignore[method-assign]
        replies = await ask(state, request_for("go", max_tokens=rounds + 1))
        assert content(replies) == "a" * (rounds + 1)
        await settle(state)
    for number in range(1, rounds):
        launched, drawn = engine.journal.index(("launched", number + 1)), engine.journal.index(("drawn", number))
        assert launched < engine.journal.index(("done", number)) < drawn
    assert engine.most_in_flight == 2


@pytest.mark.parametrize("steps_ahead", [0, 1])
async def test_as_many_steps_are_in_flight_as_are_asked_for(steps_ahead: int) -> None:
    gate = threading.Event()
    engine = FakeEngine(echo)
    async with running(SchedulerSettings(prefill_chunk_tokens=64, steps_ahead=steps_ahead), engine=engine) as state:
        engine.gate = gate
        ticket = await state.system.gateway.arrive()
        await ticket.submit(request_for("x" * 500))
        while engine.in_flight <= steps_ahead:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert len(state.system.machine.flight.steps) == 1 + steps_ahead
        gate.set()
        assert isinstance(last(await collect(ticket.replies)), Finished)
        await ticket.release()
        await settle(state)
        assert engine.most_in_flight == 1 + steps_ahead


class FailsAt(FakeEngine):
    """The step with this number, counted from the first after the warm-up, fails; `ended` are the requests' ends."""

    def __init__(self, number: int) -> None:
        super().__init__(echo)
        self.number = number
        self.waited = 0

    def done(self) -> None:
        super().done()
        if self.resets == 1:
            self.waited += 1
            if self.waited == self.number:
                raise RuntimeError("the device fell over")


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
async def test_whichever_step_fails_each_request_ends_once_and_the_queue_goes_on(number: int) -> None:
    engine = FailsAt(number)
    async with running(SchedulerSettings(lanes=2, prefill_chunk_tokens=64), engine=engine) as state:
        ends: list[Finished | Failed] = []

        async def one(text: str) -> None:
            ends.append(last(await ask(state, request_for(text))))

        async with anyio.create_task_group() as tasks:
            for text in ("x" * 200, "short one", "queued behind", "and one more"):
                tasks.start_soon(one, text)
        await settle(state)
        failed = [end for end in ends if isinstance(end, Failed)]
        assert len(ends) == 4
        assert 1 <= len(failed) <= 2
        assert all(isinstance(end.error, EngineFailure) for end in failed)
        assert engine.resets == 2


async def test_a_stop_string_drops_what_the_step_ahead_draws() -> None:
    engine = FakeEngine(lambda _prompt: TOKENIZER.encode("abc STOP and so on and on"))
    async with running(SchedulerSettings(lanes=1), engine=engine) as state:
        for _ in range(3):
            replies = await ask(state, request_for("go", stops=("STOP",)))
            assert content(replies) == "abc "
            end = last(replies)
            assert isinstance(end, Finished)
            assert end.reason is FinishReason.STOP_STRING
        await settle(state)


async def test_an_exit_is_said_once() -> None:
    async with running() as state:
        state.system.exit(0, "")
        state.system.exit(3, "a rule was broken in what was still on its way")
        assert await state.wait_status() == 0
        assert state.system.last_words == ""


async def test_news_of_a_step_for_lanes_that_have_stopped_is_no_fault() -> None:
    gate = threading.Event()
    engine = FakeEngine(lambda _prompt: [97] * 100_000)
    async with running(SchedulerSettings(max_context_tokens=100_000), engine=engine) as state:
        engine.gate = gate
        ticket = await state.system.gateway.arrive()
        await ticket.submit(request_for("is running", max_tokens=90_000))
        while not engine.in_flight:
            await anyio.lowlevel.checkpoint()
        for lane in state.system.lanes:
            lane.stop()
        gate.set()
        while state.system.machine.requests[ticket.request_id].drawn == 0:
            await anyio.lowlevel.checkpoint()
        state.system.exit(0, "")
        assert await state.wait_status() == 0
        await ticket.release()
