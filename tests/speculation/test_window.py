"""The number of guesses that pays: rules, and simulated requests against the best width there is."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.speculation.window import (
    FIRST_REST,
    LONGEST_REST,
    PLAIN_SAMPLES,
    PROBE_ROUNDS,
    Experience,
    RoundCosts,
    Seen,
    choose,
    mean_mask_s,
    worth_masks,
)

MOST = 5
HISTORIES = st.lists(st.integers(0, 15).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=40)


def seconds(width: int, step: float = 0.1) -> float:
    return 0.02 * (1 + step * width)


def measured(step: float, rows: int = 1) -> RoundCosts:
    costs = RoundCosts()
    for width in (0, 0, *range(1, MOST + 1)):
        costs = costs.after(rows, width, seconds(width, step))
    return costs


def lived(history: list[tuple[int, int]]) -> Experience:
    experience = Experience()
    for drafted, accepted in history:
        experience = experience.after(drafted, accepted)
    return experience


def best_rate(rate: float, step: float) -> float:
    return max(sum(rate**j for j in range(width + 1)) / seconds(width, step) for width in range(MOST + 1))


class Simulated:
    """One request whose guesses are right with a probability, each if those before it were."""

    def __init__(self, seed: int = 1) -> None:
        self.source = random.Random(seed)
        self.experience, self.costs = Experience(), RoundCosts()
        self.widths: list[int] = []

    def run(self, rounds: int, rate: float, step: float) -> float:
        """Tokens a second."""
        tokens, elapsed = 0, 0.0
        for _ in range(rounds):
            (width,) = choose([self.experience], [MOST], self.costs, [0.0])
            accepted = 0
            while accepted < width and self.source.random() < rate:
                accepted += 1
            spent = seconds(width, step) * self.source.uniform(0.97, 1.03)
            self.costs = self.costs.after(1, width, spent)
            self.experience = self.experience.after(width, accepted)
            self.widths.append(width)
            tokens, elapsed = tokens + accepted + 1, elapsed + spent
        return tokens / elapsed


@pytest.mark.parametrize("step", [0.05, 0.11, 0.3, 0.8])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.7, 0.9])
def test_a_request_gets_near_the_best_width_there_is(rate: float, step: float) -> None:
    reached = Simulated().run(3000, rate, step)
    assert reached >= 0.94 * best_rate(rate, step), "within the margin that a change of width takes, and learning"
    assert reached >= 0.98 / seconds(0), "never worse than without guesses, but for looking"


def test_guesses_that_are_never_right_are_given_up_and_looked_at_seldom() -> None:
    run = Simulated()
    run.run(4000, 0.0, 0.11)
    assert all(width == 0 for width in run.widths[40 : 40 + FIRST_REST // 2])
    late = run.widths[2000:]
    assert 0 < sum(width > 0 for width in late) <= 4 * PROBE_ROUNDS


def test_guesses_that_become_right_are_found() -> None:
    run = Simulated()
    run.run(1000, 0.0, 0.11)
    run.run(LONGEST_REST + 200, 0.9, 0.11)
    assert run.run(500, 0.9, 0.11) >= 0.95 * best_rate(0.9, 0.11)
    assert run.experience.rest == FIRST_REST


def test_where_a_wide_round_is_too_dear_nothing_is_guessed() -> None:
    run = Simulated()
    run.run(500, 0.9, 1.2)
    assert sum(width > 0 for width in run.widths[100:]) <= 8 * PROBE_ROUNDS


def test_the_same_events_give_the_same_widths() -> None:
    one, other = Simulated(7), Simulated(7)
    one.run(300, 0.6, 0.1)
    other.run(300, 0.6, 0.1)
    assert (one.widths, one.experience, one.costs) == (other.widths, other.experience, other.costs)


@given(HISTORIES)
def test_gains_fall_and_are_chances(history: list[tuple[int, int]]) -> None:
    gains = lived(history).gains(15)
    assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise(gains))
    assert 0 < gains[0] <= 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(HISTORIES, st.integers(0, 15)), max_size=8), st.sampled_from([0.02, 0.1, 0.5, 2.0]))
def test_no_row_guesses_more_than_it_may(rows: list[tuple[list[tuple[int, int]], int]], step: float) -> None:
    limits = [limit for _, limit in rows]
    costs = measured(step, len(rows))
    widths = choose([lived(history) for history, _ in rows], limits, costs, [0.0] * len(limits))
    assert len(widths) == len(rows)
    assert all(0 <= width <= limit for width, limit in zip(widths, limits, strict=True))


def test_rows_share_a_width_and_use_as_much_of_it_as_helps() -> None:
    good, bad = lived([(5, 5)] * 40), lived([(5, 0)] * 80)
    costs = measured(0.05, 2)
    assert choose([good, bad], [MOST, MOST], costs, (0.0, 0.0)) == (5, 0)
    assert choose([good, good], [MOST, 2], costs, (0.0, 0.0)) == (5, 2)
    assert choose([good, good], [0, 0], costs, (0.0, 0.0)) == (0, 0)


def test_a_width_is_left_for_one_that_is_clearly_better_only() -> None:
    experience = lived([(3, 3), (3, 1)] * 30)
    costs = RoundCosts()
    tokens = [1.0]
    for gain in experience.gains(4):
        tokens.append(tokens[-1] + gain)
    for width in range(5):  # each width gives the same rate, but for one per cent
        for _ in range(3):
            costs = costs.after(1, width, tokens[width] * (0.99 if width == 2 else 1.0))
    for present in (0, 2, 3):
        assert choose([replace(experience, width=present)], [4], costs, [0.0]) == (present,)


def test_without_guesses_is_measured_first_and_again() -> None:
    costs = RoundCosts()
    experience = lived([(5, 5)] * 40)
    assert choose([experience], [MOST], costs, [0.0]) == (0,)
    costs = costs.after(1, 0, 0.02).after(1, 0, 0.02)
    assert choose([experience], [MOST], costs, [0.0]) == (5,)
    for _ in range(256):
        costs = costs.after(1, 5, 0.03)
    assert choose([experience], [MOST], costs, [0.0]) == (0,)


def test_what_was_not_measured_goes_by_what_was() -> None:
    assert RoundCosts().table(2, 2) == pytest.approx((1.0, 1.1, 1.2))
    costs = RoundCosts().after(2, 0, 0.02)
    assert costs.table(2, 2) == pytest.approx((0.02, 0.022, 0.024))
    costs = costs.after(2, 2, 0.03)
    assert costs.table(2, 4) == pytest.approx((0.02, 0.025, 0.03, 0.035, 0.04))
    assert RoundCosts().after(1, 3, 0.026).table(1, 0) == pytest.approx((0.02,))
    assert costs.after(2, 0, 0.0) == costs, "a step that took no time tells nothing"


def test_an_outlier_is_bounded_and_old_measurements_of_guesses_are_dropped() -> None:
    costs = RoundCosts()
    for _ in range(20):
        costs = costs.after(1, 0, 0.02)
    assert costs.after(1, 0, 9.0).table(1, 0)[0] <= 0.0231
    costs = costs.after(1, 1, 0.5)
    for _ in range(1024):
        costs = costs.after(1, 0, 0.02)
    assert costs.table(1, 1)[1] == pytest.approx(0.022)


def test_masks_count_to_the_seconds_of_a_round() -> None:
    """The slowest row's, one for itself and one for each of its guesses."""
    half = replace(Experience(), seen=(Seen(100.0, 50.0),))
    sure = replace(Experience(), seen=(Seen(100.0, 99.0),) * MOST)
    costs = RoundCosts()
    for _ in range(PLAIN_SAMPLES):
        for rows in (1, 2):
            for width in range(MOST + 1):
                costs = costs.after(rows, width, 0.010 + 0.0001 * width)
    assert choose([half], [1], costs, [0.0]) == choose([half], [1], costs, [0.001]) == (1,)
    assert choose([half], [1], costs, [0.011]) == (0,)
    assert choose([sure], [MOST], costs, [0.02]) == (MOST,), "each token takes its mask anyway"
    assert choose([half, half], [1, 1], costs, [0.001, 0.011]) == (0, 0)


def test_whether_masks_behind_guesses_may_be_made() -> None:
    assert worth_masks(1.0, 0.0), "no round is known"
    assert worth_masks(0.01, 0.01)
    assert not worth_masks(0.011, 0.01)
    assert mean_mask_s(0.0, 0.5) == 0.5
    assert 0.1 < mean_mask_s(0.1, 0.5) < 0.3
