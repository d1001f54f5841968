"""silu(gate) * up of row-major activations into a given tensor, for prefill chunks."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.silu_mul import torch_halves


def silu_mul_into(gate_up: Tensor, out: Tensor) -> None:
    """out[t, i] = silu(gate_up[t, i]) * gate_up[t, I + i]

    gate_up  [T, 2 I] bf16, rows contiguous
    out      [T, I]   bf16, rounded once from fp32
    effects  writes out
    """
    assert gate_up.shape[1] == 2 * out.shape[1]
    if out.is_cuda:
        from ninfer.kernels.silu_mul import triton_into

        triton_into.silu_mul_into(gate_up, out)
        return
    out.copy_(torch_halves.silu_mul(gate_up))
