"""Plain-torch route."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.numerics.activations import narrowed, reciprocal_root, silu, widened


def gated_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = widened(o)
    mean = (wide * wide).sum(-1, keepdim=True).div_(o.shape[-1])
    normed = (wide * reciprocal_root(mean.add_(eps))).mul_(weight)
    return narrowed(normed.mul_(silu(widened(z))), z.dtype)
