"""Triton route: programs of one warp stream their run of quanta from memory straight into registers.

While one quantum is multiplied the next is on its way into the second set of registers; there is no shared memory and
no barrier between warps. Sixteen programs of at most 128 registers fill a multiprocessor. With dependent launch the
first quantum is loaded before the predecessor's results are waited for: weights do not depend on them.

The sums of a tile lie in slots, one for each program that worked on it. Who finishes a tile learns from its counter
that it is the last to arrive; it then adds the slots in order, so the bits do not depend on who that was. The loop
knows nothing of it: a program looks at its tiles when its run has ended.

Nothing is fenced. A fence would wait for the stores, an acquire would also empty the cache that the neighbours on the
multiprocessor read x from. Instead every word says itself that it is there: between launches slots hold zero bits, and
a sum that is zero is stored as -0.0. Counters are relaxed and tell only who finishes; that one reads words, past the
cache, until none is zero, and puts the zeros back. It never waits for a program to start or to get on: who has arrived
has issued its stores. The zeros are seen by the next launch as all that a launch writes.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.low_bit_linear import schedule as schedules
from ninfer.kernels.low_bit_linear.triton_fragments import (
    column_offsets,
    column_operand,
    group_scales,
    load_quantum,
    minus_zero,
    opaque,
    order_point,
    scale_tile,
    varying,
    weight_operand,
)

_INVERSE_BITS = tl.constexpr(schedules.INVERSE_BITS)


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
def _store_sums(sums, part, tile, slot, group, tokens, tiles, SLOTS: tl.constexpr, COUNT: tl.constexpr):
    """part[block of eight columns, tile, slot, 4 lane + 2 r + e]: 16 bytes per lane, as the lane has them; no word is
    zero bits. Lanes without a column that exists store nothing."""
    element = tl.arange(0, 128)
    column = element // 4 % 4 * 2
    corner = part + ((group * COUNT * tiles + tile).to(tl.int64) * SLOTS + slot) * 128 + element
    for n in tl.static_range(COUNT):
        flat = sums[n].permute([1, 2, 0, 3]).reshape([128])
        flat = tl.where(flat == 0.0, minus_zero(128), flat)
        tl.store(corner + n * tiles * (SLOTS * 128), flat, mask=column + 8 * (n + group * COUNT) < tokens)


@triton.jit
def divide(n, divisor, inverse):
    """n // divisor for 0 <= n < 2**30, with the `inverse` of `schedule`."""
    shifted = n.to(tl.uint32) << (32 - _INVERSE_BITS)
    quotient = tl.umulhi(shifted, inverse.to(tl.uint32)).to(tl.int32)
    return quotient - (quotient * divisor > n).to(tl.int32)


@triton.jit
def _longer(schedule):
    """How many runs have a quantum more than the others: those of the first programs."""
    tiles, quanta, _, programs, base, _, _ = schedule
    return tiles * quanta - base * programs


@triton.jit
def _owner(quantum, schedule):
    """The program that computes a quantum (`Schedule.owner`)."""
    _, _, _, _, base, base_inverse, longer_inverse = schedule
    longer = _longer(schedule)
    border = longer * (base + 1)
    early = quantum < border
    inverse = tl.where(early, longer_inverse, base_inverse)
    run = divide(quantum - tl.where(early, 0, border), base + early.to(tl.int32), inverse)
    return run + tl.where(early, 0, longer)


@triton.jit
def run_of(program, schedule):
    """First quantum of a program's run and the number of its quanta."""
    _, _, _, _, base, _, _ = schedule
    longer = _longer(schedule)
    return program * base + tl.minimum(program, longer), base + (program < longer).to(tl.int32)


@triton.jit
def stream(
    x, words, part, group, program, schedule, tokens,
    BITS: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Multiply a program's run and store the sum of each of its tiles in the program's slot. `schedule` is a tuple of
    what the host computes from a `Schedule` (`triton_launch`)."""
    tiles, quanta, quanta_inverse, _, _, _, _ = schedule
    LANE_WORDS: tl.constexpr = 4 if BITS == 8 else BITS
    WORDS: tl.constexpr = 128 * LANE_WORDS + 32
    STEP: tl.constexpr = (128 if BITS == 8 else 256) * WIDTH  # elements of x per quantum
    COUNT: tl.constexpr = (WIDTH + 7) // 8
    begin, steps = run_of(program, schedule)
    words += begin.to(tl.int64) * WORDS
    current = load_quantum(words, LANE_WORDS)
    if DEPENDENT:
        gdc_launch_dependents()
    # The slot in the first tile is the number of earlier programs that work on it; every later tile is begun here.
    tile = divide(begin, quanta, quanta_inverse)
    j = begin - tile * quanta
    slot = program - _owner(tile * quanta, schedule)
    # Computed here, while the predecessor is waited for, and not where they are used first.
    tile, j, slot = varying(tile), varying(j), varying(slot)
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
            _store_sums(sums, part, tile, slot, group, tokens, tiles, SLOTS, COUNT)
            sums = _zeros(COUNT)
        j = tl.where(last, 0, j + 1)
        tile = tl.where(last, tile + 1, tile)
        slot = tl.where(last, 0, slot)
        current = following


@triton.jit
def arrive(counters, program, schedule):
    """After a run: count this program at its first and its last tile.

    returns  first tile, last tile, what `found` needs; until that is called nothing waits for the counters
    """
    _, quanta, quanta_inverse, _, _, _, _ = schedule
    # Numbers of the run are computed anew, so that the loop need not keep them.
    begin, steps = run_of(opaque(program), schedule)
    first = divide(begin, quanta, quanta_inverse)
    last = divide(begin + steps - 1, quanta, quanta_inverse)
    lane = tl.arange(0, 32)
    ends = (lane == 0) | ((lane == 1) & (last > first))
    tile = tl.where(lane == 0, first, last)
    count = _owner(tile * quanta + quanta - 1, schedule) - _owner(tile * quanta, schedule) + 1
    before = tl.atomic_add(counters + tile, 1, mask=ends & (count > 1), sem="relaxed", scope="gpu")
    return first, last, (counters + tile, tl.where(ends, count, 0), before)


@triton.jit
def found(arrival):
    """Which of a run's first and last tile this program has to finish: those it computed alone, and those whose other
    programs have arrived before. The counter of such a tile is zero again.

    returns  of each the number of slots to add: 0 if it is not this program's to finish
    """
    counter, count, before = arrival
    complete = (count > 1) & (before == count - 1)
    tl.store(counter, 0, mask=complete)
    slots = tl.where(complete | (count == 1), count, 0)
    both = tl.sum(slots << (16 * tl.minimum(tl.arange(0, 32), 1)))
    return both & 0xFFFF, both >> 16
