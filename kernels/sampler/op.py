"""The sampling law (speculation spec, section 2) and its counter-based random numbers."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from torch import Tensor

from ninfer.kernels.sampler import torch_candidates
from ninfer.types import Sampling

MASK64 = (1 << 64) - 1
MAX_CANDIDATES = torch_candidates.MAX_CANDIDATES


class Purpose(enum.IntEnum):
    """What a random number is drawn for: part of its key (speculation spec 2.2)."""

    PREFILL = 0
    DECODE = 1
    ACCEPT = 2
    CORRECTION = 3
    BONUS = 4
    PROPOSAL = 5


def _mix(x: int) -> int:
    """SplitMix64 finaliser modulo 2**64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def random_bits(seed: int, position: int, purpose: Purpose) -> int:
    """The 24 random bits that belong to a key: independent of lane, batch and history."""
    assert 0 <= seed <= MASK64
    key = _mix(seed ^ (((position & 0xFFFFFFFF) * 0xD1B54A32D192ED03) & MASK64))
    return _mix(key ^ (purpose << 21)) >> 40


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """:func:`random_bits` as a number in [0, 1)."""
    return random_bits(seed, position, purpose) * 2.0**-24


def sample(logits: Tensor, counts: Tensor, laws: Sequence[Sampling], uniforms: Sequence[float]) -> Tensor:
    """Draw one token per row by its own law.

    1  x = logits - presence * [count > 0] - frequency * count
    2  temperature 0: the largest x, lowest id on ties
    3  candidates: the top_k largest x, lowest ids on ties; top_k outside 1..19 means 20
    4  w_j = exp((x_j - x_0) / temperature) in rank order; W = their sum
    5  stop before the first j with w_j < min_p * w_0; stop after the first whose running sum >= top_p * W (top_p < 1)
    6  first j whose running share of the kept sum exceeds the uniform number, else the last kept

    logits    [B, V]  fp32, finite, or minus infinity for an id that is not drawn: it is no candidate. One per row is
    counts    [B, V]  int32: generated tokens so far
    laws      B of them
    uniforms  B numbers in [0, 1)
    returns   [B] int64
    effects   none
    """
    assert logits.shape == counts.shape
    assert logits.shape[0] == len(laws) == len(uniforms)
    return torch_candidates.sample(logits, counts, laws, uniforms)
