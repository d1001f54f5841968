"""Triton route of what follows a product: slots are added in order, and the next product's x is written.

A program takes eight columns and a block of row tiles, so that it reads what the products wrote, 16 bytes per lane,
without gaps. It always computes all eight columns; only stores are masked. Sums over rows run along one column. So no
bit of a column depends on the others.

With dependent launch everything but weights is read after the wait: the predecessor started while *its* predecessor
was still at work, hence nothing older than the weights may be assumed complete before.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _add_slots(part, first, tiles, blocks, column_block, SLOTS: tl.constexpr, TILES: tl.constexpr):
    """Rows of tiles [first, first + TILES) for eight columns: fp32 [16 TILES, 8]; zero beyond the last tile."""
    tile = first + tl.arange(0, TILES)
    element = tl.arange(0, 128)
    inside = (tile < tiles)[:, None]
    at = part + (column_block.to(tl.int64) * tiles + tile)[:, None] * 128 + element[None, :]
    stride = blocks.to(tl.int64) * tiles * 128
    total = tl.load(at, mask=inside, other=0.0)
    for slot in tl.static_range(1, SLOTS):
        total += tl.load(at + slot * stride, mask=inside, other=0.0)
    # element = 4 (4 g + t) + 2 r + e; row = 8 r + g, column = 2 t + e
    return total.reshape([TILES, 8, 4, 2, 2]).permute([0, 3, 1, 2, 4]).reshape([16 * TILES, 8])


@triton.jit
def _norm_factors(squares, column, columns_normed, norm_blocks, eps, NORM_PADDED: tl.constexpr):
    """1 / root mean square of the eight columns' x, [8], from the sums of squares of its blocks."""
    block = tl.arange(0, NORM_PADDED)
    parts = tl.load(
        squares + column[None, :] * norm_blocks + block[:, None], mask=(block < norm_blocks)[:, None], other=0.0
    )
    return 1.0 / tl.sqrt(tl.sum(parts, axis=0) / columns_normed + eps)


@triton.jit
def _scaled_sums(
    part, squares, first, tiles, blocks, column_block, columns_normed, norm_blocks, eps,
    SLOTS: tl.constexpr, TILES: tl.constexpr, NORM_PADDED: tl.constexpr,
):  # fmt: skip
    total = _add_slots(part, first, tiles, blocks, column_block, SLOTS, TILES)
    if NORM_PADDED > 0:
        column = column_block * 8 + tl.arange(0, 8)
        total = total * _norm_factors(squares, column, columns_normed, norm_blocks, eps, NORM_PADDED)[None, :]
    return total


@triton.jit
def _store_blocked(out, row, column, value, rows, tokens, plane, WIDTH: tl.constexpr):
    """out[column / WIDTH, row / 32, column % WIDTH, row % 32]; `plane` is the number of blocks of 32 rows."""
    block = (column // WIDTH * plane)[None, :] + (row // 32)[:, None]
    at = block * (32 * WIDTH) + (column % WIDTH * 32)[None, :] + (row % 32)[:, None]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < tokens)[None, :])


@triton.jit(do_not_specialize=["rows", "tiles", "blocks", "tokens", "columns_normed", "norm_blocks"])
def finish_rows(
    part, squares, out, rows, tiles, blocks, tokens, columns_normed, norm_blocks, eps,
    SLOTS: tl.constexpr, TILES: tl.constexpr, NORM_PADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[t, n] = norm[t] * sum of slots"""
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
    at = column.to(tl.int64)[None, :] * rows + row[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < tokens)[None, :])


@triton.jit(do_not_specialize=["rows", "tiles", "blocks", "tokens", "plane", "columns_normed", "norm_blocks"])
def finish_silu_mul(
    part, squares, out, rows, tiles, blocks, tokens, plane, columns_normed, norm_blocks, eps,
    SLOTS: tl.constexpr, TILES: tl.constexpr, NORM_PADDED: tl.constexpr,
    WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """columns out[t, i] = silu(gate) * up; gate is row i, up row `rows` + i of the product."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    first = tl.program_id(0) * TILES
    column_block = tl.program_id(1)
    gate = _scaled_sums(
        part, squares, first, tiles, blocks, column_block, columns_normed, norm_blocks, eps, SLOTS, TILES, NORM_PADDED
    )
    up = _scaled_sums(
        part, squares, first + rows // 16, tiles, blocks, column_block, columns_normed, norm_blocks, eps,
        SLOTS, TILES, NORM_PADDED,
    )  # fmt: skip
    row = first * 16 + tl.arange(0, 16 * TILES)
    column = column_block * 8 + tl.arange(0, 8)
    _store_blocked(out, row, column, gate / (1.0 + tl.exp(-gate)) * up, rows, tokens, plane, WIDTH)


@triton.jit(do_not_specialize=["rows", "tiles", "blocks", "tokens", "plane"])
def finish_residual(
    part, residual, weight, out, squares, rows, tiles, blocks, tokens, plane,
    SLOTS: tl.constexpr, TILES: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """residual[t, n] += sum of slots; columns out = residual * (1 + weight); squares[t, block]."""
    if DEPENDENT:
        gdc_launch_dependents()
    first = tl.program_id(0) * TILES
    column_block = tl.program_id(1)
    row = first * 16 + tl.arange(0, 16 * TILES)
    column = column_block * 8 + tl.arange(0, 8)
    factor = tl.load(weight + row, mask=row < rows, other=0.0).to(tl.float32) + 1.0
    if DEPENDENT:
        gdc_wait()
    kept = (row < rows)[:, None] & (column < tokens)[None, :]
    at = residual + column.to(tl.int64)[None, :] * rows + row[:, None]
    value = tl.load(at, mask=kept, other=0.0).to(tl.float32)
    if SLOTS > 0:
        value += _add_slots(part, first, tiles, blocks, column_block, SLOTS, TILES)
        rounded = value.to(residual.dtype.element_ty)
        tl.store(at, rounded, mask=kept)
        value = rounded.to(tl.float32)  # the norm is that of the stored stream
    value = tl.where((row < rows)[:, None], value, 0.0)
    _store_blocked(out, row, column, value * factor[:, None], rows, tokens, plane, WIDTH)
    sums = tl.sum(value * value, axis=0)
    tl.store(squares + column * tl.num_programs(0) + tl.program_id(0), sums, mask=column < tokens)
