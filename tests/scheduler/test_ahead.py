"""Decisions with a step ahead: what is launched behind a step that has not landed, and what becomes of it."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.transitions import DeviceState, LaneState, Lifecycle, RequestState
from ninfer.step import PageMapping
from tests.scheduler.test_machine import serving, submit

NOTHING_NEW = PageMapping(1, ())


def ahead(**settings: object) -> Scheduler:
    return serving(**{"steps_ahead": 1, **settings})  # type: ignore[arg-type]


def chunk_landed(machine: Scheduler, step: int, *, drawn: int = 1, stopped: bool = False) -> list[cmd.Command]:
    return machine.handle(ev.ChunkLanded(step, drawn, stopped, 0.01), 0.0)


def round_landed(machine: Scheduler, step: int, *request_ids: int, stopped: int = 0) -> list[cmd.Command]:
    rows = tuple(ev.RowLanded(request_id, 1, request_id == stopped) for request_id in request_ids)
    return machine.handle(ev.RoundLanded(step, rows, 0.001), 0.0)


def a_round(step: int, *rows: tuple[int, int, int]) -> cmd.StartRound:
    """A round whose rows are (request, lane, position) and need no new page."""
    return cmd.StartRound(step, tuple(cmd.RowStart(*row, NOTHING_NEW) for row in rows))


def drawing(limit: int, **settings: object) -> Scheduler:
    """A request of five prompt tokens that has drawn its first, with its rounds 2 and 3 in flight."""
    machine = ahead(**settings)
    submit(machine, 5, limit)
    chunk_landed(machine, 1)
    return machine


def state(machine: Scheduler, request_id: int = 1) -> RequestState:
    return machine.requests[request_id].state


def test_two_rounds_are_in_flight_up_to_the_limit_and_none_beyond() -> None:
    machine = ahead()
    submit(machine, 5, 4)
    assert chunk_landed(machine, 1) == [a_round(2, (1, 0, 5)), a_round(3, (1, 0, 6))]
    assert state(machine) is RequestState.GENERATING_AHEAD
    assert machine.device is DeviceState.ROUND_THEN_ROUND
    assert round_landed(machine, 2, 1) == [a_round(4, (1, 0, 7))]
    assert round_landed(machine, 3, 1) == []  # the fourth token is on its way
    assert round_landed(machine, 4, 1) == [cmd.Finish(1, 0, "output_limit")]
    assert machine.device is DeviceState.IDLE
    assert machine.statistics().totals.decode_tokens == 3
    machine.audit()


def test_pages_are_mapped_ahead_out_of_what_was_promised() -> None:
    machine = ahead()
    submit(machine, 62, 4)
    first, second = chunk_landed(machine, 1)
    assert isinstance(first, cmd.StartRound)
    assert isinstance(second, cmd.StartRound)
    assert first.rows[0].mapping == PageMapping(1, ())
    assert second.rows[0].mapping == PageMapping(1, ())
    (third,) = round_landed(machine, 2, 1)
    assert third == cmd.StartRound(4, (cmd.RowStart(1, 0, 64, PageMapping(1, (1,))),))
    machine.audit()


def test_without_a_step_ahead_there_is_one_step_at_a_time() -> None:
    machine = serving(steps_ahead=0)
    submit(machine, 5, 4)
    assert chunk_landed(machine, 1) == [a_round(2, (1, 0, 5))]
    assert round_landed(machine, 2, 1) == [a_round(3, (1, 0, 6))]


def test_a_stop_token_makes_the_row_behind_it_void() -> None:
    machine = drawing(limit=9)
    assert round_landed(machine, 2, 1, stopped=1) == [cmd.Finish(1, 0, "stop_token")]
    assert state(machine) is RequestState.LEAVING
    assert machine.lanes == [LaneState.VACATING]
    assert machine.pages.available < machine.pages.capacity
    machine.audit()
    assert round_landed(machine, 3, 1, stopped=1) == []
    assert state(machine) is RequestState.REPLYING
    assert machine.lanes == [LaneState.EMPTY]
    assert machine.pages.available == machine.pages.capacity
    totals = machine.statistics().totals
    assert (totals.completed, totals.decode_tokens, totals.row_rounds) == (1, 1, 2)
    machine.audit()


def test_the_next_request_gets_the_lane_when_the_void_row_has_landed() -> None:
    machine = drawing(limit=9)
    assert submit(machine, 5, 1) == []
    assert round_landed(machine, 2, 1, stopped=1) == [cmd.Finish(1, 0, "stop_token")]
    assert round_landed(machine, 3, 1) == [
        cmd.Admit(2, 0, 0),
        cmd.StartChunk(4, 2, 0, 0, 5, PageMapping(0, (0,)), True),
    ]


def test_others_go_on_without_the_one_that_has_stopped() -> None:
    machine = drawing(limit=90, lanes=2)
    submit(machine, 5, 90)
    round_landed(machine, 2, 1)
    round_landed(machine, 3, 1)
    chunk_landed(machine, 4)
    assert round_landed(machine, 5, 1) == [a_round(7, (1, 0, 9), (2, 1, 6))]
    out = round_landed(machine, 6, 1, 2, stopped=1)
    assert out == [cmd.Finish(1, 0, "stop_token"), a_round(8, (2, 1, 7))]
    machine.audit()
    assert round_landed(machine, 7, 1, 2) == [a_round(9, (2, 1, 8))]
    machine.audit()


@pytest.mark.parametrize("release_after", [0, 1, 2])
def test_an_end_between_two_steps_holds_lane_and_pages_until_both_have_landed(release_after: int) -> None:
    machine = drawing(limit=9)
    if release_after:
        assert machine.handle(ev.StopStringFound(1, machine.requests[1].drawn), 0.0) == [
            cmd.Finish(1, 0, "stop_string")
        ]
        assert state(machine) is RequestState.LEAVING_AHEAD
    for landed in range(3):
        if landed == release_after:
            out = machine.handle(ev.Released(1), 0.0)
            assert out == ([cmd.Finish(1, 0, "cancelled")] if release_after == 0 else [])
        if landed < 2:
            assert machine.lanes == [LaneState.VACATING]
            assert round_landed(machine, landed + 2, 1) == []
        machine.audit()
    assert not machine.requests
    assert machine.lanes == [LaneState.EMPTY]
    assert machine.statistics().totals.decode_tokens == 0


def test_units_of_one_prompt_follow_each_other_and_its_rows_follow_the_last() -> None:
    machine = ahead(prefill_chunk_tokens=64)
    assert submit(machine, 150, 3)[1:] == [
        cmd.StartChunk(1, 1, 0, 0, 64, PageMapping(0, (0,)), False),
        cmd.StartChunk(2, 1, 0, 64, 128, PageMapping(1, (1,)), False, first=False),
    ]
    assert state(machine) is RequestState.READING_AHEAD
    assert machine.device is DeviceState.CHUNK_THEN_CHUNK
    machine.audit()
    assert chunk_landed(machine, 1, drawn=0) == [
        cmd.StartChunk(3, 1, 0, 128, 150, PageMapping(2, (2,)), True, first=False)
    ]
    assert chunk_landed(machine, 2, drawn=0) == []  # the first token is on its way
    assert [type(command) for command in chunk_landed(machine, 3)] == [cmd.StartRound, cmd.StartRound]
    totals = machine.statistics().totals
    assert totals.prefill_tokens == 150


def test_a_prompt_may_end_while_its_last_two_units_are_in_flight() -> None:
    machine = ahead(prefill_chunk_tokens=64)
    submit(machine, 100, 3)
    assert machine.handle(ev.Released(1), 0.0) == [cmd.Finish(1, 0, "cancelled")]
    assert state(machine) is RequestState.ABANDONED_AHEAD
    assert chunk_landed(machine, 1, drawn=0) == []
    assert state(machine) is RequestState.ABANDONED
    assert chunk_landed(machine, 2) == []
    assert not machine.requests
    machine.audit()


def test_units_and_rounds_alternate_ahead_as_they_do_one_by_one() -> None:
    order: dict[int, list[str]] = {}
    for steps_ahead in (0, 1):
        machine = serving(lanes=2, prefill_chunk_tokens=64, steps_ahead=steps_ahead)
        submit(machine, 5, 40)
        chunk_landed(machine, 1)
        submit(machine, 300, 3)
        kinds = order.setdefault(steps_ahead, [])
        while machine.requests[2].state is not RequestState.GENERATING and len(kinds) < 50:
            step = machine.flight.steps[0]
            if step.end:
                kinds.append("unit")
                chunk_landed(machine, step.number, drawn=int(step.end == 300))
            else:
                kinds.append("round")
                round_landed(machine, step.number, *(request.id for request in step.requests))
            if step.end == 300:
                break
    assert order[0] == ["round", "unit"] * 5
    assert order[1] == ["round", *order[0]]  # the round that was ahead already when the prompt came


def test_who_joins_after_the_unit_in_flight_is_not_passed_by_the_next_prompt() -> None:
    machine = ahead(lanes=2)
    submit(machine, 5, 9)
    assert submit(machine, 5, 9) == []
    out = chunk_landed(machine, 1)
    assert out == [
        a_round(2, (1, 0, 5)),
        cmd.Admit(2, 1, 0),
        cmd.StartChunk(3, 2, 1, 0, 5, PageMapping(0, (1,)), True),
    ]
    assert machine.device is DeviceState.ROUND_THEN_CHUNK
    assert round_landed(machine, 2, 1) == [a_round(4, (1, 0, 6))]
    assert machine.device is DeviceState.CHUNK_THEN_ROUND
    assert chunk_landed(machine, 3) == [a_round(5, (1, 0, 7), (2, 1, 5))]


@pytest.mark.parametrize("limit", [0, 1])
def test_a_prompt_that_ends_with_its_unit_is_followed_by_the_next(limit: int) -> None:
    machine = ahead(lanes=2)
    submit(machine, 5, limit)
    assert submit(machine, 5, 9) == [cmd.Admit(2, 1, 0), cmd.StartChunk(2, 2, 1, 0, 5, PageMapping(0, (1,)), True)]
    assert chunk_landed(machine, 1, drawn=limit) == [cmd.Finish(1, 0, "output_limit")]


def test_a_share_of_device_time_is_not_spent_ahead() -> None:
    machine = ahead(lanes=2, prefill_decode_ratio=1.0, prefill_chunk_tokens=64)
    submit(machine, 5, 40)
    chunk_landed(machine, 1)
    submit(machine, 300, 3)  # rounds 2 and 3 are in flight
    assert round_landed(machine, 2, 1) == []
    admit, unit = round_landed(machine, 3, 1)
    assert admit == cmd.Admit(2, 1, 0)
    assert isinstance(unit, cmd.StartChunk)


@pytest.mark.parametrize("second", ["fails", "lands"])
def test_a_fault_voids_the_step_behind_it_and_the_engine_is_reset_after_both(second: str) -> None:
    machine = drawing(limit=9, lanes=2)
    assert machine.handle(ev.StepFailed(2, "fault"), 0.0) == [cmd.Fail(1, 0, "internal_error")]
    assert machine.device is DeviceState.VOIDING
    assert state(machine) is RequestState.LEAVING
    machine.audit()
    assert submit(machine, 5, 1) == []  # it gets its lane between the two, and is not at fault
    assert state(machine, 2) is RequestState.READING
    if second == "fails":
        assert machine.handle(ev.StepFailed(3, "and again"), 0.0) == [cmd.ResetEngine()]
    else:
        assert round_landed(machine, 3, 1) == [cmd.ResetEngine()]
    assert machine.device is DeviceState.RECOVERING
    assert state(machine) is RequestState.REPLYING
    machine.audit()
    admit, unit = machine.handle(ev.EngineReset(), 0.0)
    assert admit == cmd.Admit(2, 1, 0)
    assert isinstance(unit, cmd.StartChunk)
    assert unit.request_id == 2
    totals = machine.statistics().totals
    assert (totals.decode_tokens, totals.rounds, totals.engine_recoveries) == (0, 0, 1)


@pytest.mark.parametrize("second", ["fails", "lands"])
def test_a_unit_behind_a_fault_is_void_as_well(second: str) -> None:
    machine = ahead(prefill_chunk_tokens=64)
    submit(machine, 100, 3)
    assert machine.handle(ev.StepFailed(1, "fault"), 0.0) == [cmd.Fail(1, 0, "internal_error")]
    late = ev.StepFailed(2, "fault") if second == "fails" else ev.ChunkLanded(2, 1, False, 0.1)
    assert machine.handle(late, 0.0) == [cmd.ResetEngine()]
    assert machine.statistics().totals.prefill_tokens == 0
    machine.audit()


def test_a_fault_in_the_second_step_keeps_what_the_first_has_drawn() -> None:
    machine = drawing(limit=9)
    round_landed(machine, 2, 1)
    assert machine.handle(ev.StepFailed(3, "fault"), 0.0) == [cmd.Fail(1, 0, "internal_error")]
    assert machine.device is DeviceState.VOIDING  # the fourth was launched when the second landed
    assert machine.handle(ev.StepFailed(4, "fault"), 0.0) == [cmd.ResetEngine()]
    assert machine.statistics().totals.decode_tokens == 1
    machine.audit()


def test_two_steps_that_fail_together_are_one_fault() -> None:
    machine = ahead()
    for fault in range(3):
        submit(machine, 5, 9)
        request_id = machine._next_request - 1
        chunk_landed(machine, machine.flight.steps[0].number)
        first, second = (step.number for step in machine.flight.steps)
        machine.handle(ev.StepFailed(first, f"fault {fault}"), 0.0)
        assert machine.lifecycle is Lifecycle.SERVING  # also the third time: the device is not idle yet
        out = machine.handle(ev.StepFailed(second, "its shadow"), 0.0)
        machine.handle(ev.Released(request_id), 0.0)
        if fault < 2:
            assert out == [cmd.ResetEngine()]
            machine.handle(ev.EngineReset(), 0.0)
    assert machine.lifecycle is Lifecycle.FAILED
    assert machine.device is DeviceState.LOST
    exits = [command for command in machine.handle(ev.Tick(), 5.0) if isinstance(command, cmd.Exit)]
    assert exits == [cmd.Exit(3, "the engine failed 3 times in a row: fault 2")]


def test_steps_land_in_the_order_of_their_launch_and_as_what_they_are() -> None:
    machine = drawing(limit=9)
    with pytest.raises(IllegalTransition, match=r"step 3 landed, in flight are \[2, 3\]"):
        round_landed(machine, 3, 1)
    with pytest.raises(IllegalTransition, match="CHUNK_LANDED while ROUND_THEN_ROUND"):
        chunk_landed(machine, 2)
    machine = ahead(prefill_chunk_tokens=64)
    submit(machine, 100, 3)
    with pytest.raises(IllegalTransition, match="ROUND_LANDED while CHUNK_THEN_CHUNK"):
        round_landed(machine, 1, 1)


def test_a_drain_ends_rows_in_both_steps_once() -> None:
    machine = drawing(limit=90, drain_s=1.0)
    machine.handle(ev.StopRequested(), 10.0)
    assert cmd.Fail(1, 0, "service_unavailable") in machine.handle(ev.Tick(), 11.0)
    assert state(machine) is RequestState.LEAVING_AHEAD
    assert round_landed(machine, 2, 1) == []
    assert round_landed(machine, 3, 1) == []
    assert machine.handle(ev.Released(1), 11.5) == [cmd.Exit(0, "")]
    machine.audit()


def test_the_audit_counts_a_row_in_two_steps() -> None:
    machine = drawing(limit=9)
    machine.audit()
    step = machine.flight.steps.pop()
    with pytest.raises(IllegalTransition, match="GENERATING_AHEAD and in 1 steps"):
        machine.audit()
    machine.flight.steps.append(step)
    machine.handle(ev.StepFailed(2, "fault"), 0.0)
    machine.audit()
    machine.flight.steps.clear()
    machine.requests[1].state = RequestState.READING
    with pytest.raises(IllegalTransition, match="VOIDING with 0 steps"):
        machine.audit()
