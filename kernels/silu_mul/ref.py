"""Float64 oracle."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_mul_ref(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up
