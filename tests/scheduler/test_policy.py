"""Whose turn it is, and how large a prefill unit may be."""

from __future__ import annotations

import pytest

from ninfer.config import SchedulerSettings
from ninfer.scheduler.policy import Pace, Sharing, Turn


def turns(sharing: Sharing, count: int, chunk_s: float, round_s: float) -> list[Turn]:
    taken = []
    for _ in range(count):
        turn = sharing.turn(True, True, ahead=False)
        sharing.launched(turn)
        if turn is Turn.PREFILL:
            sharing.landed_chunk(0, 64, chunk_s)
        else:
            sharing.landed_round(round_s)
        taken.append(turn)
    return taken


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("ratio", [None, 2.0])
def test_with_one_kind_of_work_there_is_no_choice(ahead: bool, ratio: float | None) -> None:
    sharing = Sharing(SchedulerSettings(prefill_decode_ratio=ratio))
    assert sharing.turn(True, False, ahead=ahead) is Turn.PREFILL
    assert sharing.turn(False, True, ahead=ahead) is Turn.DECODE
    assert sharing.turn(False, False, ahead=ahead) is Turn.REST


def test_ahead_of_a_landing_turns_alternate_the_same_and_a_ratio_waits() -> None:
    sharing = Sharing(SchedulerSettings())
    taken = []
    for _ in range(4):
        taken.append(sharing.turn(True, True, ahead=True))
        sharing.launched(taken[-1])
    assert taken == [Turn.DECODE, Turn.PREFILL] * 2
    sharing = Sharing(SchedulerSettings(prefill_decode_ratio=1.0))
    assert sharing.turn(True, True, ahead=True) is Turn.REST
    assert sharing.turn(True, True, ahead=False) is Turn.PREFILL


def test_both_kinds_alternate_one_to_one() -> None:
    taken = turns(Sharing(SchedulerSettings()), 10, 0.05, 0.001)
    assert taken == [Turn.DECODE, Turn.PREFILL] * 5


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_a_ratio_shares_device_time_instead(ratio: float) -> None:
    sharing = Sharing(SchedulerSettings(prefill_decode_ratio=ratio))
    taken = turns(sharing, 2000, 0.010, 0.001)
    prefill_s, decode_s = taken.count(Turn.PREFILL) * 0.010, taken.count(Turn.DECODE) * 0.001
    assert prefill_s <= ratio * decode_s + 0.010
    assert prefill_s == pytest.approx(ratio * decode_s, abs=0.02)


@pytest.mark.parametrize(
    ("token_s", "round_s", "bound_s", "expected"),
    [
        (0.001, 0.010, 0.1, 64),  # 90 tokens fit, one page
        (0.0005, 0.010, 0.1, 128),  # 180 tokens fit, two pages
        (0.00001, 0.010, 0.1, 1024),  # everything fits
        (0.1, 0.010, 0.1, 64),  # nothing fits: the least there is
        (0.001, 0.200, 0.1, 64),  # the round alone takes too long
        (0.1, 0.010, 0.0, 1024),  # no bound
        (0.0, 0.010, 0.1, 1024),  # a device too fast to measure
    ],
)
def test_a_unit_is_cut_to_the_bound_in_whole_pages(
    token_s: float, round_s: float, bound_s: float, expected: int
) -> None:
    sharing = Sharing(SchedulerSettings(max_inter_token_s=bound_s))
    sharing.landed_chunk(0, 1000, 1000 * token_s)
    sharing.landed_round(round_s)
    assert sharing.chunk_tokens(0, 10_000, someone_waits=True) == expected
    assert sharing.chunk_tokens(0, 10_000, someone_waits=False) == 1024
    assert sharing.chunk_tokens(0, 10, someone_waits=True) == 10


def test_on_an_unknown_machine_the_first_unit_is_the_smallest() -> None:
    sharing = Sharing(SchedulerSettings())
    assert sharing.chunk_tokens(0, 10_000, someone_waits=True) == 64
    assert sharing.chunk_tokens(0, 10_000, someone_waits=False) == 1024


def test_the_pace_knows_depth_and_follows_change() -> None:
    pace = Pace()
    assert pace.token_s(0) is None
    assert pace.round_s == 0.0
    pace.saw_chunk(0, 100, 0.1)
    pace.saw_chunk(100_000, 100, 1.0)
    assert pace.token_s(0) == pytest.approx(0.001)
    assert pace.token_s(500) == pytest.approx(0.001)
    assert pace.token_s(90_000) == pytest.approx(0.01)
    assert pace.token_s(4_000) == pytest.approx(0.001)  # the nearest depth that is known
    pace.saw_chunk(0, 100, 0.2)
    assert pace.token_s(0) == pytest.approx(0.0013)
    pace.saw_round(0.01)
    pace.saw_round(0.02)
    assert pace.round_s == pytest.approx(0.013)
