"""Partial interleaved rotary positions on three axes (model spec 6.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.rotary import torch_halves


def rotary_frequencies(theta: float, rotary_dim: int, device: torch.device) -> Tensor:
    """f_i = theta ** (-2i / R) for i in [0, R/2), fp32 [R/2]."""
    return torch_halves.rotary_frequencies(theta, rotary_dim, device)


def rotary_tables(positions: Tensor, frequencies: Tensor, section: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of each token.

    angle[t, i] = positions[axis(i), t] * frequencies[i]
    axis(i) = 1 if i mod 3 == 1 and i < 3*section[1]; 2 if i mod 3 == 2 and i < 3*section[2]; else 0

    positions    [3, T]   int64: axes time, height, width
    frequencies  [R/2]    fp32
    returns      two of [T, R/2] fp32
    """
    assert positions.shape[0] == 3
    return torch_halves.rotary_tables(positions, frequencies, section)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R channels of each head in the half-split form; the others pass.

    y[i]       = x[i]*cos_i - x[i + R/2]*sin_i       i in [0, R/2)
    y[i + R/2] = x[i + R/2]*cos_i + x[i]*sin_i

    x        [T, H, D]  bf16 or fp32, D >= R
    cos, sin [T, R/2]   fp32
    returns  [T, H, D]  dtype of x, rotated channels rounded once from fp32
    """
    assert x.shape[0] == cos.shape[0]
    assert x.shape[-1] >= 2 * cos.shape[-1]
    return torch_halves.rotate(x, cos, sin)
