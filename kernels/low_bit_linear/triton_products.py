"""Triton route: the launches of products that finish what they compute.

All integers are runtime values that are never specialised, so one binary per (bits, width, slots) serves every shape.
Neighbouring programs multiply the same weights with further groups of WIDTH columns and find them in a cache.

With dependent launch everything but weights is read after the wait: the predecessor started while *its* predecessor
was still at work, hence nothing older than the weights may be assumed complete before.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.low_bit_linear.triton_finish import (
    clear_squares,
    end_residual,
    end_rows,
    end_silu_mul,
    load_residual,
    row_weights,
    settled,
    tile_factors,
    tile_squares,
)
from ninfer.kernels.low_bit_linear.triton_fragments import opaque
from ninfer.kernels.low_bit_linear.triton_stream import arrive, divide, found, stream


@triton.jit
def _end_normed(
    part, tile, counts, group, tiles, tokens, factors, squares, capacity, columns_normed, eps, out, extent,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, PARTS: tl.constexpr, NORMED: tl.constexpr, SILU_MUL: tl.constexpr,
):  # fmt: skip
    """The ends of two tiles for every block of columns; with more blocks than one each takes its own factors."""
    BLOCKS: tl.constexpr = (WIDTH + 7) // 8
    for n in range(BLOCKS):
        block = group * BLOCKS + n
        if BLOCKS > 1:
            loaded = tile_squares(squares, capacity, block, NORMED)
            applied = tile_factors(loaded, columns_normed, eps, NORMED)
        else:
            applied = factors
        if SILU_MUL:
            end_silu_mul(part, tile, counts, block, tiles, tokens, applied, out, extent, WIDTH, SLOTS, PARTS, 2)
        else:
            end_rows(part, tile, counts, block, tiles, tokens, applied, out, extent, WIDTH, SLOTS, PARTS, 2)


@triton.jit
def _normed(
    x, words, part, counters, out, squares, group, program, schedule, tokens, extent,
    capacity, columns_normed, eps,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr, SILU_MUL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program's part of a product of normed columns. extent: rows of `out`, or the blocks of a group of columns."""
    BLOCKS: tl.constexpr = (WIDTH + 7) // 8
    stream(x, words, part, group, program, schedule, tokens, BITS, WIDTH, SLOTS, DEPENDENT)
    group = opaque(group)
    tiles = schedule[0]
    if BLOCKS == 1:
        loaded = tile_squares(squares, capacity, group, NORMED)
    first, last, arrival = arrive(counters + group * tiles, program, schedule)
    factors = ()
    if BLOCKS == 1:
        factors = settled(tile_factors(loaded, columns_normed, eps, NORMED), NORMED, WIDTH)
    counts = found(arrival)
    # The ends of the run; then the tiles between, which no other program has.
    if counts[0] + counts[1] > 0:
        _end_normed(
            part, (first, last), counts, group, tiles, tokens, factors, squares, capacity, columns_normed, eps,
            out, extent, WIDTH, SLOTS, SLOTS, NORMED, SILU_MUL,
        )  # fmt: skip
    for tile in range(first + 1, last, 2):
        _end_normed(
            part, (tile, tile + 1), (1, (tile + 1 < last).to(tl.int32)), group, tiles, tokens, factors,
            squares, capacity, columns_normed, eps, out, extent, WIDTH, SLOTS, 1, NORMED, SILU_MUL,
        )  # fmt: skip


@triton.jit(do_not_specialize=["plane", "tokens", "tiles", "quanta", "quanta_inverse", "programs", "base",
                               "base_inverse", "longer_inverse", "rows", "capacity", "columns_normed"])  # fmt: skip
