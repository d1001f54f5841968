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

from ninfer.kernels.low_bit_linear.triton_finish import clear_squares, end_residual, end_rows, end_silu_mul
from ninfer.kernels.low_bit_linear.triton_fragments import opaque
from ninfer.kernels.low_bit_linear.triton_stream import arrive, pieces, stream


@triton.jit
def _rows(
    x, words, part, counters, out, squares, group, program, programs, tokens, blocks, quanta, tiles, rows,
    capacity, columns_normed, eps,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (WIDTH + 7) // 8
    stream(x, words, part, group, program, programs, tokens, blocks, tiles, quanta, BITS, WIDTH, DEPENDENT)
    group = opaque(group)
    first, last, first_count, last_count = arrive(counters + group * tiles, program, programs, tiles, quanta)
    for k in range((last - first) // 2 + 1):
        one, two, one_count, two_count = pieces(k, first, last, first_count, last_count)
        if one_count + two_count > 0:
            for n in range(BLOCKS):
                end_rows(
                    part, (one, two), (one_count, two_count), group * BLOCKS + n, blocks, tiles, tokens,
                    squares, capacity, columns_normed, eps, out, rows, WIDTH, SLOTS, NORMED, 2,
                )  # fmt: skip


@triton.jit(do_not_specialize=["plane", "tokens", "blocks", "quanta", "tiles", "programs", "rows", "capacity",
                               "columns_normed"])  # fmt: skip
def product_rows_one(
    x, words, part, counters, out, squares, plane, tokens, blocks, quanta, tiles, programs, rows,
    capacity, columns_normed, eps,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out[t, n] = norm[t] * sum over k of x[k, t] * w[n, k]; a group has `plane` blocks [WIDTH, 32] of x."""
    group = tl.program_id(0)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    _rows(
        x, words, part, counters, out, squares, group, tl.program_id(1), programs, tokens, blocks, quanta, tiles, rows,
        capacity, columns_normed, eps, BITS, WIDTH, SLOTS, NORMED, DEPENDENT,
    )  # fmt: skip


@triton.jit(do_not_specialize=["plane", "tokens", "blocks", "quanta", "tiles", "programs", "rows", "tiles2",
                               "programs2", "rows2", "capacity", "columns_normed"])  # fmt: skip
def product_rows_two(
    x, words, part, counters, out, words2, part2, counters2, out2, squares, plane, tokens, blocks, quanta,
    tiles, programs, rows, tiles2, programs2, rows2, capacity, columns_normed, eps,
    BITS: tl.constexpr, BITS2: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Two matrices with the same x. Programs of both are interleaved, so that early and late ones serve each."""
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    both = programs + programs2
    before = (program * programs) // both  # programs of the first matrix among those before this one
    if ((program + 1) * programs) // both > before:
        _rows(
            x, words, part, counters, out, squares, group, before, programs, tokens, blocks, quanta, tiles, rows,
            capacity, columns_normed, eps, BITS, WIDTH, SLOTS, NORMED, DEPENDENT,
        )  # fmt: skip
    else:
        _rows(
            x, words2, part2, counters2, out2, squares, group, program - before, programs2, tokens, blocks, quanta,
            tiles2, rows2, capacity, columns_normed, eps, BITS2, WIDTH, SLOTS, NORMED, DEPENDENT,
        )  # fmt: skip


@triton.jit(do_not_specialize=["plane", "tokens", "blocks", "quanta", "tiles", "programs", "out_plane", "capacity",
                               "columns_normed"])  # fmt: skip
def product_silu_mul(
    x, words, part, counters, out, squares, plane, tokens, blocks, quanta, tiles, programs, out_plane,
    capacity, columns_normed, eps,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """columns out[t, i] = silu(gate) * up of a paired matrix"""
    BLOCKS: tl.constexpr = (WIDTH + 7) // 8
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    stream(x, words, part, group, program, programs, tokens, blocks, tiles, quanta, BITS, WIDTH, DEPENDENT)
    group = opaque(group)
    first, last, first_count, last_count = arrive(counters + group * tiles, program, programs, tiles, quanta)
    for k in range((last - first) // 2 + 1):
        one, two, one_count, two_count = pieces(k, first, last, first_count, last_count)
        if one_count + two_count > 0:
            for n in range(BLOCKS):
                end_silu_mul(
                    part, (one, two), (one_count, two_count), group * BLOCKS + n, blocks, tiles, tokens,
                    squares, capacity, columns_normed, eps, out, out_plane, WIDTH, SLOTS, NORMED, 2,
                )  # fmt: skip


@triton.jit(do_not_specialize=["plane", "tokens", "blocks", "quanta", "tiles", "programs", "rows", "out_plane",
                               "capacity", "cleared_count"])  # fmt: skip
def product_residual(
    x, words, part, counters, residual, weight, out, squares, cleared, plane, tokens, blocks, quanta, tiles, programs,
    rows, out_plane, capacity, cleared_count,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """residual[t, n] += sum; columns out = residual * (1 + weight); squares of the residual; `cleared` = 0"""
    BLOCKS: tl.constexpr = (WIDTH + 7) // 8
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    stream(x, words, part, group, program, programs, tokens, blocks, tiles, quanta, BITS, WIDTH, DEPENDENT)
    if group + program == 0:
        clear_squares(cleared, cleared_count)
    group = opaque(group)
    first, last, first_count, last_count = arrive(counters + group * tiles, program, programs, tiles, quanta)
    for k in range((last - first) // 2 + 1):
        one, two, one_count, two_count = pieces(k, first, last, first_count, last_count)
        if one_count + two_count > 0:
            if WIDTH <= 8:
                end_residual(
                    part, (one, two), (one_count, two_count), group, blocks, tiles, tokens,
                    residual, weight, out, squares, capacity, rows, out_plane, WIDTH, SLOTS, 2,
                )  # fmt: skip
            else:
                # One after the other: with more at a time the loop of the product would lose registers.
                for item in range(2 * BLOCKS):
                    tile = tl.where(item % 2 == 0, one, two)
                    count = tl.where(item % 2 == 0, one_count, two_count)
                    if count > 0:
                        end_residual(
                            part, (tile,), (count,), group * BLOCKS + item // 2, blocks, tiles, tokens,
                            residual, weight, out, squares, capacity, rows, out_plane, WIDTH, SLOTS, 1,
                        )  # fmt: skip
