"""The ``timings`` object (serving spec, 5.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ninfer.actors.messages import Usage


@dataclass(frozen=True, slots=True)
class Moments:
    """When things happened to a request, on one monotonic scale in seconds; None for what did not happen."""

    received_at: float
    admitted_at: float | None
    first_token_at: float | None
    last_token_at: float | None


def _between_ms(begin: float | None, end: float | None) -> float:
    return 0.0 if begin is None or end is None else 1000.0 * (end - begin)


def _ratio(numerator: float, denominator: float) -> float:
    ratio = numerator / denominator if denominator > 0 else 0.0
    return ratio if math.isfinite(ratio) else 0.0  # a denominator may be as good as zero


def timings(usage: Usage, moments: Moments) -> dict[str, object]:
    """Counts and rates; a zero denominator gives 0.0. `cache_n + prompt_n` is the whole prompt."""
    prompt_n = usage.prompt_tokens - usage.cached_tokens
    prompt_ms = _between_ms(moments.admitted_at, moments.first_token_at)
    predicted_ms = _between_ms(moments.first_token_at, moments.last_token_at)
    intervals = max(usage.completion_tokens - 1, 0)
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, prompt_n),
        "prompt_per_second": _ratio(1000.0 * prompt_n, prompt_ms),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, intervals),
        "predicted_per_second": _ratio(1000.0 * intervals, predicted_ms),
        "ttft_ms": _between_ms(moments.received_at, moments.first_token_at),
    }
