"""Plain-torch route."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.numerics.activations import silu


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (silu(gate) * up).to(gate_up.dtype)
