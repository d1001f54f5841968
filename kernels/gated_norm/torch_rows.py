"""Plain-torch route."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.numerics.activations import reciprocal_root, silu


def gated_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = o.float()
    mean = (wide * wide).sum(-1, keepdim=True) / o.shape[-1]
    return (wide * reciprocal_root(mean + eps) * weight * silu(z.float())).to(z.dtype)
