"""Device functions that chunks share with rounds, which have them in Gluon: that calls no function of Triton's."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

L2_EPS = tl.constexpr(1e-6)  # model spec, section 0: inside the root, on the sum


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def log_decay(a, decay_rate, dt_bias):
    """decay_rate * softplus(a + dt_bias); the quotient removes the rounding of 1 + e from the logarithm."""
    x = a + dt_bias
    e = tl.exp(tl.minimum(x, 20.0))
    one = 1.0 + e
    soft = tl.where(one == 1.0, e, tl.log(one) * (e / tl.where(one == 1.0, 1.0, one - 1.0)))
    return decay_rate * tl.where(x > 20.0, x, soft)
