"""Merging of partial results of a query: sums over units in steps of eight, in order.

Eight queries at a time. Every thread loads the maxima and sums that go with its values, so nothing changes hands; sums
are fused multiply-adds in the order of units, so a query's bits are the same in every round.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.kv_codec import ptx

MERGED_ROWS = tl.constexpr(8)
_STEP = tl.constexpr(8)
_LOWEST = tl.constexpr(-1e30)
_LOG2_E = tl.constexpr(1.4426950408889634)
_DIVIDE = tl.constexpr(ptx.DIVIDE)


@triton.jit
def merge_rows(row):
    """Numbers of eight queries from `row` on, [1, 8, 1, 1]."""
    return row + tl.arange(0, MERGED_ROWS)[None, :, None, None]


@triton.jit
def merge_columns():
    """Columns of a head as values are held, [32, 1, 2, 4]: a warp has two rows, a lane four neighbours of each half.
    The compiler deals dimensions to lanes, then warps, from the first on."""
    half = tl.arange(0, 2)[None, None, :, None] * 128
    return half + tl.arange(0, 32)[:, None, None, None] * 4 + tl.arange(0, 4)[None, None, None, :]


@triton.jit
def merged(acc, ml, units, query, count, R: tl.constexpr):
    """Queries by :func:`merge_rows`, those below `count`: maximum, sum [32, 8, 1, 1], values [32, 8, 2, 4] over `units`
    partial results. Read past the first cache, for other multiprocessors wrote them."""
    every = tl.zeros([32, 1, 1, 1], tl.int32)
    at_ml = ml + (query * 2 + every)
    at_acc = acc + (query * 256 + merge_columns())
    known = query < count
    highest = tl.full([32, MERGED_ROWS, 1, 1], _LOWEST, tl.float32)
    total = tl.zeros([32, MERGED_ROWS, 1, 1], tl.float32)
    mixed = tl.zeros([32, MERGED_ROWS, 2, 4], tl.float32)
    for begin in range(0, units, _STEP):
        highs, sums, parts = (), (), ()
        for i in tl.static_range(_STEP):
            present = known & (begin + i < units)
            highs = highs + (tl.load(at_ml + i * (R * 2), mask=present, other=_LOWEST, cache_modifier=".cg"),)
            sums = sums + (tl.load(at_ml + (i * (R * 2) + 1), mask=present, other=0.0, cache_modifier=".cg"),)
            parts = parts + (tl.load(at_acc + i * (R * 256), mask=present, other=0.0, cache_modifier=".cg"),)
        at_ml += _STEP * (R * 2)
        at_acc += _STEP * (R * 256)
        peak = highest
        for i in tl.static_range(_STEP):
            peak = tl.maximum(peak, highs[i])
        keep = tl.exp2(highest - peak)
        highest = peak
        total = total * keep
        mixed = mixed * keep
        for i in tl.static_range(_STEP):
            weight = tl.exp2(highs[i] - peak)
            total = tl.fma(sums[i], weight, total)
            mixed = tl.fma(parts[i], weight.broadcast_to(parts[i].shape), mixed)
    return highest, total, mixed


@triton.jit
def store_merged(highest, total, mixed, acc, ml, query, count):
    """One partial result of the form that :func:`merged` reads."""
    single = (query < count) & (tl.arange(0, 32) == 0)[:, None, None, None]
    at = ml + (query * 2 + tl.zeros([32, 1, 1, 1], tl.int32))
    tl.store(at, highest, mask=single)
    tl.store(at + 1, total, mask=single)
    tl.store(acc + (query * 256 + merge_columns()), mixed, mask=query < count)


@triton.jit
def store_output(
    total, mixed, second, out, query, row, count, lane, head, stride, plane, width_bits, L, GROUP: tl.constexpr
):
    """out = sigmoid(gate) * values / sum, columns of width 1 << width_bits; queries l * GROUP + j from `row` on."""
    present = query < count
    query += row
    token = lane * L + query // GROUP
    inner = (head * GROUP + query % GROUP) * 256 + merge_columns()
    gate = tl.load(second + (token.to(tl.int64) * stride + inner), mask=present, other=0.0).to(tl.float32)
    divisor = tl.where(present, total, 1.0) * (1.0 + tl.exp2(gate * -_LOG2_E))
    y = tl.inline_asm_elementwise(_DIVIDE, "=f,f,f", [mixed, divisor], dtype=tl.float32, is_pure=True, pack=1)
    block = (token >> width_bits) * plane + inner // 32
    at = (((block << width_bits) + (token & ((1 << width_bits) - 1))) * 32) + inner % 32
    tl.store(out + at, y.to(tl.bfloat16), mask=present)
