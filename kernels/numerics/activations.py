"""Nonlinear functions built from operations that give one value the same bits wherever it stands in a tensor.

`torch.sigmoid`, `silu` and `softplus` on a CPU use another formula for the elements that do not fill a vector register,
so their bits depend on an element's place. `exp`, `log1p`, `sqrt`, the four rules and comparisons do not.
All functions take and return fp32 of any shape. Steps work in place where they own the tensor: a token is made of
some two thousand small operations, and what each costs beside its arithmetic is half of the token's time.
"""

from __future__ import annotations

import torch
from torch import Tensor

SOFTPLUS_LINEAR_FROM = 20.0  # model spec 6.4: softplus(x) = x above this


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); exactly 0 once exp(-x) overflows."""
    return torch.neg(x).exp_().add_(1.0).reciprocal_()


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), evaluated as x / (1 + exp(-x))."""
    return x / torch.neg(x).exp_().add_(1.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), and x itself above 20."""
    return torch.where(x > SOFTPLUS_LINEAR_FROM, x, x.clamp(max=SOFTPLUS_LINEAR_FROM).exp_().log1p_())


def reciprocal_root(x: Tensor) -> Tensor:
    """1 / sqrt(x), both steps correctly rounded."""
    return torch.sqrt(x).reciprocal_()


def widened(x: Tensor) -> Tensor:
    """The same values in fp32; no operation at all where they are already."""
    return x if x.dtype is torch.float32 else x.float()


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 values rounded to `dtype`; no operation at all where that is fp32."""
    return x if x.dtype is dtype else x.to(dtype)
