"""Triton route of the best candidates of each token among its logits.

A candidate is one int64 key: the logit's bits, made to order like integers, above the complement of its row. Larger
keys are larger logits, the lower row first among equals, and keys of different rows differ: any way of selecting gives
the same list.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOWEST = tl.constexpr(-(2**63))


@triton.jit
def candidate_keys(value, row):
    """Keys that order like the values, lower rows first among equals."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)  # both zeros are one value
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (ordered << 32) | (0xFFFFFFFF - row.to(tl.int64))


@triton.jit
def _store_best(best, mine, COUNT: tl.constexpr):
    if COUNT == 1:
        tl.store(best, tl.max(mine, axis=0))
    else:
        tl.store(best + tl.arange(0, COUNT), tl.topk(mine, COUNT))


@triton.jit(do_not_specialize=["rows", "legal"])
def block_keys(logits, keys, rows, legal, PADDED: tl.constexpr, KEEP: tl.constexpr, DEPENDENT: tl.constexpr):
    """keys[t, program, KEEP]: the largest of PADDED rows below `legal`, largest first."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * PADDED + tl.arange(0, PADDED)
    value = tl.load(logits + token * rows + row, mask=row < legal, other=0.0)
    at = (token * tl.num_programs(0) + tl.program_id(0)) * KEEP
    _store_best(keys + at, tl.where(row < legal, candidate_keys(value, row), LOWEST), KEEP)


@triton.jit(do_not_specialize=["count"])
def merge_keys(keys, merged, count, PADDED: tl.constexpr, KEEP: tl.constexpr, DEPENDENT: tl.constexpr):
    """merged[t, program, KEEP] = the largest of keys[t, PADDED program .. PADDED (program + 1)), largest first."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * PADDED + tl.arange(0, PADDED)
    mine = tl.load(keys + token * count + index, mask=index < count, other=LOWEST)
    _store_best(merged + (token * tl.num_programs(0) + tl.program_id(0)) * KEEP, mine, KEEP)
