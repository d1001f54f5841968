"""Triton route: one program per row, the whole row in registers."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

WARPS = 8


@triton.jit
def add_norm_row(residual, y, weight, out, columns, eps, SIZE: tl.constexpr, ADDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, SIZE)
    kept = column < columns
    value = tl.load(residual + row + column, mask=kept, other=0.0)
    if ADDS:
        value = (value.to(tl.float32) + tl.load(y + row + column, mask=kept, other=0.0).to(tl.float32)).to(tl.bfloat16)
        tl.store(residual + row + column, value, mask=kept)
    wide = value.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / columns + eps)
    scaled = wide * factor * (tl.load(weight + column, mask=kept, other=0.0) + 1.0)
    tl.store(out + row + column, scaled.to(tl.bfloat16), mask=kept)


def add_offset_rmsnorm(residual: Tensor, y: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> None:
    tokens, columns = out.shape
    add_norm_row[(tokens,)](
        residual, residual if y is None else y, weight, out, columns, eps,
        SIZE=triton.next_power_of_2(columns), ADDS=y is not None, num_warps=WARPS,
    )  # fmt: skip
