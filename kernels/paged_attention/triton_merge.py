"""Merging of partial results of a query: sums over units in steps of sixteen, in order.

Two queries at a time, whatever their number, so that a query's sums are made the same way in every round.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.paged_attention.units import MERGED_UNITS

_STEP = tl.constexpr(MERGED_UNITS)
_ROWS = tl.constexpr(2)
_LOWEST = tl.constexpr(-1e30)


@triton.jit
def _merged(acc, ml, count, query, ROWS: tl.constexpr):
    """Queries [2]: maximum [2], sum [2], values [2, 256] over `count` partial results. Read past the first cache,
    for other multiprocessors wrote them."""
    present = query < ROWS
    column = tl.arange(0, 256)[None, None, :]
    highest = tl.full([_ROWS], _LOWEST, tl.float32)
    total = tl.zeros([_ROWS], tl.float32)
    mixed = tl.zeros([_ROWS, 256], tl.float32)
    for begin in range(0, count, _STEP):
        unit = begin + tl.arange(0, _STEP)
        mask = (unit < count)[:, None] & present[None, :]
        at = ml + (unit * (2 * ROWS))[:, None] + query[None, :]
        highs = tl.load(at, mask=mask, other=_LOWEST, cache_modifier=".cg")
        sums = tl.load(at + ROWS, mask=mask, other=0.0, cache_modifier=".cg")
        where = acc + (unit[:, None] * ROWS + query[None, :])[:, :, None].to(tl.int64) * 256 + column
        parts = tl.load(where, mask=mask[:, :, None], other=0.0, cache_modifier=".cg")
        peak = tl.maximum(highest, tl.max(highs, axis=0))
        keep = tl.exp2(highest - peak)
        weight = tl.exp2(highs - peak[None, :])
        highest = peak
        total = total * keep + tl.sum(sums * weight, axis=0)
        mixed = mixed * keep[:, None] + tl.sum(parts * weight[:, :, None], axis=0)
    return highest, total, mixed


@triton.jit
def merge_group(acc, ml, count, group_acc, group_ml, ROWS: tl.constexpr):
    """Up to sixteen partial results to one of the same form."""
    for row in range(0, ROWS, _ROWS):
        query = row + tl.arange(0, _ROWS)
        highest, total, mixed = _merged(acc, ml, count, query, ROWS)
        present = query < ROWS
        tl.store(group_ml + query, highest, mask=present)
        tl.store(group_ml + ROWS + query, total, mask=present)
        where = group_acc + query[:, None] * 256 + tl.arange(0, 256)[None, :]
        tl.store(where, mixed, mask=present[:, None])


@triton.jit
def merge_groups(
    acc, ml, count, second, out, lane, head, stride, plane,
    L: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Partial results to columns: out = sigmoid(gate) * values / sum, queries l * GROUP + j."""
    ROWS: tl.constexpr = L * GROUP
    column = tl.arange(0, 256)[None, :]
    for row in range(0, ROWS, _ROWS):
        query = row + tl.arange(0, _ROWS)
        present = (query < ROWS)[:, None]
        _, total, mixed = _merged(acc, ml, count, query, ROWS)
        token = (lane * L + query // GROUP)[:, None]
        inner = ((head * GROUP + query % GROUP) * 256)[:, None] + column
        gate = tl.load(second + token.to(tl.int64) * stride + inner, mask=present, other=0.0).to(tl.float32)
        y = mixed / total[:, None] / (1.0 + tl.exp(-gate))
        block = token // COLUMNS * plane + inner // 32
        at = block * (32 * COLUMNS) + token % COLUMNS * 32 + inner % 32
        tl.store(out + at, y.to(tl.bfloat16), mask=present)
