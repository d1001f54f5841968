"""The actors together, around a fake engine: every path a request can take, and the life of the process."""

from __future__ import annotations

import io
import threading

import anyio
import pytest

from ninfer.actors.engine import MemoryCheck
from ninfer.actors.eventlog import EventLog
from ninfer.actors.gateway import Arrival, Gateway, SchedulerMessage, Ticket
from ninfer.actors.messages import (
    Admitted,
    DescribeSlots,
    Failed,
    Finished,
    Kept,
    PrefillProgress,
    SaveSlot,
    SlotMessage,
    SlotOutcome,
    SlotView,
)
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.actors.runtime.question import Question
from ninfer.config import SchedulerSettings
from ninfer.errors import (
    EngineFailure,
    IllegalTransition,
    ModelLoading,
    Overloaded,
    QueueTimeout,
    StartupError,
    Unavailable,
    Unsupported,
)
from ninfer.ledger import BlockNames
from ninfer.replay import replay
from ninfer.scheduler.events import Released
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.transitions import Lifecycle
from ninfer.types import FinishReason
from tests.support.engines import FakeBuilder, FakeEngine
from tests.support.system import GREEDY, Running, collect, content, echo, echoed, last, request_for, running

pytestmark = pytest.mark.asyncio


async def ask(state: Running, text: str, **options: object) -> list[object]:
    ticket = await state.system.gateway.arrive()
    await ticket.submit(request_for(text, **options))  # type: ignore[arg-type]
    replies = await collect(ticket.replies)
    await ticket.release()
    return replies  # type: ignore[return-value]


async def settle(state: Running) -> None:
    """Until nothing is left of any request."""
    while state.system.machine.requests:
        await anyio.lowlevel.checkpoint()
    state.system.machine.audit()


async def test_an_answer_comes_whole_and_in_order() -> None:
    async with running() as state:
        replies = await ask(state, "hello there")
        assert isinstance(replies[0], Admitted)
        assert content(replies) == echoed("hello there")
        end = last(replies)
        assert isinstance(end, Finished)
        assert end.reason is FinishReason.STOP_TOKEN
        assert end.usage.prompt_tokens == end.usage.completion_tokens - 1
        assert end.admitted_at <= end.first_token_at <= end.last_token_at
        await settle(state)
    assert state.status == 0
    assert state.listened == 1
    assert len(state.engine.threads) == 1
    assert threading.get_ident() not in state.engine.threads


async def test_many_streams_are_decoded_together_and_none_is_mixed_up() -> None:
    settings = SchedulerSettings(lanes=4, max_pending=64)
    texts = [f"stream {n} says {'x' * (n % 7)} {n * 7919}" for n in range(60)]
    answers: dict[str, list[object]] = {}

    async def one(text: str) -> None:
        answers[text] = await ask(state, text)

    async with running(settings) as state:
        async with anyio.create_task_group() as tasks:
            for text in texts:
                tasks.start_soon(one, text)
        await settle(state)
        assert max(state.engine.rows_seen) == 4
    assert {text: content(replies) for text, replies in answers.items()} == {text: echoed(text) for text in texts}


async def test_beyond_capacity_arrivals_are_refused_and_capacity_comes_back() -> None:
    async with running(SchedulerSettings(lanes=1, max_pending=2)) as state:
        tickets = [await state.system.gateway.arrive() for _ in range(3)]
        with pytest.raises(Overloaded) as refused:
            await state.system.gateway.arrive()
        assert refused.value.retry_after_s == 1
        await tickets[0].release()
        again = await state.system.gateway.arrive()
        for ticket in (*tickets, again):
            await ticket.release()
            await ticket.release()  # a second time changes nothing
        await settle(state)


