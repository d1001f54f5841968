"""silu(gate) * up of row-major activations into a given tensor, for prefill chunks."""

from __future__ import annotations

from torch import Tensor


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
    gate, up = gate_up.float().chunk(2, dim=-1)
    out.copy_(gate / (1.0 + (-gate).exp()) * up)
