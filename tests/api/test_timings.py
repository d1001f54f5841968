"""The ``timings`` object: the sums of section 5.4 and no number that is not finite."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ninfer.actors.messages import Usage
from ninfer.api.timings import Moments, timings


def test_a_plain_case() -> None:
    assert timings(Usage(58, 40, 11, 7), Moments(10.0, 11.0, 13.0, 15.0)) == {
        "cache_n": 40,
        "prompt_n": 18,
        "prompt_ms": 2000.0,
        "prompt_per_token_ms": 2000.0 / 18,
        "prompt_per_second": 9.0,
        "predicted_n": 11,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 200.0,
        "predicted_per_second": 5.0,
        "ttft_ms": 3000.0,
    }


at = st.none() | st.floats(0, 1e6)
count = st.integers(0, 1 << 20)


@given(count, count, count, st.floats(0, 1e6), at, at, at)
def test_numbers_are_finite_and_the_prompt_adds_up(
    cached: int, computed: int, generated: int, received: float, admitted: float | None, first: float | None,
    last: float | None,
) -> None:  # fmt: skip
    result = timings(Usage(cached + computed, cached, generated, 0), Moments(received, admitted, first, last))
    assert result["cache_n"] + result["prompt_n"] == cached + computed  # type: ignore[operator]
    assert all(math.isfinite(value) for value in result.values())  # type: ignore[arg-type]


def test_a_time_too_short_to_divide_by_counts_as_none() -> None:
    result = timings(Usage(0, 0, 2, 0), Moments(0.0, None, 0.0, 5e-324))
    assert result["predicted_per_second"] == 0.0