async def test_a_request_that_waits_too_long_is_told_so() -> None:
    gate = threading.Event()
    engine = FakeEngine(echo)
    async with running(SchedulerSettings(lanes=1, pending_timeout_s=1.5), engine=engine) as state:
        engine.gate = gate
        first, waiting, late = [await state.system.gateway.arrive() for _ in range(3)]
        await first.submit(request_for("occupies the lane"))
        await waiting.submit(request_for("waits in the queue"))
        end = last(await collect(waiting.replies))
        assert isinstance(end, Failed)
        assert isinstance(end.error, QueueTimeout)
        with pytest.raises(QueueTimeout):
            await late.submit(request_for("was prepared too slowly"))
        gate.set()
        assert content(await collect(first.replies)) == echoed("occupies the lane")
        for ticket in (first, waiting, late):
            await ticket.release()
        await settle(state)


async def test_a_client_that_leaves_frees_its_lane_in_every_phase() -> None:
    gate = threading.Event()
    engine = FakeEngine(lambda prompt: [97] * 100_000)
    async with running(SchedulerSettings(lanes=1, max_context_tokens=100_000), engine=engine) as state:
        preparing = await state.system.gateway.arrive()
        await preparing.release()
        await settle(state)

        engine.gate = gate
        reading, queued = [await state.system.gateway.arrive() for _ in range(2)]
        await reading.submit(request_for("is being read"))
        await queued.submit(request_for("is queued"))
        await queued.release()
        await reading.release()
        gate.set()
        await settle(state)

        engine.gate = None
        drawing = await state.system.gateway.arrive()
        await drawing.submit(request_for("draws for ever", max_tokens=90_000))
        async for reply in drawing.replies:
            if not isinstance(reply, Admitted):
                break
        await drawing.release()
        await settle(state)
        assert content(await ask(state, "next", max_tokens=3)) == "aaa"


async def test_a_refused_preparation_gives_its_place_back() -> None:
    async with running(SchedulerSettings(lanes=1, max_pending=1)) as state:
        ticket = await state.system.gateway.arrive()
        await ticket.preparation_failed()
        await ticket.release()
        await settle(state)


async def test_the_text_ends_at_a_stop_string_even_across_tokens() -> None:
    async with running() as state:
        replies = await ask(state, "abc DEF ghi", stops=("FE",))
        answer = echoed("abc DEF ghi")
        assert content(replies) == answer[: answer.index("FE")]
        end = last(replies)
        assert isinstance(end, Finished)
        assert end.reason is FinishReason.STOP_STRING
        await settle(state)


async def test_limits_end_an_answer_with_their_own_reason() -> None:
    engine = FakeEngine(lambda prompt: [97] * 1000)
    async with running(SchedulerSettings(max_context_tokens=100), engine=engine) as state:
        for limit, reason, drawn in (
            (5, FinishReason.OUTPUT_LIMIT, 5),
            (0, FinishReason.OUTPUT_LIMIT, 0),
            (5000, FinishReason.CONTEXT_CAPACITY, 99),
        ):
            end = last(await ask(state, "z", max_tokens=limit))
            assert isinstance(end, Finished)
            assert (end.reason, end.usage.completion_tokens) == (reason, drawn)


async def test_progress_counts_up_to_the_whole_prompt() -> None:
    async with running(SchedulerSettings(prefill_chunk_tokens=128)) as state:
        request = request_for("x" * 500, progress=True)
        ticket = await state.system.gateway.arrive()
        await ticket.submit(request)
        replies = await collect(ticket.replies)
        await ticket.release()
        total = len(request.prompt_ids)
        progress = [reply for reply in replies if isinstance(reply, PrefillProgress)]
        assert [reply.processed for reply in progress] == [*range(0, total, 128), total]
        assert {reply.total for reply in progress} == {total}


async def test_a_fault_ends_running_requests_and_no_others() -> None:
    gate = threading.Event()
    engine = FakeEngine(echo)
    async with running(SchedulerSettings(lanes=1), engine=engine) as state:
        warm = engine.resets
        engine.gate = gate
        engine.fail_next = RuntimeError("the device fell over")
        running_one, queued = [await state.system.gateway.arrive() for _ in range(2)]
        await running_one.submit(request_for("is running"))
        await queued.submit(request_for("is queued"))
        gate.set()
        end = last(await collect(running_one.replies))
        assert isinstance(end, Failed)
        assert isinstance(end.error, EngineFailure)
        assert "fell over" not in str(end.error)
        assert content(await collect(queued.replies)) == echoed("is queued")
        assert engine.resets == warm + 1
        for ticket in (running_one, queued):
            await ticket.release()
        await settle(state)


