"""Triton route of the whole matrix in bfloat16, for products of many columns by a library.

A program of one warp takes some quanta of one row tile. Eight consecutive columns of a row lie in one lane as they are
unpacked, so a lane stores 16 bytes and four lanes 64 consecutive ones; nothing moves between lanes.

No dependent launch: the kernels of a library before and after it know nothing of that.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.low_bit_linear.triton_fragments import (
    group_pairs,
    group_scales,
    load_quantum,
    row_pieces,
    scale_pair,
)


@triton.jit
def _store_piece(out, row, rows, column8, columns8, codes, scale):
    """Eight columns of one row per lane. Codes times scale are exact in fp32, so this rounds once."""
    value = (codes.to(tl.float32) * scale[:, None]).to(out.dtype.element_ty)
    at = out + (row.to(tl.int64) * columns8 + column8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(at, value, mask=((row < rows) & (column8 < columns8))[:, None])


@triton.jit(do_not_specialize=["rows", "columns8", "quanta", "half", "stride"])
def dequantise(
    words, out, rows, columns8, quanta, half, stride,
    BITS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """out[half r + stride tile + g, 8 column8 + i] = scale * code, for row 8 r + g of a tile; bf16."""
    LANE_WORDS: tl.constexpr = 4 if BITS == 8 else BITS
    GROUP8: tl.constexpr = 4 if BITS == 8 else 8  # eights of columns in a group
    WORDS: tl.constexpr = 128 * LANE_WORDS + 32
    tile = tl.program_id(0)
    first = tl.program_id(1) * STEPS
    lane = tl.arange(0, 32)
    row = tile * stride + lane // 4
    for q in tl.range(first, tl.minimum(first + STEPS, quanta), num_stages=1):
        quantum = load_quantum(words + (tile.to(tl.int64) * quanta + q) * WORDS, LANE_WORDS)
        scales = group_scales(quantum, LANE_WORDS)
        for i in tl.static_range(4):
            o = group_pairs(quantum, i, BITS)
            scale_upper, scale_lower = scale_pair(scales[i])
            for h in tl.static_range(GROUP8 // 4):
                upper, lower = row_pieces(o, 8 * h)
                column8 = (q * 4 + i) * GROUP8 + 4 * h + lane % 4
                _store_piece(out, row, rows, column8, columns8, upper, scale_upper.reshape([32]))
                _store_piece(out, row + half, rows, column8, columns8, lower, scale_lower.reshape([32]))
