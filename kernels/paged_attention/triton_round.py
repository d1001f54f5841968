"""Decode attention in one kernel: norm, rotary positions, codes, append, attention, merge, gate.

A fixed number of programs shares the units of all lanes (see ``triton_units``), each a run of neighbours. Per lane and
key head a program prepares the queries, and the rows that are new in its run, in one go: queries to its own scratch,
rows to the cache, from where it reads them back. Per unit it leaves (maximum, sum, weighted values) of each query. Who
finishes the last of sixteen neighbouring units merges these, who finishes the last sixteen merges those: always in the
order of units, so no bit depends on who it was. Only a query's own units and keys count: others weigh exactly zero.

Many queries are cut into blocks, and neighbouring programs take the blocks of the same units at the same time, so that
memory is read once for all of them.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.kv_codec.triton_rows import chosen_parts, hadamard, int8_codes, load_rows, normed_rotated
from ninfer.kernels.paged_attention.triton_merge import (
    MERGED_ROWS,
    merge_rows,
    merged,
    store_merged,
    store_output,
)
from ninfer.kernels.paged_attention.triton_tiles import (
    fetch_page,
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
# Weights are made 2**8 times too large, and their sum with them: a weight times the scale of a value then keeps its
# bits in fp16, whose smallest normal number is 2**-14. Scales from 2**8 on, of values beyond 32,000, would overflow.
_WEIGHT_BITS = tl.constexpr(8.0)
_FP16_MAX = tl.constexpr(65504.0)


@triton.jit
def _prepare(
    first, second, query_norm, key_norm, eps, cos, sin, codes, scales, keys, values, key_scales, value_scales, table,
    lane, head, position, begin, end, query, count, stride, stride2, L, HKV,
    GROUP: tl.constexpr, HALF: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Queries [query, query + count), l * GROUP + j, of a lane and key head to codes [.., 256] and scales [.., 4]; its
    new keys and values whose positions lie in [begin, end) to the cache."""
    H = HKV * GROUP
    appended = tl.where(end > position, 2 * L, 0)
    for tile in range((count + appended + 7) // 8):
        row = tile * 8 + tl.arange(0, 8)
        asked = row < count
        is_value = row >= count + L
        fresh = row - count - tl.where(is_value, L, 0)
        column = tl.where(asked, (query + row) // GROUP, fresh)
        at = position + column
        stored = (row >= count) & (fresh < L) & (at >= begin) & (at < end)
        present = asked | stored
        token = lane * L + column
        own = tl.where(asked, head * GROUP + (query + row) % GROUP, H + head) * 256
        # Rows of every kind are made side by side: code that runs once costs its way from memory.
        source = tl.where(
            is_value,
            second + (token.to(tl.int64) * stride2 + (H + head) * 256),
            first + (token.to(tl.int64) * stride + own),
        )
        x = load_rows(source[:, None], tl.zeros([8], tl.int32), present)
        weight = tl.where(asked, query_norm + tl.zeros([8], tl.int32), key_norm + tl.zeros([8], tl.int32))
        page = tl.load(table + at // 64, mask=stored, other=0).to(tl.int64)
        turned = normed_rotated(x, weight[:, None], eps, cos, sin, token, present, HALF)
        place = (page * HKV + head) * 64 + at % 64
        plane = tl.where(is_value, values + place * 256, keys + place * 256)
        to = tl.where(asked, codes + row * 256, plane)[:, None] + tl.arange(0, 256)[None, :]
        if INT8:
            code, scale = int8_codes(chosen_parts(is_value, x, hadamard(turned)), (row >= count)[:, None, None])
            tl.store(to, code, mask=present[:, None])
            group = tl.arange(0, 4)[None, :]
            tl.store(scales + row[:, None] * 4 + group, scale, mask=asked[:, None])
            plane = tl.where(is_value, value_scales + place * 4, key_scales + place * 4)
            tl.store(plane[:, None] + group, scale.to(tl.float16), mask=stored[:, None])
        else:
            tl.store(to, tl.where(is_value[:, None], x, turned).to(tl.bfloat16), mask=present[:, None])


@triton.jit
def _load_queries(codes, count, R: tl.constexpr, INT8: tl.constexpr):
    slices = ()
    for s in tl.static_range(4 if INT8 else 8):
        slices = slices + (query_operand(codes + s * (64 if INT8 else 32), count, R, INT8),)
    return slices


@triton.jit
def _query_scale(scales, count, group: tl.constexpr, R: tl.constexpr):
    """A group's scale of each query, with 1 / sqrt(256) and the step to powers of two; zeros from row `count` on."""
    row = tl.arange(0, R)
    return tl.load(scales + row * 4 + group, mask=row < count, other=0.0) * (0.0625 * _LOG2_E)


@triton.jit
def _load_query_scales(scales, count, R: tl.constexpr):
    factors = ()
    for group in tl.static_range(4):
        factors = factors + (_query_scale(scales, count, group, R),)
    return factors


@triton.jit
def _scores_int8(k, words, codes, scales, count, kept, factors, R: tl.constexpr, KEEP: tl.constexpr):
    s = tl.zeros([4, 16, R], tl.float32)
    for group in tl.static_range(4):
        if KEEP:
            q = kept[group]
            factor = factors[group]
        else:
            q = query_operand(codes + group * 64, count, R, True)
            factor = _query_scale(scales, count, group, R)
        exact = tl.dot(key_operand(k[group], True), q, out_dtype=tl.int32)
        s += exact.to(tl.float32) * (scale_of(words, group)[:, :, None] * factor[None, None, :])
    return s


@triton.jit
def _scores_bf16(k, codes, count, kept, R: tl.constexpr, KEEP: tl.constexpr):
    s = tl.zeros([4, 16, R], tl.float32)
    for part in tl.static_range(8):
        if KEEP:
            q = kept[part]
        else:
            q = query_operand(codes + part * 32, count, R, False)
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
    keys, values, key_scales, value_scales, table, codes, scales, acc, ml, head, position, page, last, unit, row, count,
    L, HKV, GROUP: tl.constexpr, R: tl.constexpr, KEEP: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Queries [row, row + count) over pages [page, last) of a lane and key head, units from `unit` on: a partial result
    of each unit, one after the other in acc and ml."""
    end = position + L  # positions from here on hold anything
    kept = _load_queries(codes, count, R, INT8) if KEEP else ()
    factors = _load_query_scales(scales, count, R) if KEEP and INT8 else ()
    limit = position + (row + tl.arange(0, R)) // GROUP  # the last key that a query sees
    number = page_keys()
    highest = tl.full([R], _LOWEST, tl.float32)
    total = tl.zeros([4, 16, R], tl.float32)
    mixed = tl.zeros([4, 64, R], tl.float32)
    first_row = (tl.load(table + page).to(tl.int64) * HKV + head) * 64
    k, ks = _load_keys(keys, key_scales, first_row, number, INT8)
    v, vs = _load_values(values, value_scales, first_row, number, INT8)
    following = tl.load(table + tl.minimum(page + 1, last - 1))
    border = tl.minimum(unit_begin(unit + 1), last)
    for at in tl.range(page, last, num_stages=1):
        if INT8:
            s = _scores_int8(k, ks, codes, scales, count, kept, factors, R, KEEP)
        else:
            s = _scores_bf16(k, codes, count, kept, R, KEEP)
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
        if at + 1 == border:
            _store_partial(highest, tl.sum(tl.sum(total, axis=1), axis=0), mixed, acc, ml, count, R)
            acc += R * 256
            ml += R * 2
            unit += 1
            border = tl.minimum(unit_begin(unit + 1), last)
            highest = tl.full([R], _LOWEST, tl.float32)
            total = tl.zeros([4, 16, R], tl.float32)
            mixed = tl.zeros([4, 64, R], tl.float32)


@triton.jit
def _store_partial(highest, total, mixed, acc, ml, count, R: tl.constexpr):
    """acc [R, 256], ml [R, 2] of a unit: the queries that exist."""
    n = tl.arange(0, R)
    tl.store(ml + n * 2, highest, mask=n < count)
    tl.store(ml + n * 2 + 1, total, mask=n < count)
    # warp, word, b1, b0, g, query 8 j + 2 t + x: a lane has 8 g + 4 word + 2 b1 + b0 of columns 64 w .. The compiler
    # deals dimensions to lanes, then warps, from the first on, and so finds everything in its place.
    x = mixed.reshape([4, 2, 4, 8, R // 8, 4, 2]).permute([5, 3, 0, 4, 6, 1, 2])  # t, g, w, j, x, word, b
    t = tl.arange(0, 4)[:, None, None, None, None, None, None] * 2
    g = tl.arange(0, 8)[None, :, None, None, None, None, None] * 8
    w = tl.arange(0, 4)[None, None, :, None, None, None, None] * 64
    j = tl.arange(0, R // 8)[None, None, None, :, None, None, None] * 8
    e = tl.arange(0, 2)[None, None, None, None, :, None, None]
    word = tl.arange(0, 2)[None, None, None, None, None, :, None] * 4
    b = tl.arange(0, 4)[None, None, None, None, None, None, :]
    query = j + e + t
    tl.store(acc + query * 256 + (w + g + word + b), x, mask=query < count)


@triton.jit
def _merge_group(
    acc, ml, group_acc, group_ml, counters, second, out, lane, head, slot, place, row, count, group, done, all_units,
    stride2, plane, width_bits, L, GROUP: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Count `done` units of a group of a lane and key head; whoever counts the last merges, see above. Queries
    [row, row + count), `all_units` units, the first one's results at `slot` and the first group's at `place`."""
    all_groups = (all_units + _MERGED - 1) // _MERGED
    members = tl.minimum(all_units - group * _MERGED, _MERGED)
    slot += group * _MERGED
    from_acc = acc + slot * (R * 256)
    from_ml = ml + slot * (R * 2)
    counter = counters + 1 + group
    due = tl.atomic_add(counter, done, sem="acq_rel", scope="gpu") + done == members
    whole = all_groups == 1
    while due:
        tl.store(counter, 0)
        for begin in range(0, count, MERGED_ROWS):
            query = merge_rows(begin)
            highest, total, mixed = merged(from_acc, from_ml, members, query, count, R)
            if whole:
                store_output(
                    total, mixed, second, out, query, row, count, lane, head, stride2, plane, width_bits, L, GROUP
                )  # fmt: skip
            else:
                to = place + group
                store_merged(highest, total, mixed, group_acc + to * (R * 256), group_ml + to * (R * 2), query, count)
        due = False
        if not whole:
            tl.debug_barrier()
            due = tl.atomic_add(counters, 1, sem="acq_rel", scope="gpu") == all_groups - 1
            whole = True
            counter = counters
            members = all_groups
            from_acc = group_acc + place * (R * 256)
            from_ml = group_ml + place * (R * 2)


# One column has a binary of its own, other numbers of columns share one.
@triton.jit(
    do_not_specialize=[
        "lanes_count",
        "table_stride",
        "stride",
        "stride2",
        "plane",
        "width_bits",
        "units",
        "groups",
        "HKV",
    ],
    do_not_specialize_on_alignment=["L"],
)
def attention_round(
    first, second, query_norm, key_norm, cos, sin, keys, values, key_scales, value_scales, tables, lanes, positions,
    out, codes, scales, acc, ml, group_acc, group_ml, counters,
    lanes_count, table_stride, stride, stride2, plane, width_bits, units, groups, HKV, L, eps,
    GROUP: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr, LANES: tl.constexpr, KEEP: tl.constexpr,
    INT8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """See ``op.attention_round``. R: queries of a block; 1 << width_bits: width of `out`; KEEP: queries stay in
    registers; units, groups: places for partial results of a lane and key head; strides in pieces of eight, so that the
    compiler knows them for multiples."""
    ROWS = L * GROUP
    BLOCKS = (ROWS + R - 1) // R
    stride *= 8
    stride2 *= 8
    block = tl.program_id(0) % BLOCKS
    program = tl.program_id(0) // BLOCKS
    programs = tl.num_programs(0) // BLOCKS
    if DEPENDENT:
        gdc_launch_dependents()
    lane = tl.arange(0, LANES)
    known = tl.load(positions + lane, mask=lane < lanes_count, other=0)
    slots = tl.load(lanes + lane, mask=lane < lanes_count, other=0)
    ends = tl.cumsum(tl.where(lane < lanes_count, (known + L + 63) // 64 * HKV, 0), axis=0)
    total = tl.max(ends, axis=0)
    share = (program * total).to(tl.uint32) // programs.to(tl.uint32)
    share_end = ((program + 1) * total).to(tl.uint32) // programs.to(tl.uint32)
    share = share.to(tl.int32)
    share_end = share_end.to(tl.int32)
    if share < share_end:
        b = tl.sum((ends <= share).to(tl.int32), axis=0)
        start = tl.max(tl.where(ends <= share, ends, 0), axis=0)
        h = -1
        codes += tl.program_id(0).to(tl.int64) * (R * 256)
        scales += tl.program_id(0) * (R * 4)
        row = block * R
        count = tl.minimum(R, ROWS - row)
        while start < share_end:
            position = tl.sum(tl.where(lane == b, known, 0), axis=0)
            pages = (position + L + 63) // 64
            if h < 0:
                h = (share - start) // pages
                start += h * pages
            unit = unit_from(tl.maximum(share - start, 0))
            unit_end = unit_from(tl.minimum(share_end - start, pages))
            if unit < unit_end:
                page = unit_begin(unit)
                last = tl.minimum(unit_begin(unit_end), pages)
                table = tables + tl.sum(tl.where(lane == b, slots, 0), axis=0).to(tl.int64) * table_stride
                if DEPENDENT:
                    # Far older than the kernels that are waited for, the last rows aside.
                    for ahead in tl.static_range(2):
                        fetched = tl.load(table + tl.minimum(page + ahead, last - 1)).to(tl.int64) * HKV + h
                        fetch_page(keys, values, fetched, INT8)
                    gdc_wait()
                tl.debug_barrier()
                _prepare(
                    first, second, query_norm, key_norm, eps, cos, sin, codes, scales, keys, values, key_scales,
                    value_scales, table, b, h, position, page * 64, last * 64, row, count,
                    stride, stride2, L, HKV, GROUP, HALF, INT8,
                )  # fmt: skip
                tl.debug_barrier()
                pair = (b * HKV + h) * BLOCKS + block
                slot = pair.to(tl.int64) * units
                _attend(
                    keys, values, key_scales, value_scales, table, codes, scales, acc + (slot + unit) * (R * 256),
                    ml + (slot + unit) * (R * 2), h, position, page, last, unit, row, count,
                    L, HKV, GROUP, R, KEEP, INT8,
                )  # fmt: skip
                tl.debug_barrier()
                for group in range(unit // _MERGED, (unit_end - 1) // _MERGED + 1):
                    done = tl.minimum(unit_end, group * _MERGED + _MERGED) - tl.maximum(unit, group * _MERGED)
                    _merge_group(
                        acc, ml, group_acc, group_ml, counters + pair * (groups + 1), second, out, b, h, slot,
                        pair.to(tl.int64) * groups, row, count, group, done, unit_from(pages), stride2, plane,
                        width_bits, L, GROUP, R,
                    )  # fmt: skip
            start += pages
            h += 1
            if h == HKV:
                h = 0
                b += 1