async def test_an_engine_that_cannot_be_reset_ends_the_process() -> None:
    engine = FakeEngine(echo)
    async with running(SchedulerSettings(exit_on_failure=False), engine=engine) as state:
        engine.fail_next = RuntimeError("first")
        engine.fail_reset = RuntimeError("second")
        end = last(await ask(state, "is running"))
        assert isinstance(end, Failed)
        while state.system.gateway.lifecycle is not Lifecycle.FAILED:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(Unavailable):
            await state.system.gateway.arrive()


async def test_a_stop_while_the_engine_is_reset_ends_the_process() -> None:
    gate = threading.Event()
    engine = FakeEngine(echo)
    async with running(SchedulerSettings(drain_s=0.0), engine=engine) as state:
        engine.fail_next = RuntimeError("the device fell over")
        engine.reset_gate = gate
        end = last(await ask(state, "is running"))
        assert isinstance(end, Failed)
        state.system.stop()
        await settle(state)
        gate.set()
        assert await state.wait_status() == 0


async def test_nothing_listens_when_the_plan_does_not_fit() -> None:
    engine = FakeEngine(echo)
    builder = FakeBuilder(engine, required=3, available=2)
    async with running(engine=engine, builder=builder, serving=False) as state:
        assert await state.wait_status() == 1
        assert state.listened == 0


async def test_a_plan_that_no_longer_fits_after_loading_ends_the_start() -> None:
    engine = FakeEngine(echo)
    builder = FakeBuilder(engine)
    builder.late = MemoryCheck(3, 2, 10, "runtime reservation requires 3 bytes")
    async with running(engine=engine, builder=builder, serving=False) as state:
        assert await state.wait_status() == 1
        assert state.listened == 1


async def test_a_load_that_fails_ends_the_start() -> None:
    engine = FakeEngine(echo)
    builder = FakeBuilder(engine)
    builder.load_error = StartupError("the artifact is damaged")
    async with running(engine=engine, builder=builder, serving=False) as state:
        assert await state.wait_status() == 1


async def test_a_failed_warm_up_is_only_a_warning() -> None:
    engine = FakeEngine(echo)
    engine.fail_next = RuntimeError("cold")
    async with running(engine=engine) as state:
        assert content(await ask(state, "works")) == echoed("works")


async def test_before_it_serves_the_server_says_that_it_loads() -> None:
    gate = threading.Event()
    engine = FakeEngine(echo)
    engine.gate = gate
    async with running(engine=engine, serving=False) as state:
        with pytest.raises(ModelLoading) as refused:
            await state.system.gateway.arrive()
        assert (refused.value.http_status, refused.value.retry_after_s) == (503, 2)
        gate.set()
        await state.wait_serving()
        assert state.system.gateway.ready_at == 1_790_000_000.0


async def test_a_stop_lets_running_requests_finish_and_fails_the_queue() -> None:
    gate = threading.Event()
    engine = FakeEngine(echo)
    async with running(SchedulerSettings(lanes=1), engine=engine) as state:
        engine.gate = gate
        runs, queued = [await state.system.gateway.arrive() for _ in range(2)]
        await runs.submit(request_for("is running"))
        await queued.submit(request_for("is queued"))
        state.system.stop()
        end = last(await collect(queued.replies))
        assert isinstance(end, Failed)
        assert isinstance(end.error, Unavailable)
        with pytest.raises(Unavailable):
            await state.system.gateway.arrive()
        gate.set()
        assert content(await collect(runs.replies)) == echoed("is running")
        await runs.release()
        await queued.release()
        assert await state.wait_status() == 0


