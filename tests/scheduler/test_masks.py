"""Requests whose draws wait for masks: never launched ahead of one, and in nobody's way meanwhile."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.transitions import LaneState, RequestState
from tests.scheduler.test_machine import serving, submit


def submit_masked(machine: Scheduler, prompt: int, limit: int) -> list[cmd.Command]:
    (accepted,) = [c for c in machine.handle(ev.Arrived(1), 0.0) if isinstance(c, cmd.Accept)]
    return machine.handle(ev.Prepared(accepted.request_id, prompt, limit, masked=True), 0.0)


def rounds(commands: list[cmd.Command]) -> list[list[int]]:
    """Request ids of the rounds among the commands."""
    return [[row.request_id for row in c.rows] for c in commands if isinstance(c, cmd.StartRound)]


def landed(machine: Scheduler, *ids: int, stop: bool = False, free: int = 0) -> list[cmd.Command]:
    """The oldest round lands, with a token for each of these."""
    step = machine.flight.steps[0].number
    rows = tuple(ev.RowLanded(n, 1, stop, free=free) for n in ids)
    return machine.handle(ev.RoundLanded(step, rows, 0.001), 0.0)


def test_each_draw_but_the_first_waits_for_its_mask() -> None:
    machine = serving(steps_ahead=1)
    submit_masked(machine, 70, 3)
    assert machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0) == []
    assert machine.requests[1].state is RequestState.MASKING
    assert machine.lanes[0] is LaneState.DECODING
    assert rounds(machine.handle(ev.MaskReady(1), 0.0)) == [[1]], "and none ahead of it"
    assert landed(machine, 1) == []
    assert rounds(machine.handle(ev.MaskReady(1), 0.0)) == [[1]]
    assert landed(machine, 1) == [cmd.Finish(1, 0, "output_limit", 0)]
    machine.handle(ev.MaskReady(1), 0.0)  # it was on its way
    machine.handle(ev.Released(1), 0.0)
    assert machine.handle(ev.MaskReady(1), 0.0) == []
    machine.audit()


def test_under_a_mask_that_lasts_nothing_is_waited_for_and_nothing_is_ahead() -> None:
    machine = serving(steps_ahead=1)
    submit_masked(machine, 70, 9)
    assert rounds(machine.handle(ev.ChunkLanded(1, 1, False, 0.1, free=5), 0.0)) == [[1]]
    assert machine.requests[1].state is RequestState.GENERATING_IN_STEP
    assert rounds(landed(machine, 1, free=4)) == [[1]]
    assert landed(machine, 1) == [], "it has been halted"
    assert machine.requests[1].state is RequestState.MASKING
    assert rounds(machine.handle(ev.MaskReady(1, free=2), 0.0)) == [[1]]
    assert rounds(landed(machine, 1, free=1)) == [[1]]
    assert landed(machine, 1) == []
    machine.audit()


def test_behind_the_last_mask_rows_are_launched_ahead_as_for_any_request() -> None:
    machine = serving(steps_ahead=1)
    submit_masked(machine, 70, 9)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)
    assert rounds(machine.handle(ev.MaskReady(1, masked=False), 0.0)) == [[1], [1]]
    assert rounds(landed(machine, 1)) == [[1]]
    machine.audit()


def test_other_rows_go_on_meanwhile() -> None:
    machine = serving(lanes=2, steps_ahead=1)
    submit(machine, 10, 9)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)
    submit_masked(machine, 10, 9)
    while machine.requests[2].state is not RequestState.MASKING:
        step = machine.flight.steps[0]
        if step.end:
            machine.handle(ev.ChunkLanded(step.number, 1, False, 0.1), 0.0)
        else:
            landed(machine, *(request.id for request in step.requests))
    assert rounds(landed(machine, 1)) == [[1]]
    assert rounds(machine.handle(ev.MaskReady(2), 0.0)) == []  # two steps are in flight
    assert rounds(landed(machine, 1)) == [[1, 2]]
    assert rounds(landed(machine, 1)) == [[1]], "its row has not landed"
    machine.audit()


@pytest.mark.parametrize("event", [ev.Released(1), ev.MaskFailed(1, "constraint_dead_end")], ids=str)
def test_it_may_end_while_its_mask_is_made(event: ev.Event) -> None:
    machine = serving()
    submit_masked(machine, 10, 9)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)
    commands = machine.handle(event, 0.0)
    failed = isinstance(event, ev.MaskFailed)
    assert commands == [cmd.Fail(1, 0, "constraint_dead_end") if failed else cmd.Finish(1, 0, "cancelled", 0)]
    assert machine.lanes[0] is LaneState.EMPTY
    machine.handle(ev.MaskReady(1), 0.0)
    machine.handle(ev.Released(1), 0.0)
    machine.audit()
    assert not machine.requests


def test_a_fault_ends_it_as_any_other() -> None:
    machine = serving(lanes=2)
    submit_masked(machine, 10, 9)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)
    submit(machine, 10, 9)
    commands = machine.handle(ev.StepFailed(2, "fault"), 0.0)
    assert [c.request_id for c in commands if isinstance(c, cmd.Fail)] == [1, 2]
    machine.handle(ev.MaskReady(1), 0.0)
    machine.audit()


def test_a_chunk_is_cut_for_somebody_whose_mask_is_being_made() -> None:
    machine = serving(lanes=2, prefill_chunk_tokens=512, max_inter_token_s=0.1)
    submit_masked(machine, 10, 9)
    machine.handle(ev.ChunkLanded(1, 1, False, 1.0), 0.0)
    (chunk,) = [c for c in submit(machine, 512, 0) if isinstance(c, cmd.StartChunk)]
    assert chunk.end < 512


def test_a_mask_that_nobody_waits_for_breaks_a_rule() -> None:
    machine = serving()
    submit_masked(machine, 10, 9)
    with pytest.raises(IllegalTransition, match="MASKED while READING_IN_STEP"):
        machine.handle(ev.MaskReady(1), 0.0)
