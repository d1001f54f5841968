"""Float64 oracle."""

from __future__ import annotations

import torch
from torch import Tensor


def plain_rmsnorm_ref(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


def offset_rmsnorm_ref(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return plain_rmsnorm_ref(x, weight.double() + 1.0, eps)
