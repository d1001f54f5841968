"""Counters of guesses (speculation spec, 1.7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.speculation.statistics import DraftStatistics, landed

ROUNDS = st.lists(
    st.integers(0, 15).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.booleans())), max_size=30
)


@given(ROUNDS, st.integers(0, 30))
def test_sums_are_what_happened(rounds: list[tuple[int, int, bool]], cut: int) -> None:
    parts = [landed(drafted, accepted, copied=copied) for drafted, accepted, copied in rounds]
    total = sum(parts, DraftStatistics())
    assert total == sum(parts[:cut], DraftStatistics()) + sum(parts[cut:], DraftStatistics())
    assert total.rounds + total.fallback_steps == len(rounds)
    assert (total.drafted, total.accepted) == (sum(row[0] for row in rounds), sum(row[1] for row in rounds))
    assert sum(total.drafted_per_position) == total.drafted
    assert sum(total.accepted_per_position) == total.accepted
    for place, count in enumerate(total.accepted_per_position):
        assert count == sum(accepted > place for _, accepted, _ in rounds)
    copied = [row for row in rounds if row[0] and row[2]]
    assert (total.copied_rounds, total.copied_drafted) == (len(copied), sum(row[0] for row in copied))
    tokens = sum(accepted + 1 for _, accepted, _ in rounds)
    assert tokens == total.rounds + total.accepted + total.fallback_steps


def test_the_dict_has_the_names_of_the_request_log() -> None:
    total = landed(3, 1) + landed(0, 0) + landed(5, 4, copied=True)
    assert total.as_dict("mtp", 3) == {
        "backend": "mtp",
        "draft_window": 3,
        "rounds": 2,
        "drafted_tokens": 8,
        "accepted_tokens": 5,
        "fallback_steps": 1,
        "accepted_per_position": [2, 1, 1, 1],
        "ngram_rounds": 1,
        "ngram_drafted_tokens": 5,
        "ngram_accepted_tokens": 4,
    }
    assert DraftStatistics().as_dict("none", 0)["accepted_per_position"] == []
    assert landed(3, 1).as_dict("mtp", 3)["accepted_per_position"] == [1, 0, 0]


def test_rates() -> None:
    total = landed(4, 3) + landed(4, 1) + landed(0, 0)
    assert (total.acceptance, total.tokens_per_round) == (0.5, 3.0)
    assert (DraftStatistics().acceptance, DraftStatistics().tokens_per_round) == (None, None)


def test_more_right_guesses_than_guesses_are_a_fault() -> None:
    with pytest.raises(AssertionError):
        landed(2, 3)
