"""Gate of the dense feed-forward."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.silu_mul import torch_halves


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu of the first half of each row times the second half (model spec 6.6).

    y[t, i] = silu(gate_up[t, i]) * gate_up[t, I + i]

    gate_up  [T, 2I] bf16 or fp32
    returns  [T, I]  same dtype, contiguous, rounded once from fp32
    effects  none
    """
    assert gate_up.shape[-1] % 2 == 0
    return torch_halves.silu_mul(gate_up)
