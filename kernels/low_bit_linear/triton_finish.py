"""Device functions of the Triton route: what follows a product, for one row tile and eight columns.

One warp does all of it, in a product launch or in a launch of its own, so both give the same bits. A tile is four
tensors [32], one element per lane: lane 4 g + t has rows g and g + 8 of columns 2 t and 2 t + 1. It always computes all
eight columns, or the even ones where columns are one wide; only stores are masked, and sums over rows run along one
column. So no bit of a column depends on the others.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.low_bit_linear import buffers
from ninfer.kernels.low_bit_linear.triton_fragments import minus_zero, opaque, order_point

_LARGEST = tl.constexpr(buffers.SQUARES_LARGEST)
_SCALE = tl.constexpr(float(1 << buffers.SQUARES_BITS))
_UNIT = tl.constexpr(0.5**buffers.SQUARES_BITS)


@triton.jit
def _lanes():
    """Numbered anew, so that a loop before need not keep what is computed from them."""
    return opaque(tl.arange(0, 32))


@triton.jit
def _slots_at(part, tile, column_block, tiles, tokens, SLOTS: tl.constexpr):
    """Where a tile's first slot lies, [128], and which elements exist; 16 bytes per lane."""
    element = tl.arange(0, 128)
    at = part + (column_block * tiles + tile).to(tl.int64) * (SLOTS * 128) + element
    return at, column_block * 8 + element // 4 % 4 * 2 < tokens


@triton.jit
def add_slots(part, tile, column_block, tiles, tokens, SLOTS: tl.constexpr):
    """All slots added in order, [128], of a launch that has ended. Zero for columns without a token, which may have no
    slots. To begin with zero turns -0.0 into 0.0."""
    at, exists = _slots_at(part, tile, column_block, tiles, tokens, SLOTS)
    total = tl.zeros([128], tl.float32)
    for slot in tl.static_range(SLOTS):
        total += tl.load(at + slot * 128, mask=exists, other=0.0)
    return total


@triton.jit
def add_landed_slots(
    part, tile, count, column_block, tiles, tokens, SLOTS: tl.constexpr, PARTS: tl.constexpr, COUNT: tl.constexpr
):  # fmt: skip
    """The first `count` slots, PARTS at most, of COUNT tiles added in order, [128] each, as soon as every word of them
    is there. Zero for columns without a token."""
    totals = ()
    for _ in tl.static_range(COUNT):
        totals = totals + (tl.zeros([128], tl.float32),)
    missing = 1
    while missing > 0:
        values = ()
        for i in tl.static_range(COUNT):
            at, exists = _slots_at(part, tile[i], column_block, tiles, tokens, SLOTS)
            for slot in tl.static_range(PARTS):
                # What is not asked for is -0.0: it is not absent and changes no sum.
                needed = exists & (slot < count[i])
                values = values + (tl.load(at + slot * 128, mask=needed, other=minus_zero(128), volatile=True),)
        order_point(missing)  # all are on their way before the first is looked at
        least = tl.full([128], 1, tl.uint32)
        sums = ()
        for i in tl.static_range(COUNT):
            total = tl.zeros([128], tl.float32)
            for slot in tl.static_range(PARTS):
                value = values[i * PARTS + slot]
                least = tl.minimum(least, value.to(tl.uint32, bitcast=True))
                total += value
            sums = sums + (total,)
        totals = sums
        missing = tl.sum((least == 0).to(tl.int32))
    return totals


@triton.jit
def clear_slots(part, tile, count, column_block, tiles, tokens, SLOTS: tl.constexpr, PARTS: tl.constexpr):
    """Zero in the first `count` slots, for the next launch."""
    # Computed anew: addresses kept from the loads would not fit into the registers.
    at, exists = _slots_at(part, opaque(tile), column_block, tiles, tokens, SLOTS)
    slot = tl.arange(0, PARTS)[:, None]
    zeros = tl.zeros([PARTS, 128], tl.float32)
    tl.store(at[None, :] + slot * 128, zeros, mask=exists[None, :] & (slot < count))


@triton.jit
def lane_columns(column_block):
    """The two columns of each lane, [32] each."""
    column = column_block * 8 + _lanes() % 4 * 2
    return column, column + 1


@triton.jit
def _column_squares(squares, capacity, column):
    return tl.load(squares + column), tl.load(squares + capacity + column)


