"""Triton route: programs of one warp stream their run of quanta from memory straight into registers.

While one quantum is multiplied the next is on its way into the second set of registers; there is no shared memory and
no barrier between warps. Sixteen programs of at most 128 registers fill a multiprocessor. With dependent launch the
first quantum is loaded before the predecessor's results are waited for: weights do not depend on them.

The sums of a tile lie in slots, one for each program that worked on it. Who finishes a tile learns from its counter
that it is the last to arrive; it then adds the slots in order, so the bits do not depend on who that was. The loop
knows nothing of it: a program looks at its tiles when its run has ended.
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
    opaque,
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
def _owner(quantum, base, longer):
    """The program that computes a quantum (`Schedule.owner`)."""
    border = longer * (base + 1)
    return tl.where(quantum < border, quantum // (base + 1), longer + (quantum - border) // base)


@triton.jit
def run_of(program, programs, tiles, quanta):
    """First quantum of a program's run and the number of its quanta."""
    total = tiles * quanta
    base = total // programs
    longer = total - base * programs
    return program * base + tl.minimum(program, longer), base + (program < longer).to(tl.int32)


@triton.jit
def stream(
    x, words, part, group, program, programs, tokens, blocks, tiles, quanta,
    BITS: tl.constexpr, WIDTH: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Multiply a program's run and store the sum of each of its tiles in the program's slot."""
    LANE_WORDS: tl.constexpr = 4 if BITS == 8 else BITS
    WORDS: tl.constexpr = 128 * LANE_WORDS + 32
    STEP: tl.constexpr = (128 if BITS == 8 else 256) * WIDTH  # elements of x per quantum
    COUNT: tl.constexpr = (WIDTH + 7) // 8
    begin, steps = run_of(program, programs, tiles, quanta)
    words += begin.to(tl.int64) * WORDS
    current = load_quantum(words, LANE_WORDS)
    if DEPENDENT:
        gdc_launch_dependents()
    # The slot in the first tile is the number of earlier programs that work on it; every later tile is begun here.
    tile = begin // quanta
    j = begin - tile * quanta
    base = tiles * quanta // programs
    slot = program - _owner(tile * quanta, base, tiles * quanta - base * programs)
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


@triton.jit
def arrive(counters, program, programs, tiles, quanta):
    """After a run: report its first and last tile as written, and learn which of them this program has to finish: those
    it computed alone, and those whose other programs have arrived before. The counter of a finished tile is zero again.

    returns  first tile, last tile, then of each the number of slots to add: 0 if it is not this program's to finish
    """
    # Numbers of the run are computed anew, so that the loop need not keep them.
    begin, steps = run_of(opaque(program), programs, tiles, quanta)
    first = begin // quanta
    last = (begin + steps - 1) // quanta
    base = tiles * quanta // programs
    longer = tiles * quanta - base * programs
    lane = tl.arange(0, 32)
    ends = (lane == 0) | ((lane == 1) & (last > first))
    tile = tl.where(lane == 0, first, last)
    count = _owner(tile * quanta + quanta - 1, base, longer) - _owner(tile * quanta, base, longer) + 1
    shared = ends & (count > 1)
    # One lane reports what all have stored, and what others stored is read by all.
    tl.debug_barrier()
    before = tl.atomic_add(counters + tile, 1, mask=shared, sem="acq_rel", scope="gpu")
    complete = shared & (before == count - 1)
    tl.store(counters + tile, 0, mask=complete)
    found = tl.where(complete | (ends & (count == 1)), count, 0)
    both = tl.sum(found << (16 * tl.minimum(lane, 1)))
    tl.debug_barrier()
    return first, last, both & 0xFFFF, both >> 16


@triton.jit
def pieces(k, first, last, first_count, last_count):
    """Two tiles of a run and the slots of each: the ends for k = 0, then those between, which no other program has."""
    tile = first + 2 * k - 1
    one = tl.where(k == 0, first, tile)
    two = tl.where(k == 0, last, tile + 1)
    return one, two, tl.where(k == 0, first_count, 1), tl.where(k == 0, last_count, (tile + 1 < last).to(tl.int32))
