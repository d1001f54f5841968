"""Root-mean-square norms of the family (model spec, section 0)."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.rmsnorm import torch_rows


def offset_rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to unit root mean square, then by one plus the zero-centred weight.

    y[..., d] = x[..., d] / sqrt(mean_d(x[..., d]**2) + eps) * (1 + weight[d])

    x        [..., D] bf16 or fp32, last dimension contiguous
    weight   [D]      fp32
    eps      > 0, inside the root
    returns  [..., D] dtype of x, rounded once from fp32
    effects  none; a row's bits depend on that row alone
    """
    assert weight.shape == x.shape[-1:]
    return torch_rows.offset_rmsnorm(x, weight, eps)


def plain_rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As :func:`offset_rmsnorm` with the weight itself as the factor.

    y[..., d] = x[..., d] / sqrt(mean_d(x[..., d]**2) + eps) * weight[d]
    """
    assert weight.shape == x.shape[-1:]
    return torch_rows.plain_rmsnorm(x, weight, eps)
