"""Units of prefill that are carried out in parts of the layers, with rounds between them."""

from __future__ import annotations

import pytest

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.flight import Flight
from ninfer.scheduler.policy import MOST_PARTS, Sharing
from ninfer.scheduler.requests import Request
from ninfer.scheduler.transitions import DeviceState, LaneState
from tests.scheduler.driving import Driver, text


def streaming(steps_ahead: int = 0) -> tuple[Driver, int]:
    """A server with one stream, which has seen a unit and a round; the bound is far below what either takes."""
    server = Driver(lanes=3, parts=(1, 2, 4), max_inter_token_s=0.001, prefill_chunk_tokens=64, steps_ahead=steps_ahead)
    stream = server.ask(text(10, 1), limit=100)
    for _ in range(3):
        server.land()
    return server, stream


def landings(server: Driver, until: int) -> list[str]:
    """What lands up to the first token of a request."""
    kinds = []
    while not server.machine.requests[until].drawn:
        step = server.machine.flight.steps[0]
        kinds.append("part" if step.is_part else "round" if step.is_round else "chunk")
        server.land()
    return kinds


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_rounds_run_between_the_parts_of_a_unit(steps_ahead: int) -> None:
    server, stream = streaming(steps_ahead)
    drawn = server.machine.requests[stream].drawn
    prompt = server.ask(text(128, 2), limit=1)
    kinds = landings(server, prompt)
    while kinds[0] == "round":  # what was in flight
        kinds.pop(0)
        drawn += 1
    assert kinds == ["part", "round"] * 3 + ["chunk", "round"] + ["part", "round"] * 3 + ["chunk"]
    assert server.machine.requests[stream].drawn == drawn + 7
    first, second = server.chunks(prompt)
    assert (first.begin, first.end, first.parts, first.sample) == (0, 64, 4, False)
    assert (second.begin, second.end, second.parts, second.sample) == (64, 128, 4, True)
    parts = [c for c in server.out if isinstance(c, cmd.ContinueChunk)]
    assert [part.last for part in parts] == [False, False, True] * 2
    assert {(part.request_id, part.lane) for part in parts} == {(prompt, first.lane)}
    assert parts[0].behind == first.step
    assert parts[1].behind == parts[0].step


def test_a_unit_has_no_parts_while_nobody_waits() -> None:
    server = Driver(lanes=2, parts=(1, 2, 4), max_inter_token_s=0.001, prefill_chunk_tokens=64)
    server.say(text(300, 1))
    assert {chunk.parts for chunk in server.chunks(1)} == {1}


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_unit_is_gone_through_after_its_client_has_left(steps_ahead: int) -> None:
    server, _stream = streaming(steps_ahead)
    prompt = server.ask(text(128, 2), limit=1)
    while not server.machine.flight.steps[0].is_part:
        server.land()
    server.land()
    lane = server.chunks(prompt)[0].lane
    finish = next(c for c in server.send(ev.Released(prompt)) if isinstance(c, cmd.Finish))
    assert (finish.reason, finish.retained_tokens) == ("cancelled", 64)
    assert server.machine.lanes[lane] is LaneState.VACATING
    while server.machine.flight.chunk is not None or not all(step.is_round for step in server.machine.flight.steps):
        server.land()
    assert prompt not in server.machine.requests
    assert server.machine.lanes[lane] is LaneState.RETAINED
    again = server.ask(text(128, 2), limit=1)
    assert landings(server, again)
    assert server.reused(again) == (lane, "append_frontier", 64)


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("landed", [0, 1, 2])
def test_a_fault_between_parts_ends_the_unit(steps_ahead: int, landed: int) -> None:
    server, stream = streaming(steps_ahead)
    prompt = server.ask(text(128, 2), limit=1)
    for _ in range(landed):
        server.land()
    assert server.machine.flight.chunk is not None or not landed
    out = server.send(ev.StepFailed(server.machine.flight.steps[0].number, "broken"))
    assert {c.request_id for c in out if isinstance(c, cmd.Fail)} == {stream, prompt}
    assert server.machine.flight.chunk is None
    while server.machine.flight.steps:
        server.send(ev.StepFailed(server.machine.flight.steps[0].number, "void"))
    assert server.machine.device is DeviceState.RECOVERING
    server.memory.lose()
    server.send(ev.EngineReset())
    server.send(ev.Released(stream))
    server.send(ev.Released(prompt))
    assert server.machine.lanes == [LaneState.EMPTY] * 3
    server.say(text(128, 3))
    assert server.chunks(3)[-1].sample


