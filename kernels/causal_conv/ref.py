"""Float64 oracle, written as the sum over taps."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_conv_ref(columns: Tensor, taps: Tensor) -> Tensor:
    width = taps.shape[0]
    windows = columns.double().unfold(1, width, 1)  # [B, T, C, W]
    total = (windows * taps.double().t()).sum(-1)
    return total * torch.sigmoid(total)
