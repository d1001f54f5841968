"""Residual add and norm in one pass over row-major activations, for prefill chunks."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.rmsnorm import torch_rows


def add_offset_rmsnorm(residual: Tensor, y: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> None:
    """residual[t] += y[t]; out[t] = residual[t] / rms(residual[t]) * (1 + weight)

    residual  [T, D] bf16, rows contiguous; rounded once, the norm is that of the rounded values
    y         [T, D] bf16 or None, which adds nothing; may be `out`
    weight    [D]    fp32, zero-centred
    eps       inside the root
    out       [T, D] bf16, rounded once from fp32
    effects   writes residual and out; the bits of a row depend on that row alone
    """
    assert residual.shape == out.shape
    if out.is_cuda:
        from ninfer.kernels.rmsnorm import triton_added

        triton_added.add_offset_rmsnorm(residual, y, weight, eps, out)
        return
    if y is not None:
        residual.copy_(residual.float() + y.float())
    out.copy_(torch_rows.offset_rmsnorm(residual, weight, eps))
