"""Output norm of the gated DeltaNet."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.gated_norm import torch_rows


def gated_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Plain root-mean-square norm per head, then the SiLU gate (model spec 6.4, step 7).

    y[t, h, d] = o[t, h, d] / sqrt(mean_d(o[t, h, d]**2) + eps) * weight[d] * silu(z[t, h, d])

    o        [T, H, D] fp32 or bf16
    z        [T, H, D] same dtype
    weight   [D]       fp32, shared by all heads
    returns  [T, H, D] dtype of z, rounded once from fp32
    effects  none
    """
    assert o.shape == z.shape
    assert weight.shape == o.shape[-1:]
    return torch_rows.gated_norm(o, z, weight, eps)
