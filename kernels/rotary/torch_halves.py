"""Plain-torch route: angles in fp32, as two products and one sum per channel."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_frequencies(theta: float, rotary_dim: int, device: torch.device) -> Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64, device=device).float() / rotary_dim
    return 1.0 / (theta**exponents)


def rotary_tables(positions: Tensor, frequencies: Tensor, section: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    pairs = torch.arange(frequencies.shape[0], device=positions.device)
    axis = torch.zeros_like(pairs)
    for number in (1, 2):
        axis[(pairs % 3 == number) & (pairs < 3 * section[number])] = number
    angles = positions.t()[:, axis].float() * frequencies
    return torch.cos(angles), torch.sin(angles)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
    return torch.cat([turned, x[..., 2 * half :]], dim=-1)
