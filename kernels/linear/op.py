"""Linear maps without bias: the products with the model's weights."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.linear import torch_rows


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """y[t, n] = sum_k x[t, k] * weight[n, k]

    x        [T, K] bf16 or fp32, T >= 1
    weight   [N, K] same dtype, contiguous
    returns  [T, N] same dtype, contiguous; accumulated in fp32, rounded once
    effects  none; the bits of y[t] depend on x[t] and the weight alone, never on T or t
    """
    assert x.shape[-1] == weight.shape[1]
    assert x.dtype == weight.dtype
    return torch_rows.linear(x, weight)
