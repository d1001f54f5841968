"""Triton route of the end of a vocabulary product: logits, and the best candidates of each token.

A candidate is one int64 key: the logit's bits, made to order like integers, above the complement of its row. Larger
keys are larger logits, the lower row first among equals, and keys of different rows differ: any way of selecting gives
the same list.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.low_bit_linear.triton_finish import _scaled_sums

_LOWEST = tl.constexpr(-(2**63))


@triton.jit
def _keys(value, row):
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)  # both zeros are one value
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (ordered << 32) | (0xFFFFFFFF - row.to(tl.int64))


@triton.jit(do_not_specialize=["rows", "legal", "tiles", "blocks", "tokens", "columns_normed", "norm_blocks"])
def finish_head(
    part, squares, logits, keys, rows, legal, tiles, blocks, tokens, columns_normed, norm_blocks, eps,
    SLOTS: tl.constexpr, TILES: tl.constexpr, NORM_PADDED: tl.constexpr,
    KEEP: tl.constexpr, LOGITS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """keys[t, program, KEEP]: the largest of a block of rows below `legal`; all logits if asked for."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    first = tl.program_id(0) * TILES
    column_block = tl.program_id(1)
    total = _scaled_sums(
        part, squares, first, tiles, blocks, column_block, columns_normed, norm_blocks, eps, SLOTS, TILES, NORM_PADDED
    )
    row = first * 16 + tl.arange(0, 16 * TILES)
    column = column_block * 8 + tl.arange(0, 8)
    if LOGITS:
        at = column.to(tl.int64)[None, :] * rows + row[:, None]
        tl.store(logits + at, total, mask=(row < rows)[:, None] & (column < tokens)[None, :])
    candidates = tl.where((row < legal)[:, None], _keys(total, row[:, None]), _LOWEST)
    at = column * tl.num_programs(0) + tl.program_id(0)
    if KEEP == 1:
        tl.store(keys + at, tl.max(candidates, axis=0), mask=column < tokens)
    else:
        best = tl.topk(candidates.trans(), KEEP)
        tl.store(keys + at[:, None] * KEEP + tl.arange(0, KEEP)[None, :], best, mask=(column < tokens)[:, None])


@triton.jit(do_not_specialize=["count"])
def merge_keys(keys, merged, count, PADDED: tl.constexpr, KEEP: tl.constexpr, DEPENDENT: tl.constexpr):
    """merged[t, program, KEEP] = the largest of keys[t, PADDED program .. PADDED (program + 1)), largest first."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * PADDED + tl.arange(0, PADDED)
    mine = tl.load(keys + token * count + index, mask=index < count, other=_LOWEST)
    at = (token * tl.num_programs(0) + tl.program_id(0)) * KEEP
    if KEEP == 1:
        tl.store(merged + at, tl.max(mine, axis=0))
    else:
        tl.store(merged + at + tl.arange(0, KEEP), tl.topk(mine, KEEP))
