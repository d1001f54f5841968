"""Plain-torch route."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.numerics.activations import narrowed, silu, widened


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = widened(gate_up).chunk(2, dim=-1)
    return narrowed(silu(gate).mul_(up), gate_up.dtype)