def test_a_part_that_lands_behind_a_fault_counts_for_nothing() -> None:
    server, _stream = streaming(steps_ahead=1)
    server.ask(text(128, 2), limit=1)
    while not server.machine.flight.steps[1].is_part:
        server.land()
    before = server.machine.statistics().totals.prefill_s
    server.send(ev.StepFailed(server.machine.flight.steps[0].number, "broken"))
    out = server.send(ev.PartLanded(server.machine.flight.steps[0].number, 1.0))
    assert cmd.ResetEngine() in out
    assert server.machine.statistics().totals.prefill_s == before


def test_steps_land_as_what_they_are() -> None:
    server, _stream = streaming()
    number = server.machine.flight.steps[0].number
    with pytest.raises(IllegalTransition, match="CHUNK_LANDED while DECODE_ROUND"):
        server.machine.handle(ev.PartLanded(number, 0.1), 0.0)
    server, _stream = streaming()
    server.ask(text(128, 2), limit=1)
    server.land()
    number = server.machine.flight.steps[0].number
    with pytest.raises(IllegalTransition, match="landed with its parts to come"):
        server.machine.handle(ev.ChunkLanded(number, 0, False, 0.1), 0.0)
    whole = Driver(lanes=1)
    whole.ask(text(10))
    with pytest.raises(IllegalTransition, match="landed as a part"):
        whole.machine.handle(ev.PartLanded(1, 0.1), 0.0)


def test_no_unit_begins_between_the_parts_of_another() -> None:
    flight = Flight()
    request = Request(1, 0.0, 1.0)
    assert flight.launch_chunk(request, 0, 64, (), 2) == 1
    with pytest.raises(IllegalTransition, match="between the parts"):
        flight.launch_chunk(request, 64, 128, (), 1)


def learnt(sharing: Sharing, token_s: float, fixed_s: float, units: int = 60) -> tuple[int, int]:
    """The last unit beside a stream, and its parts, on a device that takes so long for a unit."""
    sharing.landed_round(0.010)
    tokens = parts = 0
    for _ in range(units):
        tokens = sharing.chunk_tokens(0, 100_000, someone_waits=True)
        parts = sharing.parts(0, tokens, someone_waits=True)
        seconds = fixed_s + token_s * tokens
        for _part in range(parts - 1):
            sharing.landed_part(seconds / parts)
        sharing.landed_chunk(0, tokens, seconds / parts)
    return tokens, parts


def test_a_unit_is_as_long_as_all_its_parts() -> None:
    # A step may take 65 ms between two rounds: in one part 384 tokens fit, in four 4,224.
    settings = SchedulerSettings(prefill_chunk_tokens=8192, max_inter_token_s=0.1)
    assert learnt(Sharing(settings), 0.00005, 0.045) == (384, 1)
    sharing = Sharing(settings)
    sharing.open((1, 2, 4, 8))
    assert learnt(sharing, 0.00005, 0.045) == (4288, 4)
    # No more parts than are needed: 1,024 tokens take 96 ms.
    assert sharing.parts(0, 1024, someone_waits=True) == 2
    assert sharing.parts(0, 64, someone_waits=True) == 1
    assert sharing.parts(0, 8192, someone_waits=True) == 4
    assert sharing.parts(0, 8192, someone_waits=False) == 1
    assert MOST_PARTS < 8


def test_with_one_size_known_a_shorter_unit_is_taken_to_be_as_slow() -> None:
    sharing = Sharing(SchedulerSettings(max_inter_token_s=0.1))
    sharing.open((1, 2, 4))
    for _ in range(3):
        sharing.landed_chunk(0, 4096, 0.25)
    assert sharing.parts(0, 64, someone_waits=True) == 4
    assert sharing.pace.chunk_s(0, 8192) == pytest.approx(0.5)
    sharing.landed_chunk(0, 64, 0.05)
    assert sharing.parts(0, 64, someone_waits=True) == 1


def test_without_a_bound_or_a_measurement_a_unit_is_one_step() -> None:
    sharing = Sharing(SchedulerSettings(max_inter_token_s=0.0))
    sharing.open((1, 2))
    assert sharing.parts(0, 1024, someone_waits=True) == 1
    sharing = Sharing(SchedulerSettings(max_inter_token_s=0.1))
    sharing.open((1, 2))
    assert sharing.parts(0, 1024, someone_waits=True) == 1


def test_parts_of_a_unit_that_failed_are_not_counted_to_the_next() -> None:
    sharing = Sharing(SchedulerSettings(max_inter_token_s=0.1))
    sharing.open((1, 2))
    sharing.landed_part(5.0)
    sharing.dropped_chunk()
    sharing.landed_chunk(0, 64, 0.01)
    assert sharing.pace.chunk_s(0, 64) == pytest.approx(0.01)
