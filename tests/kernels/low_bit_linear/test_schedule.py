"""Every quantum has one program, every program of a tile its slot; launches of the 27B as measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.kernels.low_bit_linear.schedule import INVERSE_BITS, Schedule, deal, inverse, slots_for

H200 = 132 * 16


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_runs_are_contiguous_even_and_complete(tiles: int, quanta: int, data: st.DataObject) -> None:
    schedule = Schedule(tiles, quanta, data.draw(st.integers(1, tiles * quanta)))
    owners = [schedule.owner(quantum) for quantum in range(tiles * quanta)]
    assert owners == sorted(owners)
    sizes = [owners.count(program) for program in range(schedule.programs)]
    assert sum(sizes) == tiles * quanta
    assert max(sizes) - min(sizes) <= 1
    shared = [len(set(owners[tile * quanta : (tile + 1) * quanta])) for tile in range(tiles)]
    assert schedule.slots == max(shared)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=2), st.integers(2, 3000))
def test_dealing_gives_each_matrix_its_share(shapes: list[tuple[int, int]], programs: int) -> None:
    schedules = deal(shapes, programs)
    steps = [tiles * quanta for tiles, quanta in shapes]
    assert sum(schedule.programs for schedule in schedules) <= programs
    assert all(1 <= schedule.programs <= count for schedule, count in zip(schedules, steps, strict=True))
    limits = [tiles * min(quanta, 8) for tiles, quanta in shapes]
    assert all(schedule.programs <= limit for schedule, limit in zip(schedules, limits, strict=True))
    shares = [programs * count / sum(steps) for count in steps]
    if all(share <= limit for share, limit in zip(shares, limits, strict=True)):
        assert sum(schedule.programs for schedule in schedules) == programs
        assert all(abs(schedule.programs - share) <= 1 for schedule, share in zip(schedules, shares, strict=True))


@given(st.integers(0, 2**30 - 1), st.integers(1, 2**30 - 1), st.booleans())
def test_a_product_with_the_inverse_is_the_quotient_or_one_more(n: int, divisor: int, multiple: bool) -> None:
    n = n // divisor * divisor if multiple else n
    assert 0 <= (n * inverse(divisor) >> INVERSE_BITS) - n // divisor <= 1
    assert inverse(divisor) < 2**31


def test_slots_are_powers_of_two() -> None:
    assert [slots_for(slots) for slots in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 4, 4, 8, 8, 16]


@pytest.mark.parametrize(("shapes", "slots"), [
    ([(256, 20), (768, 20)], (4, 4)),  # query_key + value_z
    ([(448, 20), (448, 20)], (4, 4)),  # query_key + gate_value
    ([(320, 24)], (8,)),  # output
    ([(2176, 20)], (2,)),  # gate_up
    ([(320, 68)], (8,)),  # down
    ([(15520, 20)], (2,)),  # head, six bits
    ([(15520, 40)], (2,)),  # head, eight bits
    ([(128, 32)], (8,)),  # output of the 35B: 1024 programs of four quanta
])  # fmt: skip
def test_slots_of_the_27b(shapes: list[tuple[int, int]], slots: tuple[int, ...]) -> None:
    assert tuple(schedule.slots for schedule in deal(shapes, H200)) == slots
