"""Attention of a prefill chunk in three kernels: rows to the cache and prepared queries, the lane's history as
contiguous 16-bit rows, attention over those; a fourth joins sums where programs share the keys of a query.

The key tiles of a query begin at key 0 and have one size, and a masked tile is computed like any other, so a query's
bits do not depend on how the prompt was cut. Tiles are summed by units of keys, counted from key 0 as well, and units
are joined in order: within a program while a chunk fills the device, else a program sums each unit, with one result.
int8 rows become fp16 (a code times its scale, rounded once) and meet queries and weights in fp16; bf16 stays bf16.
Prepared queries wait in the memory of the output, each where its program will write.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.kv_codec.triton_rows import (
    hadamard,
    load_rows,
    normed_rotated,
    store_parts,
    store_parts_int8,
    store_rows_int8,
)

_LOWEST = tl.constexpr(-1e30)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["begin", "tokens", "stride", "stride2"])
def prepare_chunk(
    first, second, query_norm, key_norm, cos, sin, queries, keys, values, key_scales, value_scales, table,
    begin, tokens, stride, stride2, eps,
    H: tl.constexpr, HKV: tl.constexpr, HALF: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Program (i, j): eight tokens; query head j, or the rows of key head j - H. Strides in pieces of eight, so that
    the compiler knows them for multiples."""
    stride *= 8
    stride2 *= 8
    token = tl.program_id(0) * 8 + tl.arange(0, 8)
    present = token < tokens
    head = tl.program_id(1)
    column = tl.arange(0, 256)[None, :]
    at = token.to(tl.int64) * stride + head * 256
    if head < H:
        q = normed_rotated(load_rows(first, at, present), query_norm, eps, cos, sin, token, present, HALF)
        row = (token.to(tl.int64) * H + head) * 256
        if INT8:
            store_parts(hadamard(q), queries, row, present)
        else:
            tl.store(queries + row[:, None] + column, q.to(tl.bfloat16), mask=present[:, None])
    else:
        k = normed_rotated(load_rows(first, at, present), key_norm, eps, cos, sin, token, present, HALF)
        v = load_rows(second, token.to(tl.int64) * stride2 + head * 256, present)
        position = begin + token
        page = tl.load(table + position // 64, mask=present, other=0).to(tl.int64)
        row = (page * HKV + head - H) * 64 + position % 64
        if INT8:
            store_parts_int8(hadamard(k), keys, key_scales, row * 256, row * 4, present)
            store_rows_int8(v, values, value_scales, row * 256, row * 4, present)
        else:
            tl.store(keys + row[:, None] * 256 + column, k.to(tl.bfloat16), mask=present[:, None])
            tl.store(values + row[:, None] * 256 + column, v.to(tl.bfloat16), mask=present[:, None])


@triton.jit
def _spread_page(codes, scales, out, row, to, count, INT8: tl.constexpr):
    """The first `count` rows of a page; zeros behind them."""
    at = tl.arange(0, 64)[:, None] * 256 + tl.arange(0, 256)[None, :]
    x = tl.load(codes + row * 256 + at)
    if INT8:
        scale = tl.load(scales + row * 4 + tl.arange(0, 64)[:, None] * 4 + tl.arange(0, 4)[None, :]).to(tl.float32)
        x = x.to(tl.float32).reshape([64, 4, 64]) * scale[:, :, None]
        x = x.reshape([64, 256]).to(tl.float16)
    x = tl.where((tl.arange(0, 64) < count)[:, None], x, 0.0)
    tl.store(out + to * 256 + at, x)


@triton.jit(do_not_specialize=["limit", "capacity"])
def spread_history(
    keys, values, key_scales, value_scales, table, key_rows, value_rows, limit, capacity,
    HKV: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Page i of a lane, key head j, to rows [64 i, 64 i + 64) of key_rows, value_rows [HKV, capacity, 256]; rows from
    `limit` on become zeros."""
    block, head = tl.program_id(0), tl.program_id(1)
    row = (tl.load(table + block).to(tl.int64) * HKV + head) * 64
    to = head.to(tl.int64) * capacity + block * 64
    _spread_page(keys, key_scales, key_rows, row, to, limit - block * 64, INT8)
    _spread_page(values, value_scales, value_rows, row, to, limit - block * 64, INT8)


@triton.jit
def _rows(rows, begin, N: tl.constexpr, DESCRIBED: tl.constexpr):
    """Rows [begin, begin + N) of [.., 256]."""
    if DESCRIBED:
        return rows.load([begin, 0])
    else:
        at = (begin.to(tl.int64) + tl.arange(0, N))[:, None] * 256 + tl.arange(0, 256)[None, :]
        return tl.load(rows + at)


@triton.jit
def _attend_tiles(
    highest, total, mixed, q, keys, values, offset, begin, end, position,
    N: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Key tiles [begin, end) joined to (maximum, sum, values)."""
    factor = 0.0625 * _LOG2_E
    for tile in tl.range(begin, end, num_stages=STAGES):
        k = _rows(keys, offset + tile * N, N, DESCRIBED)
        s = tl.dot(q, k.T)
        if MASKED:
            key = tile * N + tl.arange(0, N)
            s = tl.where(key[None, :] <= position[:, None], s, _LOWEST)
        peak = tl.maximum(highest, tl.max(s, axis=1))
        keep = tl.exp2((highest - peak) * factor)
        shift = peak * factor
        if MASKED:
            # A query that sees none of these keys: the product above would leave its rounding as an exponent.
            shift = tl.where(peak == _LOWEST, 0.0, shift)
        p = tl.exp2(s * factor - shift[:, None])
        total = total * keep + tl.sum(p, axis=1)
        v = _rows(values, offset + tile * N, N, DESCRIBED)
        mixed = tl.dot(p.to(v.dtype), v, mixed * keep[:, None])
        highest = peak
    return highest, total, mixed


@triton.jit
def _peak(highest, total, unit_highest, unit_total):
    """(maximum, sum) of all units so far and of the next one, and the factors of their values."""
    peak = tl.maximum(highest, unit_highest)
    keep = tl.exp2((highest - peak) * (0.0625 * _LOG2_E))
    weight = tl.exp2((unit_highest - peak) * (0.0625 * _LOG2_E))
    return peak, tl.fma(total, keep, unit_total * weight), keep, weight


@triton.jit
def _joined(mixed, unit_mixed, keep, weight):
    """Which of the products is rounded is written out, so that every caller rounds the same one."""
    return tl.fma(mixed, tl.broadcast_to(keep[:, None], mixed.shape), unit_mixed * weight[:, None])


@triton.jit
def _store_gated(mixed, total, gate_at, out_at, present):
    gate = tl.load(gate_at, mask=present, other=0.0).to(tl.float32)
    y = mixed * (1.0 / total)[:, None] / (1.0 + tl.exp(-gate))
    tl.store(out_at, y.to(tl.bfloat16), mask=present)


@triton.jit
def _halves(x):
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute([0, 2, 1]).split()


@triton.jit
def _quarters(mixed):
    """[M, 256] as four [M, 64]: so much more fits into registers beside the values."""
    low, high = _halves(mixed)
    a, b = _halves(low)
    c, d = _halves(high)
    return a, b, c, d


@triton.jit(do_not_specialize=["begin", "tokens", "stride", "capacity"])
def attend_chunk(
    queries, keys, values, second, out, partial, partial_ml, begin, tokens, stride, capacity,
    H: tl.constexpr, GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, UNIT: tl.constexpr, STAGES: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Program (i, u): M tokens of one query head, the latest tokens first, for they see the most keys. With one u the
    program joins all units of UNIT keys in order; with more it leaves the sums of unit u for :func:`merge_chunk`. One
    binary does both, so that neither can round differently.

    keys, values  [HKV, capacity, 256], or their descriptors with blocks [N, 256]; zeros from the chunk's end on
    partial       [units, tokens, H, 256] fp32, partial_ml [units, tokens, H, 2] of (maximum, sum); of one u the first
                  unit of `partial`, where values wait between units, and no `partial_ml`
    stride        in pieces of eight
    """
    stride *= 8
    program = tl.program_id(0)
    split = tl.num_programs(1) > 1
    head = program % H
    block = tl.num_programs(0) // H - 1 - program // H
    token = block * M + tl.arange(0, M)
    present = (token < tokens)[:, None]
    column = tl.arange(0, 256)[None, :]
    at = token.to(tl.int64)[:, None] * (H * 256) + head * 256
    q = tl.load(queries + at + column, mask=present, other=0.0)
    offset = head // GROUP * capacity
    position = begin + token
    first = begin + block * M
    seen_by_all = (first + 1) // N
    last = (tl.minimum(first + M, begin + tokens) + N - 1) // N
    units = (last + UNIT // N - 1) // (UNIT // N)
    start = 0
    end = units
    if split:
        start = tl.program_id(1)
        end = tl.minimum(start + 1, units)
    highest = tl.full([M], _LOWEST, tl.float32)
    total = tl.zeros([M], tl.float32)
    for unit in range(start, end):
        low = unit * (UNIT // N)
        high = tl.minimum(low + UNIT // N, last)
        middle = tl.minimum(tl.maximum(seen_by_all, low), high)
        unit_highest = tl.full([M], _LOWEST, tl.float32)
        unit_total = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, 256], tl.float32)
        unit_highest, unit_total, mixed = _attend_tiles(
            unit_highest, unit_total, mixed, q, keys, values, offset, low, middle, position, N, False, STAGES, DESCRIBED
        )  # fmt: skip
        unit_highest, unit_total, mixed = _attend_tiles(
            unit_highest, unit_total, mixed, q, keys, values, offset, middle, high, position, N, True, STAGES, DESCRIBED
        )  # fmt: skip
        if split:
            row = (tl.cast(unit, tl.int64) * tokens + token) * H + head
            tl.store(partial + row[:, None] * 256 + column, mixed, mask=present)
            tl.store(partial_ml + row * 2, unit_highest, mask=token < tokens)
            tl.store(partial_ml + row * 2 + 1, unit_total, mask=token < tokens)
        else:
            # Registers hold one set of values, not two: a passage through memory every UNIT keys.
            highest, total, keep, weight = _peak(highest, total, unit_highest, unit_total)
            parts = _quarters(mixed)
            for quarter in tl.static_range(4):
                tl.debug_barrier()
                part = parts[quarter]
                to = at + quarter * 64 + tl.arange(0, 64)[None, :]
                if unit > 0:
                    part = _joined(tl.load(partial + to, mask=present, other=0.0), part, keep, weight)
                if unit + 1 < units:
                    tl.store(partial + to, part, mask=present)
                else:
                    gate_at = (
                        token.to(tl.int64)[:, None] * stride + head * 256 + quarter * 64 + tl.arange(0, 64)[None, :]
                    )
                    _store_gated(part, total, second + gate_at, out + to, present)
            tl.debug_barrier()


@triton.jit(do_not_specialize=["begin", "tokens", "stride"])
def merge_chunk(
    second, out, partial, partial_ml, begin, tokens, stride,
    H: tl.constexpr, M: tl.constexpr, R: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Program (i, j): R tokens of query head j, units joined in the order and with the arithmetic of
    :func:`attend_chunk`: those that its M tokens see."""
    stride *= 8
    head = tl.program_id(1)
    token = tl.program_id(0) * R + tl.arange(0, R)
    present = token < tokens
    column = tl.arange(0, 256)[None, :]
    seen = tl.minimum(begin + (tl.program_id(0) * R // M + 1) * M, begin + tokens)
    row = token.to(tl.int64) * H + head
    at = row[:, None] * 256 + column
    highest = tl.load(partial_ml + row * 2, mask=present, other=0.0)
    total = tl.load(partial_ml + row * 2 + 1, mask=present, other=1.0)
    mixed = tl.load(partial + at, mask=present[:, None], other=0.0)
    for unit in range(1, (seen + UNIT - 1) // UNIT):
        far = row + tl.cast(unit, tl.int64) * tokens * H
        unit_highest = tl.load(partial_ml + far * 2, mask=present, other=0.0)
        unit_total = tl.load(partial_ml + far * 2 + 1, mask=present, other=1.0)
        unit_mixed = tl.load(partial + far[:, None] * 256 + column, mask=present[:, None], other=0.0)
        highest, total, keep, weight = _peak(highest, total, unit_highest, unit_total)
        mixed = _joined(mixed, unit_mixed, keep, weight)
    gate_at = token.to(tl.int64)[:, None] * stride + head * 256 + column
    _store_gated(mixed, total, second + gate_at, out + at, present[:, None])
