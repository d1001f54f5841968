"""Decode attention in one kernel: norm, rotary positions, codes, append, attention, merge, gate.

A fixed number of programs shares the pages of all lanes (see ``triton_units``). Per lane and key head a program
prepares the queries once and leaves them in its own scratch; per unit it appends the rows that are new there, reads
them back through the cache, and leaves (maximum, sum, weighted values) of each query. Who finishes the last of sixteen
neighbouring units merges these, who finishes the last sixteen merges those: always in the order of units, so no bit
depends on who it was. Only a query's own units and keys count: others weigh exactly zero.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.kv_codec.triton_rows import (
    hadamard,
    load_rows,
    normed_rotated,
    store_parts_int8,
    store_rows_int8,
)
from ninfer.kernels.paged_attention.triton_merge import merge_group, merge_groups
from ninfer.kernels.paged_attention.triton_tiles import (
    hide_values,
    key_operand,
    load_keys,
    load_scales,
    load_values,
    page_keys,
    query_operand,
    scale_of,
    value_operand,
    weight_operand,
)
from ninfer.kernels.paged_attention.triton_units import unit_begin, unit_from
from ninfer.kernels.paged_attention.units import MERGED_UNITS

_MERGED = tl.constexpr(MERGED_UNITS)
_LOWEST = tl.constexpr(-1e30)
_LOG2_E = tl.constexpr(1.4426950408889634)
_ROWS = tl.constexpr(8)
# Weights are made 2**8 times too large, and their sum with them: a weight times the scale of a value then keeps its
# bits in fp16, whose smallest normal number is 2**-14. Scales from 2**8 on, of values beyond 32,000, would overflow.
_WEIGHT_BITS = tl.constexpr(8.0)
_FP16_MAX = tl.constexpr(65504.0)


@triton.jit
def _prepare_queries(
    first, query_norm, eps, cos, sin, codes, scales, lane, head, stride,
    L: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Rows l * GROUP + j of a lane and key head to codes [PADDED, 256] and scales [PADDED, 4]; zeros beyond."""
    for block in range(PADDED // 8):
        row = block * 8 + tl.arange(0, 8)
        present = row < L * GROUP
        token = lane * L + row // GROUP
        at = token.to(tl.int64) * stride + (head * GROUP + row % GROUP) * 256
        every = row >= 0
        q = normed_rotated(first, at, present, query_norm, eps, cos, sin, token, HALF)
        if INT8:
            store_parts_int8(hadamard(q), codes, scales, row * 256, row * 4, every, False)
        else:
            tl.store(codes + row[:, None] * 256 + tl.arange(0, 256)[None, :], q.to(tl.bfloat16))


@triton.jit
def _append(
    first, second, key_norm, eps, cos, sin, keys, values, key_scales, value_scales, table,
    lane, head, position, begin, end, stride, stride2,
    L: tl.constexpr, H: tl.constexpr, HKV: tl.constexpr, HALF: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Store the rows of a lane and key head whose positions lie in [begin, end)."""
    for block in range((L + 7) // 8):
        column = block * 8 + tl.arange(0, 8)
        at = position + column
        present = (column < L) & (at >= begin) & (at < end)
        token = lane * L + column
        page = tl.load(table + at // 64, mask=present, other=0).to(tl.int64)
        row = (page * HKV + head) * 64 + at % 64
        source = token.to(tl.int64) * stride + (H + head) * 256
        k = normed_rotated(first, source, present, key_norm, eps, cos, sin, token, HALF)
        v = load_rows(second, token.to(tl.int64) * stride2 + (H + head) * 256, present)
        if INT8:
            store_parts_int8(hadamard(k), keys, key_scales, row * 256, row * 4, present, True)
            store_rows_int8(v, values, value_scales, row * 256, row * 4, present)
        else:
            where = row[:, None] * 256 + tl.arange(0, 256)[None, :]
            tl.store(keys + where, k.to(tl.bfloat16), mask=present[:, None])
            tl.store(values + where, v.to(tl.bfloat16), mask=present[:, None])


@triton.jit
def _load_queries(codes, R: tl.constexpr, INT8: tl.constexpr):
    slices = ()
    for s in tl.static_range(4 if INT8 else 8):
        slices = slices + (query_operand(codes + s * (64 if INT8 else 32), R, INT8),)
    return slices


@triton.jit
def _load_query_scales(scales, R: tl.constexpr):
    """A group's scale of each query, with 1 / sqrt(256) and the step to powers of two."""
    row = tl.arange(0, R)
    factors = ()
    for group in tl.static_range(4):
        factors = factors + (tl.load(scales + row * 4 + group) * (0.0625 * _LOG2_E),)
    return factors


@triton.jit
def _scores_int8(k, words, codes, scales, kept, factors, R: tl.constexpr, KEEP: tl.constexpr):
    s = tl.zeros([4, 16, R], tl.float32)
    for group in tl.static_range(4):
        if KEEP:
            q = kept[group]
            factor = factors[group]
        else:
            q = query_operand(codes + group * 64, R, True)
            factor = tl.load(scales + tl.arange(0, R) * 4 + group) * (0.0625 * _LOG2_E)
        exact = tl.dot(key_operand(k[group], True), q, out_dtype=tl.int32)
        s += exact.to(tl.float32) * (scale_of(words, group)[:, :, None] * factor[None, None, :])
    return s


@triton.jit
def _scores_bf16(k, codes, kept, R: tl.constexpr, KEEP: tl.constexpr):
    s = tl.zeros([4, 16, R], tl.float32)
    for part in tl.static_range(8):
        if KEEP:
            q = kept[part]
        else:
            q = query_operand(codes + part * 32, R, False)
        s = tl.dot(key_operand(k[part], False), q, s)
    return s * (0.0625 * _LOG2_E)


@triton.jit
def _load_keys(keys, key_scales, row, number, INT8: tl.constexpr):
    """A page of one key head and its scales."""
    if INT8:
        return load_keys(keys, row, 64), load_scales(key_scales, row, number)
    else:
        return load_keys(keys, row, 128), 0


@triton.jit
def _load_values(values, value_scales, row, number, INT8: tl.constexpr):
    if INT8:
        return load_values(values, row, 2), load_scales(value_scales, row, number)
    else:
        return load_values(values, row, 4), 0


@triton.jit
def _attend(
    keys, values, key_scales, value_scales, table, codes, scales, head, position, page, last, end, row,
    GROUP: tl.constexpr, HKV: tl.constexpr, R: tl.constexpr, KEEP: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Queries row .. row + R - 1 over pages [page, last) of a lane and key head: maximum, sum [R], values [4, 64, R].

    end  positions from here on hold anything
    """
    kept = _load_queries(codes, R, INT8) if KEEP else ()
    factors = _load_query_scales(scales, R) if KEEP and INT8 else ()
    limit = position + (row + tl.arange(0, R)) // GROUP  # the last key that a query sees
    number = page_keys()
    highest = tl.full([R], _LOWEST, tl.float32)
    total = tl.zeros([4, 16, R], tl.float32)
    mixed = tl.zeros([4, 64, R], tl.float32)
    first_row = (tl.load(table + page).to(tl.int64) * HKV + head) * 64
    k, ks = _load_keys(keys, key_scales, first_row, number, INT8)
    v, vs = _load_values(values, value_scales, first_row, number, INT8)
    following = tl.load(table + tl.minimum(page + 1, last - 1))
    for at in tl.range(page, last, num_stages=1):
        if INT8:
            s = _scores_int8(k, ks, codes, scales, kept, factors, R, KEEP)
        else:
            s = _scores_bf16(k, codes, kept, R, KEEP)
        # The last page is loaded once more, from a cache: cheaper than a branch.
        first_row = (following.to(tl.int64) * HKV + head) * 64
        following = tl.load(table + tl.minimum(at + 2, last - 1))
        k, ks = _load_keys(keys, key_scales, first_row, number, INT8)
        key = at * 64 + number
        visible = key[:, :, None] <= limit[None, None, :]
        s = tl.where(visible, s, _LOWEST)
        peak = tl.maximum(highest, tl.max(tl.max(s, axis=1), axis=0))
        keep = tl.exp2(highest - peak)
        highest = peak
        p = tl.where(visible, tl.exp2(s - (peak - _WEIGHT_BITS)[None, None, :]), 0.0)
        total = total * keep[None, None, :] + p
        if INT8:
            weights = ()
            for quarter in tl.static_range(4):
                scale = tl.where(key < end, scale_of(vs, quarter), 0.0)[:, :, None]
                weights = weights + (tl.minimum(p * scale, _FP16_MAX).to(tl.float16),)
            right = weight_operand(weights[0], weights[1], weights[2], weights[3], R)
            left = value_operand(v, True)
        else:
            narrow = p.to(tl.bfloat16)
            right = weight_operand(narrow, narrow, narrow, narrow, R)
            left = value_operand(hide_values(v, end - at * 64), False)
        mixed = tl.dot(left, right, mixed * keep[None, None, :])
        v, vs = _load_values(values, value_scales, first_row, number, INT8)
    return highest, tl.sum(tl.sum(total, axis=1), axis=0), mixed


@triton.jit
def _store_partial(highest, total, mixed, acc, ml, row, ROWS: tl.constexpr, R: tl.constexpr):
    """acc [ROWS, 256], ml [2, ROWS] of a unit: queries row .. that exist."""
    n = row + tl.arange(0, R)
    tl.store(ml + n, highest, mask=n < ROWS)
    tl.store(ml + ROWS + n, total, mask=n < ROWS)
    # warp, word, b1, b0, g, query 8 j + 2 t + x: a lane has 8 g + 4 word + 2 b1 + b0 of columns 64 w ..
    x = mixed.reshape([4, 2, 4, 8, R // 8, 4, 2]).permute([4, 6, 1, 0, 3, 5, 2])  # j, x, word, w, g, t, b
    j = tl.arange(0, R // 8)[:, None, None, None, None, None, None] * 8
    e = tl.arange(0, 2)[None, :, None, None, None, None, None]
    word = tl.arange(0, 2)[None, None, :, None, None, None, None] * 4
    w = tl.arange(0, 4)[None, None, None, :, None, None, None] * 64
    g = tl.arange(0, 8)[None, None, None, None, :, None, None] * 8
    t = tl.arange(0, 4)[None, None, None, None, None, :, None] * 2
    b = tl.arange(0, 4)[None, None, None, None, None, None, :]
    query = row + j + e + t
    tl.store(acc + query * 256 + (w + g + word + b), x, mask=query < ROWS)


@triton.jit(do_not_specialize=["lanes_count", "table_stride", "stride", "stride2", "plane", "units", "groups"])
def attention_round(
    first, second, query_norm, key_norm, cos, sin, keys, values, key_scales, value_scales, tables, lanes, positions,
    out, codes, scales, acc, ml, group_acc, group_ml, counters,
    lanes_count, table_stride, stride, stride2, plane, units, groups, eps,
    L: tl.constexpr, GROUP: tl.constexpr, HKV: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr,
    BLOCKS: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, KEEP: tl.constexpr, INT8: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """See ``op.attention_round``. R: queries of a tile, BLOCKS tiles; COLUMNS: width of `out`; KEEP: queries stay in
    registers; units, groups: places for partial results of a lane and key head; strides in pieces of eight, so that the
    compiler knows them for multiples."""
    ROWS: tl.constexpr = L * GROUP
    H: tl.constexpr = HKV * GROUP
    stride *= 8
    stride2 *= 8
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    if DEPENDENT:
        gdc_launch_dependents()
    lane = tl.arange(0, LANES)
    known = tl.load(positions + lane, mask=lane < lanes_count, other=0)
    cost = tl.where(lane < lanes_count, (known + L + 63) // 64 * HKV, 0)
    ends = tl.cumsum(cost, axis=0)
    total = tl.sum(cost, axis=0)
    share = program * total // programs
    share_end = (program + 1) * total // programs
    b = tl.sum((ends <= share).to(tl.int32), axis=0)
    start = tl.sum(tl.where(lane < b, cost, 0), axis=0)
    h = (share - start) // tl.maximum(tl.sum(tl.where(lane == b, cost, 0), axis=0) // HKV, 1)
    start += h * (tl.sum(tl.where(lane == b, cost, 0), axis=0) // HKV)
    codes += program.to(tl.int64) * (R * BLOCKS * 256)
    scales += program * (R * BLOCKS * 4)
    if DEPENDENT:
        gdc_wait()
    while start < share_end:
        position = tl.load(positions + b)
        end = position + L
        pages = (end + 63) // 64
        table = tables + tl.load(lanes + b).to(tl.int64) * table_stride
        pair = b * HKV + h
        u = unit_from(tl.maximum(share - start, 0))
        if (unit_begin(u) < pages) & (start + unit_begin(u) < share_end):
            tl.debug_barrier()
            _prepare_queries(
                first, query_norm, eps, cos, sin, codes, scales, b, h, stride, L, GROUP, HALF, R * BLOCKS, INT8
            )  # fmt: skip
            tl.debug_barrier()
        while (unit_begin(u) < pages) & (start + unit_begin(u) < share_end):
            page = unit_begin(u)
            last = tl.minimum(unit_begin(u + 1), pages)
            if last * 64 > position:
                _append(
                    first, second, key_norm, eps, cos, sin, keys, values, key_scales, value_scales, table,
                    b, h, position, page * 64, last * 64, stride, stride2, L, H, HKV, HALF, INT8,
                )  # fmt: skip
                tl.debug_barrier()
            slot = pair.to(tl.int64) * units + u
            for block in tl.static_range(BLOCKS):
                highest, weight, mixed = _attend(
                    keys, values, key_scales, value_scales, table, codes + block * (R * 256),
                    scales + block * (R * 4), h, position, page, last, end, block * R, GROUP, HKV, R, KEEP, INT8,
                )  # fmt: skip
                _store_partial(
                    highest, weight, mixed, acc + slot * (ROWS * 256), ml + slot * (2 * ROWS), block * R, ROWS, R
                )  # fmt: skip
            tl.debug_barrier()
            count = unit_from(pages)
            group = u // _MERGED
            members = tl.minimum(count - group * _MERGED, _MERGED)
            counter = counters + pair * (groups + 1)
            if tl.atomic_add(counter + 1 + group, 1, sem="acq_rel", scope="gpu") == members - 1:
                tl.store(counter + 1 + group, 0)
                count = (count + _MERGED - 1) // _MERGED
                slot = pair.to(tl.int64) * units + group * _MERGED
                from_acc = acc + slot * (ROWS * 256)
                from_ml = ml + slot * (2 * ROWS)
                complete = count == 1
                if count > 1:
                    place = pair.to(tl.int64) * groups
                    to_acc = group_acc + (place + group) * (ROWS * 256)
                    merge_group(from_acc, from_ml, members, to_acc, group_ml + (place + group) * (2 * ROWS), ROWS)
                    tl.debug_barrier()
                    complete = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1
                    from_acc = group_acc + place * (ROWS * 256)
                    from_ml = group_ml + place * (2 * ROWS)
                    members = count
                if complete:
                    tl.store(counter, 0)
                    merge_groups(
                        from_acc, from_ml, members, second, out, b, h, stride2, plane, L, GROUP, COLUMNS
                    )  # fmt: skip
            u += 1
        start += pages
        h += 1
        if h == HKV:
            h = 0
            b += 1