def product_rows_one(
    x, words, part, counters, out, squares, plane, tokens,
    tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse, rows, capacity, columns_normed, eps,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[t, n] = norm[t] * sum over k of x[k, t] * w[n, k]; a group has `plane` blocks [WIDTH, 32] of x."""
    group = tl.program_id(0)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    schedule = (tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse)
    _normed(
        x, words, part, counters, out, squares, group, tl.program_id(1), schedule, tokens, rows,
        capacity, columns_normed, eps, BITS, WIDTH, SLOTS, NORMED, False, DEPENDENT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["plane", "tokens", "tiles", "quanta", "quanta_inverse", "programs", "base",
                               "base_inverse", "longer_inverse", "rows", "tiles2", "programs2", "base2",
                               "base_inverse2", "longer_inverse2", "rows2", "both_inverse", "capacity",
                               "columns_normed"])  # fmt: skip
def product_rows_two(
    x, words, part, counters, out, words2, part2, counters2, out2, squares, plane, tokens,
    tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse, rows,
    tiles2, programs2, base2, base_inverse2, longer_inverse2, rows2, both_inverse, capacity, columns_normed, eps,
    BITS: tl.constexpr, BITS2: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Two matrices with the same x. Programs of both are interleaved, so that early and late ones serve each."""
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    both = programs + programs2
    before = divide(program * programs, both, both_inverse)  # programs of the first matrix among those before this one
    if divide((program + 1) * programs, both, both_inverse) > before:
        schedule = (tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse)
        _normed(
            x, words, part, counters, out, squares, group, before, schedule, tokens, rows,
            capacity, columns_normed, eps, BITS, WIDTH, SLOTS, NORMED, False, DEPENDENT,
        )  # fmt: skip
    else:
        schedule = (tiles2, quanta, quanta_inverse, programs2, base2, base_inverse2, longer_inverse2)
        _normed(
            x, words2, part2, counters2, out2, squares, group, program - before, schedule, tokens, rows2,
            capacity, columns_normed, eps, BITS2, WIDTH, SLOTS, NORMED, False, DEPENDENT,
        )  # fmt: skip


@triton.jit(do_not_specialize=["plane", "tokens", "tiles", "quanta", "quanta_inverse", "programs", "base",
                               "base_inverse", "longer_inverse", "out_plane", "capacity",
                               "columns_normed"])  # fmt: skip
def product_silu_mul(
    x, words, part, counters, out, squares, plane, tokens,
    tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse, out_plane,
    capacity, columns_normed, eps,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """columns out[t, i] = silu(gate) * up of a paired matrix"""
    group = tl.program_id(0)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    schedule = (tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse)
    _normed(
        x, words, part, counters, out, squares, group, tl.program_id(1), schedule, tokens, out_plane,
        capacity, columns_normed, eps, BITS, WIDTH, SLOTS, NORMED, True, DEPENDENT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["plane", "tokens", "tiles", "quanta", "quanta_inverse", "programs", "base",
                               "base_inverse", "longer_inverse", "rows", "out_plane", "capacity",
                               "cleared_count"])  # fmt: skip
def product_residual(
    x, words, part, counters, residual, weight, out, squares, cleared, plane, tokens,
    tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse,
    rows, out_plane, capacity, cleared_count,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """residual[t, n] += sum; columns out = residual * (1 + weight); squares of the residual; `cleared` = 0"""
    BLOCKS: tl.constexpr = (WIDTH + 7) // 8
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    schedule = (tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse)
    stream(x, words, part, group, program, schedule, tokens, BITS, WIDTH, SLOTS, DEPENDENT)
    group = opaque(group)
    first, last, arrival = arrive(counters + group * tiles, program, schedule)
    if group + program == 0:
        clear_squares(cleared, cleared_count)
    if WIDTH <= 8 and SLOTS <= 8:
        old = (
            load_residual(first, group, True, residual, rows, tokens),
            load_residual(last, group, True, residual, rows, tokens),
        )
        weights = (row_weights(weight, first, rows), row_weights(weight, last, rows))
        counts = found(arrival)
        if counts[0] + counts[1] > 0:
            end_residual(
                part, (first, last), counts, group, tiles, tokens, old, weights,
                residual, out, squares, capacity, rows, out_plane, WIDTH, SLOTS, SLOTS, 2,
            )  # fmt: skip
    else:
        # One after the other: more at a time would not fit into the registers.
        counts = found(arrival)
        for item in range(2 * BLOCKS):
            count = tl.where(item % 2 == 0, counts[0], counts[1])
            if count > 0:
                _one_residual(
                    part, tl.where(item % 2 == 0, first, last), count, group * BLOCKS + item // 2, tiles, tokens,
                    weight, residual, out, squares, capacity, rows, out_plane, WIDTH, SLOTS, SLOTS,
                )  # fmt: skip
    for tile in range(first + 1, last):
        for n in range(BLOCKS):
            _one_residual(
                part, tile, 1, group * BLOCKS + n, tiles, tokens,
                weight, residual, out, squares, capacity, rows, out_plane, WIDTH, SLOTS, 1,
            )  # fmt: skip


@triton.jit
def _one_residual(
    part, tile, count, block, tiles, tokens, weight, residual, out, squares, capacity, rows, plane,
    WIDTH: tl.constexpr, SLOTS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    end_residual(
        part, (tile,), (count,), block, tiles, tokens, (load_residual(tile, block, True, residual, rows, tokens),),
        (row_weights(weight, tile, rows),), residual, out, squares, capacity, rows, plane, WIDTH, SLOTS, PARTS, 1,
    )  # fmt: skip
