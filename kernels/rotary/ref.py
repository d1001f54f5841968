"""Float64 oracle, one channel pair at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotate_ref(x: Tensor, positions: Tensor, theta: float, rotary_dim: int, section: tuple[int, int, int]) -> Tensor:
    y = x.double().clone()
    for t in range(x.shape[0]):
        for i in range(rotary_dim // 2):
            axis = i % 3 if i % 3 and i < 3 * section[i % 3] else 0
            angle = int(positions[axis, t]) * theta ** (-2 * i / rotary_dim)
            cos, sin = math.cos(angle), math.sin(angle)
            a, b = x[t, :, i].double(), x[t, :, i + rotary_dim // 2].double()
            y[t, :, i] = a * cos - b * sin
            y[t, :, i + rotary_dim // 2] = b * cos + a * sin
    return y


def frequencies_ref(theta: float, rotary_dim: int) -> Tensor:
    return torch.tensor([theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)], dtype=torch.float64)
