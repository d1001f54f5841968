"""Float64 oracle."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_norm_ref(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide, gate = o.double(), z.double()
    scaled = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()
    return scaled * gate * torch.sigmoid(gate)