@triton.jit
def _factor(parts, columns_normed, eps):
    whole, fraction = parts
    return 1.0 / tl.sqrt((whole.to(tl.float32) + fraction.to(tl.float32) * _UNIT) / columns_normed + eps)


@triton.jit
def norm_factor(squares, capacity, column, columns_normed, eps):
    """1 / root mean square of columns of x, from squares [2, capacity] int64; `column` is of any shape."""
    return _factor(_column_squares(squares, capacity, column), columns_normed, eps)


@triton.jit
def tile_squares(squares, capacity, column_block, NORMED: tl.constexpr):
    """What `tile_factors` needs from memory."""
    if NORMED:
        even, odd = lane_columns(column_block)
        return (_column_squares(squares, capacity, even), _column_squares(squares, capacity, odd))
    else:
        return (1.0, 1.0)


@triton.jit
def tile_factors(loaded, columns_normed, eps, NORMED: tl.constexpr):
    """The factors of each lane's two columns, from `tile_squares`."""
    if NORMED:
        return (_factor(loaded[0], columns_normed, eps), _factor(loaded[1], columns_normed, eps))
    else:
        return loaded


@triton.jit
def settled(factors, NORMED: tl.constexpr, WIDTH: tl.constexpr):
    """The factors, computed here and not where they are used first."""
    if NORMED:
        even = opaque(factors[0].to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
        if WIDTH == 1:
            return (even, even)
        else:
            return (even, opaque(factors[1].to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True))
    else:
        return factors


@triton.jit
def _quarters(total):
    """[128] as (row g, row g + 8) of the even column, and of the odd one."""
    even, odd = tl.split(total.reshape([32, 2, 2]))  # lane, r, e
    return tl.split(even), tl.split(odd)


@triton.jit
def _at_column(column, row, plane, WIDTH: tl.constexpr):
    """Where Columns keep a row of a column; `plane` is the number of blocks of 32 rows."""
    block = (column // WIDTH).to(tl.int64) * plane + row // 32
    return block * (32 * WIDTH) + column % WIDTH * 32 + row % 32


@triton.jit
def write_rows(total, factors, tile, column_block, needed, out, rows, tokens, WIDTH: tl.constexpr):
    """out[t, n] = norm[t] * sum"""
    halves = _quarters(total)
    columns = lane_columns(column_block)
    for e in tl.static_range(min(WIDTH, 2)):
        column = columns[e]
        for r in tl.static_range(2):
            row = tile * 16 + 8 * r + _lanes() // 4
            kept = needed & (row < rows) & (column < tokens)
            value = (halves[e][r] * factors[e]).to(out.dtype.element_ty)
            tl.store(out + column.to(tl.int64) * rows + row, value, mask=kept)


@triton.jit
def write_silu_mul(total, factors, tile, column_block, needed, out, plane, tokens, WIDTH: tl.constexpr):
    """columns out[t, i] = silu(gate) * up, the rows g and g + 8 of a paired matrix"""
    halves = _quarters(total)
    columns = lane_columns(column_block)
    row = tile * 8 + _lanes() // 4
    for e in tl.static_range(min(WIDTH, 2)):
        column = columns[e]
        gate = halves[e][0] * factors[e]
        up = halves[e][1] * factors[e]
        value = (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty)
        tl.store(out + _at_column(column, row, plane, WIDTH), value, mask=needed & (column < tokens))


@triton.jit
def whole_and_fraction(sums):
    """fp32 sums of squares as the two integers that are added."""
    sums = tl.minimum(sums, _LARGEST)
    whole = tl.floor(sums)
    return whole.to(tl.int64), ((sums - whole) * _SCALE).to(tl.int64)


@triton.jit
def row_weights(weight, tile, rows):
    """1 + weight of each lane's two rows."""
    row = tile * 16 + _lanes() // 4
    upper = tl.load(weight + row, mask=row < rows, other=0.0).to(tl.float32)
    lower = tl.load(weight + row + 8, mask=row + 8 < rows, other=0.0).to(tl.float32)
    return (upper + 1.0, lower + 1.0)


@triton.jit
def _residual_place(residual, column, tile, r: tl.constexpr, needed, rows, tokens):
    row = tile * 16 + 8 * r + _lanes() // 4
    return residual + column.to(tl.int64) * rows + row, row, needed & (row < rows) & (column < tokens)


@triton.jit
def _residual_of(residual, column, tile, r: tl.constexpr, needed, rows, tokens):
    at, _, kept = _residual_place(residual, column, tile, r, needed, rows, tokens)
    return tl.load(at, mask=kept, other=0.0)


@triton.jit
def load_residual(tile, column_block, needed, residual, rows, tokens):
    """The residual of a tile: four tensors in the order of `_quarters`."""
    column, column_odd = lane_columns(column_block)
    return (
        (
            _residual_of(residual, column, tile, 0, needed, rows, tokens),
            _residual_of(residual, column, tile, 1, needed, rows, tokens),
        ),
        (
            _residual_of(residual, column_odd, tile, 0, needed, rows, tokens),
            _residual_of(residual, column_odd, tile, 1, needed, rows, tokens),
        ),
    )


@triton.jit
def _rounded_sum(old, sums):
    return (old.to(tl.float32) + sums).to(old.dtype)


@triton.jit
def add_residual(total, old):
    """The new residual, rounded: four tensors in the order of `_quarters`."""
    even, odd = _quarters(total)
    return (
        (_rounded_sum(old[0][0], even[0]), _rounded_sum(old[0][1], even[1])),
        (_rounded_sum(old[1][0], odd[0]), _rounded_sum(old[1][1], odd[1])),
    )


@triton.jit
def write_residual(
    rounded, weights, tile, column_block, needed, residual, out, squares, capacity, rows, plane, tokens,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """residual[t, n] = rounded; columns out = residual * (1 + weight); squares[t] += the tile's sum of squares"""
    columns = lane_columns(column_block)
    counted_column = column_block * 8 + tl.arange(0, 4) * 2
    for e in tl.static_range(min(WIDTH, 2)):
        column = columns[e]
        added = tl.zeros([32], tl.float32)
        for r in tl.static_range(2):
            at, row, kept = _residual_place(residual, column, tile, r, needed, rows, tokens)
            tl.store(at, rounded[e][r], mask=kept)
            # The norm is that of the stored stream.
            value = tl.where(kept, rounded[e][r].to(tl.float32), 0.0)
            scaled = (value * weights[r]).to(out.dtype.element_ty)
            tl.store(out + _at_column(column, row, plane, WIDTH), scaled, mask=kept)
            added += value * value
        whole, fraction = whole_and_fraction(tl.sum(added.reshape([8, 4]), axis=0))
        counted = needed & (counted_column + e < tokens)
        tl.atomic_add(squares + counted_column + e, whole, mask=counted, sem="relaxed")
        tl.atomic_add(squares + capacity + counted_column + e, fraction, mask=counted, sem="relaxed")


# The ends of a product for COUNT tiles: all loads before the first store, which they could not pass.


@triton.jit
def end_rows(
    part, tile, count, block, tiles, tokens, factors, out, rows,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, PARTS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    totals = add_landed_slots(part, tile, count, block, tiles, tokens, SLOTS, PARTS, COUNT)
    for i in tl.static_range(COUNT):
        write_rows(totals[i], factors, tile[i], block, count[i] > 0, out, rows, tokens, WIDTH)
    for i in tl.static_range(COUNT):
        clear_slots(part, tile[i], count[i], block, tiles, tokens, SLOTS, PARTS)


@triton.jit
def end_silu_mul(
    part, tile, count, block, tiles, tokens, factors, out, plane,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, PARTS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    totals = add_landed_slots(part, tile, count, block, tiles, tokens, SLOTS, PARTS, COUNT)
    for i in tl.static_range(COUNT):
        write_silu_mul(totals[i], factors, tile[i], block, count[i] > 0, out, plane, tokens, WIDTH)
    for i in tl.static_range(COUNT):
        clear_slots(part, tile[i], count[i], block, tiles, tokens, SLOTS, PARTS)


@triton.jit
def end_residual(
    part, tile, count, block, tiles, tokens, old, weights, residual, out, squares, capacity, rows, plane,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, PARTS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    totals = add_landed_slots(part, tile, count, block, tiles, tokens, SLOTS, PARTS, COUNT)
    for i in tl.static_range(COUNT):
        write_residual(
            add_residual(totals[i], old[i]), weights[i], tile[i], block, count[i] > 0, residual, out, squares, capacity,
            rows, plane, tokens, WIDTH,
        )  # fmt: skip
    for i in tl.static_range(COUNT):
        clear_slots(part, tile[i], count[i], block, tiles, tokens, SLOTS, PARTS)


@triton.jit
def clear_squares(squares, count):
    """Zero for 64 columns at most."""
    index = tl.arange(0, 128)
    tl.store(squares + index, tl.zeros([128], tl.int64), mask=index < count)
