"""Triton route: one program per token."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["per_row"])
def rotary_token(first, frequencies, cos, sin, per_row, HALF: tl.constexpr):
    token = tl.program_id(0)
    i = tl.arange(0, HALF)
    position = tl.load(first + token // per_row) + token % per_row
    angle = position.to(tl.float32) * tl.load(frequencies + i)
    tl.store(cos + token * HALF + i, tl.cos(angle))
    tl.store(sin + token * HALF + i, tl.sin(angle))


def rotary_columns(first: Tensor, per_row: int, frequencies: Tensor, cos: Tensor, sin: Tensor) -> None:
    rotary_token[(cos.shape[0],)](first, frequencies, cos, sin, per_row, HALF=frequencies.shape[0], num_warps=1)
