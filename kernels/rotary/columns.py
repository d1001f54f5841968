"""Rotary angles of text tokens, whose three coordinates are one position (model spec 6.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_columns(first: Tensor, per_row: int, frequencies: Tensor, cos: Tensor, sin: Tensor) -> None:
    """cos, sin of angle[b * n + l, i] = (first[b] + l) * frequencies[i], with n = per_row

    first        [B]     int32: position of each row's first token
    frequencies  [R / 2] fp32, R / 2 a power of two
    cos, sin     [B * per_row, R / 2] fp32
    effects      writes cos and sin
    """
    assert cos.shape == sin.shape == (first.shape[0] * per_row, frequencies.shape[0])
    if cos.is_cuda:
        from ninfer.kernels.rotary import triton_columns

        triton_columns.rotary_columns(first, per_row, frequencies, cos, sin)
        return
    positions = first[:, None] + torch.arange(per_row, dtype=torch.int32, device=first.device)
    angles = positions.reshape(-1, 1).float() * frequencies
    cos.copy_(torch.cos(angles))
    sin.copy_(torch.sin(angles))
