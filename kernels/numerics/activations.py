"""Nonlinear functions built from operations that give one value the same bits wherever it stands in a tensor.

`torch.sigmoid`, `silu` and `softplus` on a CPU use another formula for the elements that do not fill a vector register,
so their bits depend on an element's place. `exp`, `log1p`, `sqrt`, the four rules and comparisons do not.
All functions take and return fp32 of any shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

SOFTPLUS_LINEAR_FROM = 20.0  # model spec 6.4: softplus(x) = x above this


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); exactly 0 once exp(-x) overflows."""
    return 1.0 / (torch.exp(-x) + 1.0)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), evaluated as x / (1 + exp(-x))."""
    return x / (torch.exp(-x) + 1.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), and x itself above 20."""
    return torch.where(x > SOFTPLUS_LINEAR_FROM, x, torch.log1p(torch.exp(x.clamp(max=SOFTPLUS_LINEAR_FROM))))


def reciprocal_root(x: Tensor) -> Tensor:
    """1 / sqrt(x), both steps correctly rounded."""
    return 1.0 / torch.sqrt(x)
