"""What changes while the model is trained, as functions of the share of the time budget that is used up.

Time and not steps, because the budget of a lent machine is time and its speed is not known beforehand.
"""

from __future__ import annotations

# (from this share on, tokens of a row): short documents first, since retrieval is learnt on them and then stretched.
LENGTHS = ((0.0, 1024), (0.10, 2048), (0.25, 8192), (0.75, 16384))
WARM_UP, DECAY_FROM, LEAST = 0.01, 0.55, 0.02
ROUND_FROM = 0.72
DRAFT_WEIGHT = 0.3


def row_length(done: float, lengths: tuple[tuple[float, int], ...] = LENGTHS) -> int:
    """Tokens of a row once `done` of the budget, in [0, 1], is used."""
    return max((begin, length) for begin, length in lengths if begin <= done)[1]


def rate(done: float) -> float:
    """Factor of the learning rates: a short rise, a plateau, a straight fall."""
    rise = min(1.0, done / WARM_UP + 0.02)
    fall = min(1.0, (1.0 - done) / (1.0 - DECAY_FROM))
    return rise * max(LEAST, fall)


def rounding(done: float) -> float:
    """How far weights are moved towards their stored values."""
    return 1.0 if done >= ROUND_FROM else 0.0
