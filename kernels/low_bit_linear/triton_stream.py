"""Triton route: programs of one warp stream their run of quanta from memory straight into registers.

While one quantum is multiplied the next is on its way into the second set of registers; there is no shared memory and
no barrier between warps. Sixteen programs of at most 128 registers fill a multiprocessor. With dependent launch the
first quantum is loaded before the predecessor's results are waited for: weights do not depend on them.

All integers are runtime values that are never specialised, so one binary per (bits, width) serves every shape.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.low_bit_linear.triton_fragments import (
    column_offsets,
    column_operand,
    group_scales,
    load_quantum,
    order_point,
    scale_tile,
    weight_operand,
)


@triton.jit
def _zeros(COUNT: tl.constexpr):
    sums = ()
    for _ in tl.static_range(COUNT):
        sums = sums + (tl.zeros([2, 8, 4, 2], tl.float32),)  # r, g, t, e: row 8 r + g, column 2 t + e
    return sums


@triton.jit
def _multiply_quantum(sums, quantum, x, offsets, BITS: tl.constexpr, WIDTH: tl.constexpr):
    """sums + quantum @ x: per group an exact product of codes in fp32, then its scale."""
    GROUP: tl.constexpr = 32 if BITS == 8 else 64
    LANE_WORDS: tl.constexpr = 4 if BITS == 8 else BITS
    COUNT: tl.constexpr = (WIDTH + 7) // 8
    scales = group_scales(quantum, LANE_WORDS)
    for i in tl.static_range(4):
        columns = ()
        for n in tl.static_range(COUNT):
            columns = columns + (column_operand(x + i * GROUP * WIDTH, offsets[n], WIDTH, GROUP),)
        rows = weight_operand(quantum, i, BITS)
        scale = scale_tile(scales[i])
        added = ()
        for n in tl.static_range(COUNT):
            added = added + (sums[n] + tl.dot(rows, columns[n]).reshape([2, 8, 4, 2]) * scale,)
        sums = added
    return sums


@triton.jit
def _store_sums(sums, part, tile, slot, group, tokens, blocks, tiles, COUNT: tl.constexpr):
    """part[slot, block of eight columns, tile, 4 lane + 2 r + e]: 16 bytes per lane, as the lane has them. Lanes
    without a column that exists store nothing."""
    element = tl.arange(0, 128)
    column = element // 4 % 4 * 2
    corner = part + ((slot.to(tl.int64) * blocks + group * COUNT) * tiles + tile) * 128 + element
    for n in tl.static_range(COUNT):
        flat = sums[n].permute([1, 2, 0, 3]).reshape([128])
        tl.store(corner + n * tiles * 128, flat, mask=column + 8 * (n + group * COUNT) < tokens)


@triton.jit
def _run(
    x, words, part, group, program, programs, tokens, blocks, tiles, quanta,
    BITS: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    LANE_WORDS: tl.constexpr = 4 if BITS == 8 else BITS
    WORDS: tl.constexpr = 128 * LANE_WORDS + 32
    STEP: tl.constexpr = (128 if BITS == 8 else 256) * WIDTH  # elements of x per quantum
    COUNT: tl.constexpr = (WIDTH + 7) // 8
    total = tiles * quanta
    base = total // programs
    longer = total - base * programs
    begin = program * base + tl.minimum(program, longer)
    steps = base + (program < longer).to(tl.int32)
    words += begin.to(tl.int64) * WORDS
    current = load_quantum(words, LANE_WORDS)
    if DEPENDENT:
        gdc_launch_dependents()
    # The slot in the first tile is the number of earlier programs that work on it; every later tile is begun here.
    tile = begin // quanta
    j = begin - tile * quanta
    first = tile * quanta
    border = longer * (base + 1)
    owner = tl.where(first < border, first // (base + 1), longer + (first - border) // base)
    slot = program - owner
    offsets = ()
    for n in tl.static_range(COUNT):
        offsets = offsets + (column_offsets(n, WIDTH),)
    if DEPENDENT:
        gdc_wait()
    sums = _zeros(COUNT)
    for step in tl.range(0, steps, num_stages=1):
        # The last step loads its own quantum again, from a cache: cheaper than a branch or a second copy of the code.
        following = load_quantum(words + tl.minimum(step + 1, steps - 1) * WORDS, LANE_WORDS)
        order_point(j)
        sums = _multiply_quantum(sums, current, x + j * STEP, offsets, BITS, WIDTH)
        last = j == quanta - 1
        if last | (step == steps - 1):
            _store_sums(sums, part, tile, slot, group, tokens, blocks, tiles, COUNT)
            sums = _zeros(COUNT)
        j = tl.where(last, 0, j + 1)
        tile = tl.where(last, tile + 1, tile)
        slot = tl.where(last, 0, slot)
        current = following


# Neighbouring programs multiply the same weights with further groups of WIDTH columns and find them in a cache.


@triton.jit(do_not_specialize=["plane", "tokens", "blocks", "quanta", "tiles", "programs"])
def stream_one(
    x, words, part, plane, tokens, blocks, quanta, tiles, programs,
    BITS: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """part[slot, t, n] = sum over a run of k of x[k, t] * w[n, k]; a group has `plane` blocks [WIDTH, 32] of x."""
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    _run(x, words, part, group, program, programs, tokens, blocks, tiles, quanta, BITS, WIDTH, DEPENDENT)


@triton.jit(do_not_specialize=["plane", "tokens", "blocks", "quanta", "tiles", "programs", "tiles2", "programs2"])
def stream_two(
    x, words, part, words2, part2, plane, tokens, blocks, quanta, tiles, programs, tiles2, programs2,
    BITS: tl.constexpr, BITS2: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Two matrices with the same x. Programs of both are interleaved, so that early and late ones serve each."""
    group = tl.program_id(0)
    program = tl.program_id(1)
    x += group.to(tl.int64) * plane * (32 * WIDTH)
    both = programs + programs2
    before = (program * programs) // both  # programs of the first matrix among those before this one
    if ((program + 1) * programs) // both > before:
        _run(x, words, part, group, before, programs, tokens, blocks, tiles, quanta, BITS, WIDTH, DEPENDENT)
    else:
        second = program - before
        _run(x, words2, part2, group, second, programs2, tokens, blocks, tiles2, quanta, BITS2, WIDTH, DEPENDENT)