async def test_a_stop_does_not_wait_for_ever() -> None:
    engine = FakeEngine(lambda prompt: [97] * 100_000)
    settings = SchedulerSettings(lanes=1, max_context_tokens=100_000, drain_s=0.1)
    async with running(settings, engine=engine) as state:
        ticket = await state.system.gateway.arrive()
        await ticket.submit(request_for("draws for ever", max_tokens=90_000))
        state.system.stop()
        end = last(await collect(ticket.replies))
        assert isinstance(end, Failed)
        assert isinstance(end.error, Unavailable)
        await ticket.release()
        assert await state.wait_status() == 0


async def test_a_broken_rule_answers_everybody_and_ends_the_process() -> None:
    gate = threading.Event()
    engine = FakeEngine(echo)
    async with running(engine=engine) as state:
        engine.gate = gate
        ticket = await state.system.gateway.arrive()
        await ticket.submit(request_for("is running"))

        def broken(event: object, now: float) -> list[object]:
            raise IllegalTransition("a rule was broken")

        state.system.machine.handle = broken  # type: ignore[method-assign,assignment]
        gate.set()
        end = last(await collect(ticket.replies))
        assert isinstance(end, Failed)
        assert await state.wait_status() == 3
        await ticket.release()


async def test_an_arrival_whose_client_left_before_the_answer_gives_its_place_back() -> None:
    mailbox: Mailbox[SchedulerMessage] = Mailbox("scheduler", 8)
    statistics = Scheduler(SchedulerSettings()).statistics
    slots: Mailbox[Question[SlotMessage, SlotOutcome]] = Mailbox("slots", 1)
    ring: Mailbox[Question[DescribeSlots, tuple[SlotView, ...]]] = Mailbox("ring", 1)
    gateway = Gateway(mailbox, lambda: Lifecycle.SERVING, statistics, slots, ring, lambda _name: None, Kept)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gateway.arrive)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        (arrival,) = mailbox.take_all()
        assert isinstance(arrival, Arrival)
        arrival.accept(Ticket(1, 0.0, 30.0, mailbox, BlockNames(b"tests")))
    assert mailbox.drain() == [Released(1)]
    assert slots.drain() == ring.drain() == []


async def test_slots_answer_that_they_are_off() -> None:
    async with running() as state:
        with pytest.raises(Unsupported) as refused:
            await state.system.gateway.act_on_slot(SaveSlot(0, "session.bin", None))
        assert (refused.value.http_status, refused.value.code) == (501, "slot_persistence_disabled")
    with pytest.raises(Unavailable):
        await state.system.gateway.act_on_slot(SaveSlot(0, "session.bin", None))


async def test_the_log_of_a_run_replays_and_holds_tokens_only_if_asked() -> None:
    for content_logged in (False, True):
        file = io.BytesIO()
        async with running(SchedulerSettings(lanes=2), log=EventLog(file, content=content_logged)) as state:
            async with anyio.create_task_group() as tasks:
                for text in ("one", "two", "three"):
                    tasks.start_soon(ask, state, text)
            await settle(state)
        lines = file.getvalue().splitlines(keepends=True)
        result = replay(lines)
        assert (result.requests, result.cut_short) == (3, False)
        assert (b'"token_ids"' in file.getvalue()) is content_logged


async def test_statistics_are_a_picture_of_the_moment() -> None:
    async with running(SchedulerSettings(lanes=2)) as state:
        ticket = await state.system.gateway.arrive()
        statistics = state.system.gateway.statistics()
        assert (statistics.preparing, statistics.running) == (1, 0)
        assert [lane.state for lane in statistics.lanes] == ["EMPTY", "EMPTY"]
        await ticket.release()
        await ask(state, "hello", max_tokens=2)
        totals = state.system.gateway.statistics().totals
        assert (totals.admitted, totals.completed, totals.decode_tokens) == (1, 1, 1)
        assert GREEDY.temperature == 0.0


async def test_a_rule_broken_by_an_arrival_answers_the_one_who_arrived() -> None:
    async with running() as state:

        def broken(event: object, now: float) -> list[object]:
            raise IllegalTransition("a rule was broken")

        state.system.machine.handle = broken  # type: ignore[method-assign,assignment]
        with pytest.raises(Unavailable):
            await state.system.gateway.arrive()
        assert await state.wait_status() == 3
