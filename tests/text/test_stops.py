from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer.text.stops import StopMatch, StopScanner

LETTERS = st.text("ab", max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def whole_answer(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the shortest prefix that ends with a stop string, and of several such strings the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def scan(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    scanner = StopScanner(stops)
    out = ""
    for piece in pieces:
        released, match = scanner.push(piece)
        out += released
        if match is not None:
            return out, match.stop
    return out + scanner.finish(), None


@settings(deadline=None)
@given(LETTERS, STOPS, st.data())
@example("aabaab", ["aabaaab", "baab"], None)
def test_every_split_gives_the_whole_answer(text: str, stops: list[str], draw: st.DataObject | None) -> None:
    cuts = [] if draw is None else sorted(draw.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = whole_answer(text, stops)
    assert scan(pieces, stops) == expected
    assert scan(list(text), stops) == expected


@settings(deadline=None)
@given(LETTERS, STOPS)
def test_no_more_is_held_than_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    match = scanner.push(text)[1]
    if match is None:
        starts = [stop[:n] for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        assert scanner.finish() == max(starts, key=len, default="")
        assert scanner.finish() == ""


def test_a_match_names_its_place_in_the_last_piece() -> None:
    scanner = StopScanner(["END", "x"])
    assert scanner.push("Café E") == ("Café ", None)
    assert scanner.push("ND and more") == ("", StopMatch("END", 2))


def test_of_strings_that_end_together_the_first_begun_counts() -> None:
    assert scan(["an END here"], ["D", "END", "ND"]) == ("an ", "END")


def test_the_string_that_is_complete_first_counts() -> None:
    assert scan(["xabcd"], ["abcd", "bc"]) == ("xa", "bc")


def test_finish_forgets_what_was_matched() -> None:
    scanner = StopScanner(["ab"])
    assert scanner.push("a") == ("", None)
    assert scanner.finish() == "a"
    assert scanner.push("b") == ("b", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopScanner(["a", ""])


def test_a_long_repetitive_stop_string_costs_no_more_per_character() -> None:
    length = 20_000
    scanner = StopScanner(["a" * length + "b"])
    for _ in range(length // 100):
        scanner.push("a" * 100)
    # A suffix search for every character would compare some 10**9 characters by now.
    assert scanner.push("a" * 100)[0] == "a" * 100
    assert scanner.push("b") == ("", StopMatch("a" * length + "b", 1))


@settings(deadline=None)
@given(st.text("ab", min_size=1, max_size=40), st.text("ab", max_size=60))
def test_long_stop_strings_that_repeat_themselves(stop: str, text: str) -> None:
    assert scan([text, stop], [stop]) == whole_answer(text + stop, [stop])


def test_a_stop_string_costs_what_the_text_matches_of_it() -> None:
    begun = time.process_time()
    scanner = StopScanner(["ab" * 50_000_000])
    assert scanner.push("aba") == ("", None)
    assert scanner.push("ababb") == ("abaababb", None)
    assert time.process_time() - begun < 1.0  # every letter of it looked at once would take many seconds
