"""Triton route: a program decodes a piece of one row."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ninfer.kernels.embedding.stored import StoredRows

BLOCK = 1024
WARPS = 4


@triton.jit
def stored_code(base, high, column, kept, BITS: tl.constexpr):
    """Signed codes of columns of one row, int32."""
    if BITS == 8:
        return tl.load(base + column, mask=kept, other=0).to(tl.int8, bitcast=True).to(tl.int32)
    else:
        code = tl.load(base + column // 2, mask=kept, other=0).to(tl.int32) >> (column % 2 * 4) & 15
        if BITS > 4:
            WIDTH: tl.constexpr = BITS - 4
            at = column * WIDTH
            above = tl.load(high + at // 8, mask=kept, other=0).to(tl.int32) >> (at % 8) & ((1 << WIDTH) - 1)
            code |= above << 4
        HALF: tl.constexpr = 1 << (BITS - 1)
        return (code ^ HALF) - HALF


@triton.jit
def gather_row(
    ids, through, base, high, scales, out, columns, base_row, high_row, scale_row,
    THROUGH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    kept = column < columns
    at = tl.load(through + token) if THROUGH else token
    row = tl.load(ids + at).to(tl.int64)
    if BITS == 16:
        value = tl.load(base + row * base_row + column, mask=kept, other=0.0)
    else:
        code = stored_code(base + row * base_row, high + row * high_row, column, kept, BITS)
        scale = tl.load(scales + row * scale_row + column // GROUP, mask=kept, other=0.0)
        value = (code.to(tl.float32) * scale.to(tl.float32)).to(tl.bfloat16)
    tl.store(out + token * columns + column, value, mask=kept)


def gather(ids: Tensor, table: StoredRows, out: Tensor, through: Tensor | None) -> None:
    high = table.base if table.high is None else table.high
    scales = table.base if table.scales is None else table.scales
    gather_row[(out.shape[0], triton.cdiv(table.columns, BLOCK))](
        ids, ids if through is None else through, table.base, high, scales, out,
        table.columns, table.base.stride(0), high.stride(0), scales.stride(0),
        THROUGH=through is not None, BITS=table.bits, GROUP=table.group, SIZE=BLOCK, num_warps=WARPS,
    )  # fmt: skip
