"""Plain-torch route: fp32 inside, the sum of squares along the contiguous dimension."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.numerics.activations import narrowed, reciprocal_root, widened


def offset_rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return plain_rmsnorm(x, weight + 1.0, eps)


def plain_rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = widened(x)
    mean = (wide * wide).sum(-1, keepdim=True).div_(x.shape[-1])
    return narrowed((wide * reciprocal_root(mean.add_(eps))).mul_(weight), x.dtype)
