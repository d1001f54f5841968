"""The order of the queue."""

from __future__ import annotations

import pytest

from ninfer.scheduler.requests import Request
from ninfer.scheduler.waiting import AGEING_S, PASSES_PER_HEAD, candidates, urgency


def waiting(number: int, arrived: float = 0.0, priority: int = 0, passed: int = 0) -> Request:
    return Request(number, arrived, arrived + 30.0, priority=priority, passed=passed)


@pytest.mark.parametrize(
    ("priority", "waited", "expected"),
    [(0, 0.0, 0), (3, 0.0, 3), (3, AGEING_S - 0.001, 3), (3, AGEING_S, 2), (0, 3.5 * AGEING_S, -3)],
)
def test_waiting_makes_urgent(priority: int, waited: float, expected: int) -> None:
    assert urgency(waiting(1, 5.0, priority), 5.0 + waited) == expected


def test_the_more_urgent_goes_first_and_of_equals_the_first_come() -> None:
    queue = [waiting(1, priority=1), waiting(2), waiting(3, priority=-1), waiting(4)]
    assert [request.id for request in candidates(queue, 0.0)] == [3, 2, 4, 1]


def test_nobody_stays_behind_for_ever() -> None:
    old = waiting(1, 0.0, priority=5)
    assert candidates([old, waiting(2, 6 * AGEING_S)], 6 * AGEING_S)[0] is old


def test_a_head_that_was_passed_often_enough_is_not_passed_again() -> None:
    head = waiting(1, passed=PASSES_PER_HEAD - 1)
    assert len(candidates([head, waiting(2)], 0.0)) == 2
    head.passed += 1
    assert candidates([head, waiting(2)], 0.0) == [head]
    # Somebody more urgent is the head, and has not been passed himself.
    assert [request.id for request in candidates([head, waiting(2, priority=-1)], 0.0)] == [2, 1]
