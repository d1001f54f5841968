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
from ninfer.kernels.low_bit_linear.triton_fragments import opaque

_LARGEST = tl.constexpr(buffers.SQUARES_LARGEST)
_SCALE = tl.constexpr(float(1 << buffers.SQUARES_BITS))
_UNIT = tl.constexpr(0.5**buffers.SQUARES_BITS)


@triton.jit
def _lanes():
    """Numbered anew, so that a loop before need not keep what is computed from them."""
    return opaque(tl.arange(0, 32))


@triton.jit
def add_slots(part, tile, column_block, blocks, tiles, tokens, count, SLOTS: tl.constexpr):
    """The first `count` slots added in order, [128]; 16 bytes per lane, past a cache that may be stale. Zero for
    columns without a token, which may have no slots."""
    count = tl.where(column_block * 8 < tokens, count, 0)
    at = part + (column_block.to(tl.int64) * tiles + tile) * 128 + tl.arange(0, 128)
    stride = blocks.to(tl.int64) * tiles * 128
    total = tl.load(at, mask=count > 0, other=0.0, cache_modifier=".cg")
    for slot in tl.static_range(1, SLOTS):
        total += tl.load(at + slot * stride, mask=slot < count, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def lane_columns(column_block):
    """The two columns of each lane, [32] each."""
    column = column_block * 8 + _lanes() % 4 * 2
    return column, column + 1


@triton.jit
def norm_factor(squares, capacity, column, columns_normed, eps):
    """1 / root mean square of columns of x, from squares [2, capacity] int64; `column` is of any shape."""
    whole = tl.load(squares + column).to(tl.float32)
    fraction = tl.load(squares + capacity + column).to(tl.float32)
    return 1.0 / tl.sqrt((whole + fraction * _UNIT) / columns_normed + eps)


@triton.jit
def tile_factors(squares, capacity, column_block, columns_normed, eps, NORMED: tl.constexpr):
    """The factors of each lane's two columns."""
    if NORMED:
        even, odd = lane_columns(column_block)
        return (
            norm_factor(squares, capacity, even, columns_normed, eps),
            norm_factor(squares, capacity, odd, columns_normed, eps),
        )
    else:
        return (1.0, 1.0)


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
def _residual_added(residual, sums, column, tile, r: tl.constexpr, needed, rows, tokens):
    at, _, kept = _residual_place(residual, column, tile, r, needed, rows, tokens)
    return (tl.load(at, mask=kept, other=0.0).to(tl.float32) + sums).to(residual.dtype.element_ty)


@triton.jit
def add_residual(total, tile, column_block, needed, residual, rows, tokens):
    """The new residual, rounded: four tensors in the order of `_quarters`."""
    even, odd = _quarters(total)
    column, column_odd = lane_columns(column_block)
    return (
        (
            _residual_added(residual, even[0], column, tile, 0, needed, rows, tokens),
            _residual_added(residual, even[1], column, tile, 1, needed, rows, tokens),
        ),
        (
            _residual_added(residual, odd[0], column_odd, tile, 0, needed, rows, tokens),
            _residual_added(residual, odd[1], column_odd, tile, 1, needed, rows, tokens),
        ),
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
    part, tile, count, block, blocks, tiles, tokens, squares, capacity, columns_normed, eps, out, rows,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    factors = tile_factors(squares, capacity, block, columns_normed, eps, NORMED)
    totals = ()
    for i in tl.static_range(COUNT):
        totals = totals + (add_slots(part, tile[i], block, blocks, tiles, tokens, count[i], SLOTS),)
    for i in tl.static_range(COUNT):
        write_rows(totals[i], factors, tile[i], block, count[i] > 0, out, rows, tokens, WIDTH)


@triton.jit
def end_silu_mul(
    part, tile, count, block, blocks, tiles, tokens, squares, capacity, columns_normed, eps, out, plane,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    factors = tile_factors(squares, capacity, block, columns_normed, eps, NORMED)
    totals = ()
    for i in tl.static_range(COUNT):
        totals = totals + (add_slots(part, tile[i], block, blocks, tiles, tokens, count[i], SLOTS),)
    for i in tl.static_range(COUNT):
        write_silu_mul(totals[i], factors, tile[i], block, count[i] > 0, out, plane, tokens, WIDTH)


@triton.jit
def end_residual(
    part, tile, count, block, blocks, tiles, tokens, residual, weight, out, squares, capacity, rows, plane,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    rounded, weights = (), ()
    for i in tl.static_range(COUNT):
        total = add_slots(part, tile[i], block, blocks, tiles, tokens, count[i], SLOTS)
        weights = weights + (row_weights(weight, tile[i], rows),)
        rounded = rounded + (add_residual(total, tile[i], block, count[i] > 0, residual, rows, tokens),)
    for i in tl.static_range(COUNT):
        write_residual(
            rounded[i], weights[i], tile[i], block, count[i] > 0, residual, out, squares, capacity, rows, plane, tokens,
            WIDTH,
        )  # fmt: skip


@triton.jit
def clear_squares(squares, count):
    """Zero for 64 columns at most."""
    index = tl.arange(0, 128)
    tl.store(squares + index, tl.zeros([128], tl.int64), mask=index < count)
