"""Triton route: one program per token and half, the whole half in registers."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ninfer.kernels.low_bit_linear.buffers import Columns

WARPS = 8


@triton.jit(do_not_specialize=["plane"])
def joined_norm_row(
    left, right, left_weight, right_weight, out, columns, plane, eps, SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    """WIDTH: of columns in the order of low-bit products, a group of them `plane` pieces long; 0 for rows."""
    token = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1)
    column = tl.arange(0, SIZE)
    kept = column < columns
    if half == 0:
        value = tl.load(left + token * columns + column, mask=kept, other=0.0).to(tl.float32)
        weight = tl.load(left_weight + column, mask=kept, other=0.0)
    else:
        value = tl.load(right + token * columns + column, mask=kept, other=0.0).to(tl.float32)
        weight = tl.load(right_weight + column, mask=kept, other=0.0)
    factor = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / columns + eps)
    scaled = (value * factor * (weight + 1.0)).to(tl.bfloat16)
    at = half * columns + column
    if WIDTH == 0:
        tl.store(out + token * 2 * columns + at, scaled, mask=kept)
    else:
        corner = out + (token // WIDTH * plane * WIDTH + token % WIDTH) * 32
        tl.store(corner + at // 32 * (32 * WIDTH) + at % 32, scaled, mask=kept)


def joined_offset_rmsnorm(
    left: Tensor, right: Tensor, left_weight: Tensor, right_weight: Tensor, eps: float, out: Tensor | Columns
) -> None:
    tokens, columns = left.shape
    rows = isinstance(out, Tensor)
    joined_norm_row[(tokens, 2)](
        left, right, left_weight, right_weight, out if rows else out.storage, columns,
        0 if rows else out.storage.shape[1], eps,
        SIZE=triton.next_power_of_2(columns), WIDTH=0 if rows else out.width, num_warps=WARPS,
    )  # fmt: skip
