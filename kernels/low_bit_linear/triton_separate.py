"""Triton route: a product without its end, and each end as a launch of its own, one warp for a tile and eight columns.

Slower than `triton_products` with the same bits: what tests and the benchmark compare those with.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.low_bit_linear.triton_finish import (
    add_residual,
    add_slots,
    clear_squares,
    load_residual,
    row_weights,
    tile_factors,
    tile_squares,
    whole_and_fraction,
    write_residual,
    write_rows,
    write_silu_mul,
)
from ninfer.kernels.low_bit_linear.triton_stream import divide, stream


@triton.jit(do_not_specialize=["plane", "tokens", "tiles", "quanta", "quanta_inverse", "programs", "base",
                               "base_inverse", "longer_inverse"])  # fmt: skip
def stream_one(
    x, words, part, plane, tokens, tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """part[slot, t, n] = sum over a run of k of x[k, t] * w[n, k]; a group has `plane` blocks [WIDTH, 32] of x."""
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    schedule = (tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse)
    stream(x, words, part, group, program, schedule, tokens, BITS, WIDTH, SLOTS, DEPENDENT)


@triton.jit(do_not_specialize=["plane", "tokens", "tiles", "quanta", "quanta_inverse", "programs", "base",
                               "base_inverse", "longer_inverse", "tiles2", "programs2", "base2", "base_inverse2",
                               "longer_inverse2", "both_inverse"])  # fmt: skip
def stream_two(
    x, words, part, words2, part2, plane, tokens,
    tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse,
    tiles2, programs2, base2, base_inverse2, longer_inverse2, both_inverse,
    BITS: tl.constexpr, BITS2: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Two matrices with the same x. Programs of both are interleaved, so that early and late ones serve each."""
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    both = programs + programs2
    before = divide(program * programs, both, both_inverse)  # programs of the first matrix among those before this one
    if divide((program + 1) * programs, both, both_inverse) > before:
        schedule = (tiles, quanta, quanta_inverse, programs, base, base_inverse, longer_inverse)
        stream(x, words, part, group, before, schedule, tokens, BITS, WIDTH, SLOTS, DEPENDENT)
    else:
        schedule = (tiles2, quanta, quanta_inverse, programs2, base2, base_inverse2, longer_inverse2)
        stream(x, words2, part2, group, program - before, schedule, tokens, BITS2, WIDTH, SLOTS, DEPENDENT)


@triton.jit(do_not_specialize=["rows", "tiles", "tokens", "capacity", "columns_normed"])
def finish_rows(
    part, squares, out, rows, tiles, tokens, capacity, columns_normed, eps,
    SLOTS: tl.constexpr, NORMED: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[t, n] = norm[t] * sum of slots"""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    tile = tl.program_id(0)
    block = tl.program_id(1)
    total = add_slots(part, tile, block, tiles, tokens, SLOTS)
    factors = tile_factors(tile_squares(squares, capacity, block, NORMED), columns_normed, eps, NORMED)
    write_rows(total, factors, tile, block, True, out, rows, tokens, WIDTH)


@triton.jit(do_not_specialize=["tiles", "tokens", "plane", "capacity", "columns_normed"])
def finish_silu_mul(
    part, squares, out, tiles, tokens, plane, capacity, columns_normed, eps,
    SLOTS: tl.constexpr, NORMED: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """columns out[t, i] = silu(gate) * up of a paired matrix"""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    tile = tl.program_id(0)
    block = tl.program_id(1)
    total = add_slots(part, tile, block, tiles, tokens, SLOTS)
    factors = tile_factors(tile_squares(squares, capacity, block, NORMED), columns_normed, eps, NORMED)
    write_silu_mul(total, factors, tile, block, True, out, plane, tokens, WIDTH)


@triton.jit(do_not_specialize=["rows", "tiles", "tokens", "plane", "capacity", "cleared_count"])
def finish_residual(
    part, residual, weight, out, squares, cleared, rows, tiles, tokens, plane, capacity, cleared_count,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """residual[t, n] += sum of slots; columns out = residual * (1 + weight); squares; `cleared` = 0"""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    tile = tl.program_id(0)
    block = tl.program_id(1)
    if tile + block == 0:
        clear_squares(cleared, cleared_count)
    total = add_slots(part, tile, block, tiles, tokens, SLOTS)
    rounded = add_residual(total, load_residual(tile, block, True, residual, rows, tokens))
    weights = row_weights(weight, tile, rows)
    write_residual(rounded, weights, tile, block, True, residual, out, squares, capacity, rows, plane, tokens, WIDTH)


@triton.jit(do_not_specialize=["rows", "plane", "capacity", "cleared_count"])
def first_norm(
    residual, weight, out, squares, cleared, rows, plane, capacity, cleared_count,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """columns out = residual * (1 + weight); squares of the residual; `cleared` = 0. A program takes a token."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0)
    if token == 0:
        clear_squares(cleared, cleared_count)
    whole = tl.zeros([BLOCK // 16], tl.int64)
    fraction = tl.zeros([BLOCK // 16], tl.int64)
    corner = out + ((token // WIDTH).to(tl.int64) * plane * WIDTH + token % WIDTH) * 32
    for begin in range(0, rows, BLOCK):
        row = begin + tl.arange(0, BLOCK)
        value = tl.load(residual + token.to(tl.int64) * rows + row, mask=row < rows, other=0.0).to(tl.float32)
        factor = tl.load(weight + row, mask=row < rows, other=0.0).to(tl.float32) + 1.0
        scaled = (value * factor).to(out.dtype.element_ty)
        tl.store(corner + row // 32 * (32 * WIDTH) + row % 32, scaled, mask=row < rows)
        sums = tl.sum((value * value).reshape([BLOCK // 16, 16]), axis=1)
        more_whole, more_fraction = whole_and_fraction(sums)
        whole += more_whole
        fraction += more_fraction
    tl.store(squares + token, tl.sum(whole))
    tl.store(squares + capacity + token, tl.sum(fraction))
