"""Named distances between a kernel and its float64 oracle. If a test fails, the kernel is wrong, not the number.

An element may differ by `relative` of its own size plus `scaled` of the largest element: reductions lose what cancels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tolerance:
    relative: float
    scaled: float


# A handful of fp32 operations per element.
FP32_ELEMENTWISE = Tolerance(relative=2e-6, scaled=1e-7)
# Sums of up to some thousand fp32 products.
FP32_REDUCTION = Tolerance(relative=1e-5, scaled=4e-6)
# fp32 recurrences over some hundred steps.
FP32_RECURRENCE = Tolerance(relative=1e-4, scaled=2e-5)
# One rounding to bf16 (half a unit in the last of eight bits) after fp32 arithmetic.
BF16_ROUNDED = Tolerance(relative=2**-8, scaled=4e-6)


def assert_within(tolerance: Tolerance, actual: Tensor, expected: Tensor) -> None:
    """Every element of `actual` is finite and as near to the float64 `expected` as `tolerance` says."""
    assert actual.shape == expected.shape
    assert bool(torch.isfinite(actual).all()), "not finite"
    wide = expected.double()
    allowed = tolerance.relative * wide.abs() + tolerance.scaled * wide.abs().max()
    excess = (actual.double() - wide).abs() - allowed
    assert float(excess.max()) <= 0, f"off by {float(excess.max())} more than allowed"
