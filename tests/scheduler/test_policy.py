"""Whose turn it is, and how large a prefill unit may be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise

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


def learnt(sharing: Sharing, seconds: Callable[[int], float], depth: int = 0, units: int = 30) -> list[int]:
    """Sizes of units while a stream waits, on a device that takes so many seconds for so many tokens."""
    sizes = []
    for _ in range(units):
        sizes.append(sharing.chunk_tokens(depth, 100_000, someone_waits=True))
        sharing.landed_chunk(depth, sizes[-1], seconds(sizes[-1]))
    return sizes


@pytest.mark.parametrize(
    ("fixed_s", "token_s", "round_s", "bound_s", "expected"),
    [
        (0.0, 0.001, 0.010, 0.1, 64),  # 65 tokens fit, one page
        (0.0, 0.0005, 0.010, 0.1, 128),  # 130 tokens fit, two pages
        (0.045, 0.00005, 0.010, 0.1, 384),  # most of it is fixed cost
        (0.0, 0.00001, 0.010, 0.1, 1024),  # everything fits
        (0.0, 0.1, 0.010, 0.1, 64),  # nothing fits: the least there is
        (0.0, 0.001, 0.200, 0.1, 64),  # the round alone takes too long
        (0.1, 0.00005, 0.010, 0.1, 256),  # a page does not fit either, but four hardly take longer
        (0.0, 0.0, 0.010, 0.1, 1024),  # a device too fast to measure
    ],
)
def test_a_unit_is_cut_to_the_bound_in_whole_pages(
    fixed_s: float, token_s: float, round_s: float, bound_s: float, expected: int
) -> None:
    sharing = Sharing(SchedulerSettings(max_inter_token_s=bound_s))
    sharing.landed_round(round_s)
    sizes = learnt(sharing, lambda tokens: fixed_s + token_s * tokens)
    assert sizes[-1] == expected
    assert all(after <= 2 * before for before, after in pairwise(sizes))
    assert sharing.chunk_tokens(0, 10_000, someone_waits=False) == 1024
    assert sharing.chunk_tokens(0, 10, someone_waits=True) == 10


def test_without_a_bound_units_are_full() -> None:
    sharing = Sharing(SchedulerSettings(max_inter_token_s=0.0))
    assert learnt(sharing, lambda tokens: 0.1 * tokens, units=2) == [1024, 1024]


def test_on_an_unknown_machine_the_first_unit_is_the_smallest() -> None:
    sharing = Sharing(SchedulerSettings())
    assert sharing.chunk_tokens(0, 10_000, someone_waits=True) == 64
    assert sharing.chunk_tokens(0, 10_000, someone_waits=False) == 1024


def test_the_pace_knows_depth_and_follows_change() -> None:
    pace = Pace()
    assert pace.fitting(0, 1.0) == 64
    assert pace.round_s == 0.0
    pace.saw_chunk(0, 128, 0.1)
    pace.saw_chunk(100_000, 128, 1.0)
    assert pace.fitting(0, 1.0) == pace.fitting(500, 1.0) == 256  # twice the last
    assert pace.fitting(90_000, 1.0) == 192  # a page more, to learn the slope
    assert pace.fitting(90_000, 0.9) == 64
    assert pace.fitting(4_000, 1.0) == 256  # the nearest depth that is known
    pace.saw_round(0.01)
    pace.saw_round(0.02)
    assert pace.round_s == pytest.approx(0.013)
    for _ in range(20):  # the machine has become slower
        pace.saw_chunk(0, 128, 0.3)
        pace.saw_chunk(0, 64, 0.2)
    assert pace.fitting(0, 0.31) == 128


def test_noise_does_not_make_units_explode() -> None:
    sharing = Sharing(SchedulerSettings(prefill_chunk_tokens=8192))
    sharing.landed_round(0.006)
    noise = itertools.cycle((0.9, 1.15, 1.0, 0.95, 1.1))
    sizes = learnt(sharing, lambda tokens: next(noise) * (0.04 + 0.00005 * tokens), units=200)
    assert min(sizes[20:]) >= 256
    assert max(sizes[20:]) <= 1536
