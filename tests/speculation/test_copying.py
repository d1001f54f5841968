"""Guesses copied from the request's own text, against a search through all of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.speculation.copying import LONGEST_MATCH, CopyIndex

BARRIERS = frozenset({7})
TEXTS = st.lists(st.sampled_from([0, 1, 2, 3, 248_000]) | st.integers(0, 7), max_size=80)


def index_of(text: list[int], min_match: int = 3) -> CopyIndex:
    index = CopyIndex(1000, min_match, BARRIERS)
    index.extend(text)
    return index


def agreeing(text: list[int], place: int) -> int:
    """Tokens in front of a place that are those at the end of the text, up to a barrier."""
    count = 0
    while count < min(place, LONGEST_MATCH) and text[place - 1 - count] == text[-1 - count] not in BARRIERS:
        count += 1
    return count


def followed(text: list[int], place: int, most: int) -> tuple[int, ...]:
    """What follows a place, the text going on with the guesses themselves, up to a barrier."""
    longer = list(text)
    for _ in range(most):
        token = longer[place + len(longer) - len(text)]
        if token in BARRIERS:
            break
        longer.append(token)
    return tuple(longer[len(text) :])


@given(TEXTS, st.integers(1, 5), st.integers(1, 20))
def test_a_guess_is_what_followed_the_same_tokens_before(text: list[int], min_match: int, most: int) -> None:
    guesses = index_of(text, min_match).propose(most)
    places = [place for place in range(1, len(text)) if agreeing(text, place) >= min_match]
    if guesses:
        assert guesses in {followed(text, place, most) for place in places}
    elif len(places) == 1:
        assert not followed(text, places[0], most), "the only match may not be missed"


@given(TEXTS, st.integers(1, 4))
def test_the_longest_of_few_matches_is_taken_the_latest_among_equals(text: list[int], min_match: int) -> None:
    places = [place for place in range(1, len(text)) if agreeing(text, place) >= min_match]
    if 0 < len(places) <= 8:
        best = max(places, key=lambda place: (agreeing(text, place), place))
        assert index_of(text, min_match).propose(6) == followed(text, best, 6)


@given(TEXTS, st.lists(st.integers(0, 80), max_size=6), st.integers(1, 15))
def test_how_the_text_arrived_makes_no_difference(text: list[int], cuts: list[int], most: int) -> None:
    pieces = CopyIndex(1000, 3, BARRIERS)
    begin = 0
    for end in [*sorted(cuts), len(text)]:
        pieces.extend(text[begin:end])
        begin = max(begin, end)
    assert len(pieces) == len(text)
    assert pieces.propose(most) == index_of(text).propose(most)


@given(TEXTS, st.integers(0, 15), st.integers(1, 6))
def test_whether_there_are_guesses_does_not_depend_on_how_many_may_be(text: list[int], most: int, least: int) -> None:
    index = index_of(text)
    guesses, all_of_them = index.propose(most, least), index.propose(15, least)
    assert guesses == all_of_them[:most]
    assert not all_of_them or len(all_of_them) >= least
    assert BARRIERS.isdisjoint(all_of_them)


def test_a_repetition_is_guessed_on_beyond_its_end() -> None:
    assert index_of([1, 2, 3, 1, 2, 3, 1]).propose(7) == (2, 3, 1, 2, 3, 1, 2)


def test_a_source_ends_at_a_special_token_and_a_match_does_not_span_one() -> None:
    assert index_of([1, 2, 3, 4, 7, 5, 0, 1, 2, 3]).propose(9) == (4,)
    assert index_of([1, 2, 3, 4, 7, 5, 0, 1, 2, 3]).propose(9, least=2) == ()
    assert index_of([1, 7, 3, 4, 5, 1, 7, 3]).propose(9) == ()
    assert index_of([1, 2, 3, 7, 1, 2, 3]).propose(9) == ()


@pytest.mark.parametrize("short", [[], [1], [1, 1], [1, 2, 3]])
def test_a_short_text_has_no_guesses(short: list[int]) -> None:
    assert index_of(short).propose(5) == ()


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_memory_is_eight_bytes_a_token_and_a_table(seed: int) -> None:
    source = random.Random(seed)
    index = CopyIndex(262_144)
    text = [source.randrange(248_000) for _ in range(20_000)]
    copied = source.randrange(10_000)
    index.extend([*text, *text[copied : copied + 40]])
    assert index.bytes <= 8 * (len(index) + 1) + (1 << 20)
    assert index.propose(15) == tuple(text[copied + 40 : copied + 55])


def test_text_beyond_the_capacity_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="room for 4"):
        CopyIndex(4, 2).extend(range(5))
