"""Device functions of single elements for chunks, in Triton, and for rounds, which compile the same text as Gluon."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.gdn import torch_blocks

L2_EPS = tl.constexpr(torch_blocks.L2_EPS)


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
