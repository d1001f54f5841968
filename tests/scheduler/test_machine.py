"""Single decisions of the machine with one step in flight, each with its exact commands; `test_ahead` has two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.transitions import LIFECYCLE, LaneState, Lifecycle, LifeSignal, RequestState
from ninfer.step import PageMapping


def serving(
    pages: int = 128,
    *,
    folds_late: bool = False,
    parts: tuple[int, ...] = (1,),
    appends: bool = False,
    **settings: object,
) -> Scheduler:
    machine = Scheduler(SchedulerSettings(**{"steps_ahead": 0, "prefix_reuse": False, **settings}))  # type: ignore[arg-type]
    machine.handle(ev.PlanMade(1, 2, ""), 0.0)
    machine.handle(ev.ModelLoaded(1, 2, pages, "", folds_late, parts, appends), 0.0)
    assert machine.handle(ev.WarmedUp(), 0.0) == [cmd.AnnounceReady()]
    return machine


def oldest(machine: Scheduler) -> int:
    """The number of the step that lands next."""
    return machine.flight.steps[0].number


def submit(machine: Scheduler, prompt: int, limit: int, now: float = 0.0) -> list[cmd.Command]:
    accepted = machine.handle(ev.Arrived(1), now)
    assert isinstance(accepted[0], cmd.Accept)
    return machine.handle(ev.Prepared(accepted[0].request_id, prompt, limit), now)


def test_one_request_from_arrival_to_the_end() -> None:
    machine = serving()
    assert machine.handle(ev.Arrived(9), 1.0) == [cmd.Accept(9, 1, 31.0), cmd.WakeAt(31.0)]
    assert machine.handle(ev.Prepared(1, 70, 3), 2.0) == [
        cmd.Admit(1, 0, 0),
        cmd.StartChunk(1, 1, 0, 0, 70, PageMapping(0, (0, 1)), True),
    ]
    assert machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 3.0) == [
        cmd.StartRound(2, (cmd.RowStart(1, 0, 70, PageMapping(2, ())),))
    ]
    assert machine.handle(ev.RoundLanded(2, (ev.RowLanded(1, 1, False),), 0.1), 4.0) == [
        cmd.StartRound(3, (cmd.RowStart(1, 0, 71, PageMapping(2, ())),))
    ]
    assert machine.handle(ev.RoundLanded(3, (ev.RowLanded(1, 1, False),), 0.1), 5.0) == [
        cmd.Finish(1, 0, "output_limit")
    ]
    assert machine.handle(ev.Released(1), 6.0) == []
    assert not machine.requests
    assert machine.handle(ev.Released(1), 7.0) == []


def test_a_smaller_request_may_pass_a_head_that_lacks_pages_but_only_so_often() -> None:
    machine = serving(pages=16, lanes=8, max_pending=64, max_context_tokens=1024)
    submit(machine, 700, 100)  # 13 pages, three are left
    assert submit(machine, 500, 100) == []  # the head: ten pages
    passed = 0
    for _ in range(20):
        submit(machine, 1, 1)
        newest = machine.requests[machine._next_request - 1]
        if newest.state is RequestState.READING:
            passed += 1
            assert machine.handle(ev.Released(newest.id), 0.0) == [cmd.Finish(newest.id, None, "cancelled")]
    assert passed == 8


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (10, [(2, 0, 10), (1, 64, 128), (1, 128, 130)]),  # a short one is read in between
        (33, [(2, 0, 33), (1, 64, 128), (1, 128, 130)]),  # half of the 66 that are left, and no token more
        (34, [(1, 64, 128), (1, 128, 130), (2, 0, 34)]),
    ],
)
def test_a_prompt_is_set_aside_for_one_with_half_as_much_to_read(
    second: int, expected: list[tuple[int, int, int]]
) -> None:
    machine = serving(lanes=2, prefill_chunk_tokens=64)
    submit(machine, 130, 0)
    submit(machine, second, 0)
    order = []
    event: ev.Event = ev.ChunkLanded(1, 0, False, 0.1)
    for step in range(2, 5):
        chunk = next(c for c in machine.handle(event, 0.0) if isinstance(c, cmd.StartChunk))
        order.append((chunk.request_id, chunk.begin, chunk.end))
        event = ev.ChunkLanded(step, 0, False, 0.1)
    assert order == expected


def test_arrivals_before_and_after_service_are_refused() -> None:
    machine = Scheduler(SchedulerSettings())
    assert machine.handle(ev.Arrived(1), 0.0) == [cmd.Refuse(1, "service_unavailable")]
    machine = serving(lanes=1, max_pending=1)
    machine.handle(ev.Arrived(1), 0.0)
    machine.handle(ev.Arrived(2), 0.0)
    assert machine.handle(ev.Arrived(3), 0.0) == [cmd.Refuse(3, "server_overloaded")]
    machine.handle(ev.StopRequested(), 0.0)
    assert machine.handle(ev.Arrived(4), 0.0) == [cmd.Refuse(4, "service_unavailable")]


def test_what_breaks_a_rule_raises() -> None:
    machine = serving()
    with pytest.raises(IllegalTransition, match="no request 7"):
        machine.handle(ev.Released(7), 0.0)
    with pytest.raises(IllegalTransition, match="step 4 landed"):
        machine.handle(ev.ChunkLanded(4, 0, False, 0.0), 0.0)
    with pytest.raises(IllegalTransition, match="WARMED while SERVING"):
        machine.handle(ev.WarmedUp(), 0.0)
    machine.handle(ev.Arrived(1), 0.0)
    with pytest.raises(IllegalTransition, match="prepared with 9000 tokens"):
        machine.handle(ev.Prepared(1, 9000, 1), 0.0)
    machine.handle(ev.Prepared(1, 5, 1), 0.0)
    with pytest.raises(IllegalTransition, match="nothing was drawn"):
        machine.handle(ev.ChunkLanded(1, 0, False, 0.0), 0.0)


def test_a_round_must_land_with_its_own_rows() -> None:
    machine = serving()
    submit(machine, 5, 5)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.0), 0.0)
    with pytest.raises(IllegalTransition, match="other rows"):
        machine.handle(ev.RoundLanded(2, (ev.RowLanded(2, 1, False),), 0.0), 0.0)


def test_a_pool_smaller_than_one_sequence_is_a_fault_of_ours() -> None:
    machine = Scheduler(SchedulerSettings(max_context_tokens=8192))
    machine.handle(ev.PlanMade(1, 2, ""), 0.0)
    with pytest.raises(IllegalTransition, match="127 pages"):
        machine.handle(ev.ModelLoaded(1, 2, 127, ""), 0.0)


@pytest.mark.parametrize("when", ["planning", "loading", "warming"])
def test_a_stop_before_service_ends_the_process_at_once(when: str) -> None:
    machine = Scheduler(SchedulerSettings())
    if when != "planning":
        machine.handle(ev.PlanMade(1, 2, ""), 0.0)
    if when == "warming":
        machine.handle(ev.ModelLoaded(1, 2, 128, ""), 0.0)
    assert machine.handle(ev.StopRequested(), 0.0) == [cmd.Exit(0, "")]
    assert machine.handle(ev.StopRequested(), 0.0) == []
    late: ev.Event = ev.WarmedUp() if when == "warming" else ev.ModelLoaded(1, 2, 128, "")
    if when != "planning":
        assert machine.handle(late, 0.0) == []
        assert machine.handle(ev.StartFailed("late"), 0.0) == []


def test_three_faults_in_a_row_end_the_process_and_a_completed_request_between_saves_it() -> None:
    for between, expected in ((False, Lifecycle.FAILED), (True, Lifecycle.SERVING)):
        machine = serving()
        for fault in range(3):
            now = 10.0 * fault
            submit(machine, 5, 1, now)
            machine.handle(ev.StepFailed(oldest(machine), "fault"), now)
            if machine.lifecycle is Lifecycle.SERVING:
                machine.handle(ev.EngineReset(), now)
            if between:
                submit(machine, 5, 1, now)
                machine.handle(ev.ChunkLanded(oldest(machine), 1, False, 0.0), now)
        assert machine.lifecycle is expected


def test_faults_far_apart_do_not_add_up() -> None:
    machine = serving()
    for fault in range(5):
        now = 31.0 * fault
        submit(machine, 5, 1, now)
        machine.handle(ev.StepFailed(oldest(machine), "fault"), now)
        machine.handle(ev.EngineReset(), now)
    assert machine.lifecycle is Lifecycle.SERVING
    assert machine.statistics().totals.engine_recoveries == 5


def test_the_audit_finds_what_belongs_to_nobody() -> None:
    machine = serving()
    submit(machine, 5, 5)
    machine.audit()
    request = machine.requests.pop(1)
    with pytest.raises(IllegalTransition, match="a lane belongs to nobody"):
        machine.audit()
    machine.lanes[0] = LaneState.EMPTY
    with pytest.raises(IllegalTransition, match="a page belongs to nobody"):
        machine.audit()
    machine.pages.release(1)
    with pytest.raises(IllegalTransition, match="for a request that is gone"):
        machine.audit()
    machine.requests[1] = request
    machine.lanes[0] = LaneState.PREFILLING
    machine.pages.reserve(1, 1)
    machine.audit()
    step = machine.flight.steps.pop()
    with pytest.raises(IllegalTransition, match="READING_IN_STEP and in 0 steps"):
        machine.audit()
    request.state = RequestState.READING
    with pytest.raises(IllegalTransition, match="PREFILL_CHUNK with 0 steps"):
        machine.audit()
    request.state = RequestState.READING_IN_STEP
    machine.flight.steps.append(replace(step, end=0))
    with pytest.raises(IllegalTransition, match="PREFILL_CHUNK with 1 steps"):
        machine.audit()
    machine.lanes[0] = LaneState.EMPTY
    machine.pages.release(1)
    request.lane = None
    with pytest.raises(IllegalTransition, match="with lane None"):
        machine.audit()


def test_news_of_a_request_that_is_gone_changes_nothing() -> None:
    machine = serving()
    machine.handle(ev.Arrived(1), 0.0)
    machine.handle(ev.Released(1), 0.0)
    for late in (ev.Prepared(1, 5, 5), ev.PreparationFailed(1), ev.StopStringFound(1, 1), ev.Released(1)):
        assert machine.handle(late, 1.0) == []


def test_a_drain_waits_for_last_words_and_then_no_longer() -> None:
    machine = serving(drain_s=1.0)
    submit(machine, 5, 500)
    machine.handle(ev.StopRequested(), 10.0)
    assert cmd.Fail(1, 0, "service_unavailable") in machine.handle(ev.Tick(), 11.0)
    assert machine.handle(ev.Tick(), 12.0) == [cmd.WakeAt(13.0)]
    assert machine.handle(ev.Tick(), 13.0) == [cmd.Exit(0, "")]


def test_a_stop_after_the_latch_ends_the_process_without_waiting() -> None:
    machine = serving()
    submit(machine, 5, 5)
    machine.handle(ev.StepFailed(1, "fault"), 1.0)
    machine.handle(ev.EngineLost("lost"), 1.0)
    assert machine.handle(ev.StopRequested(), 2.0) == [cmd.Exit(0, "")]
    assert machine.handle(ev.Tick(), 60.0) == []


def test_an_engine_that_is_lost_ends_the_process_with_its_own_status() -> None:
    machine = serving()
    submit(machine, 5, 5)
    machine.handle(ev.StepFailed(1, "fault"), 1.0)
    assert cmd.WakeAt(6.0) in machine.handle(ev.EngineLost("lost"), 1.0)
    assert machine.handle(ev.Tick(), 6.0) == [cmd.Exit(3, "lost")]


def test_a_plan_that_does_not_fit_ends_the_start_with_its_own_message() -> None:
    machine = Scheduler(SchedulerSettings())
    assert machine.handle(ev.PlanMade(3, 2, "too large"), 0.0) == [cmd.Exit(1, "too large")]
    machine = Scheduler(SchedulerSettings())
    assert machine.handle(ev.StartFailed("damaged"), 0.0) == [cmd.Exit(1, "damaged")]


def test_tables_can_be_asked() -> None:
    assert (Lifecycle.PLANNING, LifeSignal.FITS) in LIFECYCLE
    assert (Lifecycle.STOPPED, LifeSignal.FITS) not in LIFECYCLE


def test_an_engine_lost_while_draining_ends_the_process_even_if_it_should_stay() -> None:
    for stop in (False, True):
        machine = serving(exit_on_failure=False)
        submit(machine, 5, 5)
        if stop:
            machine.handle(ev.StopRequested(), 0.5)
        machine.handle(ev.StepFailed(1, "fault"), 1.0)
        machine.handle(ev.EngineLost("lost"), 1.0)
        assert machine.handle(ev.Tick(), 100.0) == ([cmd.Exit(3, "lost")] if stop else [])


@pytest.mark.parametrize("drawn", [0, 2])
def test_an_answer_ends_at_a_token_that_it_has(drawn: int) -> None:
    machine = serving()
    submit(machine, 5, 9, 0.0)
    machine.handle(ev.ChunkLanded(oldest(machine), 1, False, 0.0), 0.0)
    with pytest.raises(IllegalTransition, match=f"request 1 stopped at token {drawn} of 1"):
        machine.handle(ev.StopStringFound(1, drawn), 0.0)


def test_an_answer_that_ends_at_a_stop_string_is_completed_too() -> None:
    machine = serving()
    for fault in range(3):
        now = 10.0 * fault
        submit(machine, 5, 9, now)
        machine.handle(ev.StepFailed(oldest(machine), "fault"), now)
        machine.handle(ev.EngineReset(), now)
        submit(machine, 5, 9, now)
        request_id = machine._next_request - 1
        machine.handle(ev.ChunkLanded(oldest(machine), 1, False, 0.0), now)
        assert machine.handle(ev.StopStringFound(request_id, 1), now) == [cmd.Finish(request_id, 0, "stop_string")]
        assert machine.handle(ev.StopStringFound(request_id, 1), now) == []
        machine.handle(ev.RoundLanded(oldest(machine), (ev.RowLanded(request_id, 1, False),), 0.0), now)
    assert machine.lifecycle is Lifecycle.SERVING
    assert machine.statistics().totals.completed == 3
