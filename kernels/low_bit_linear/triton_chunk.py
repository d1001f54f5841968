"""Triton route of a product with the columns of a short chunk: weights are widened between memory and the matrix unit.

A program takes TILES row tiles and TOKENS tokens and walks the columns in ascending steps of STEP. Every weight becomes
the bfloat16 that `dequantise` writes, and the accumulator sees the same products in the same order of K whatever the
tiles are, so a token's bits depend on its own row of x and on the weights alone.

A unit is one group of one row tile: what a warp widens by itself. Operands cross warps through shared memory, so the
units of a step may lie in other warps than the rows that they are multiplied in.

Rows beyond the last tile are read as zero words, whose scales are zero.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.low_bit_linear import ptx

_SPLIT = tl.constexpr(ptx.SPLIT_SCALES)
_SPLIT_OPERANDS = tl.constexpr(ptx.SPLIT_SCALES_CONSTRAINTS)
_SCALES = tl.constexpr(ptx.SCALES)
_SCALES_OPERANDS = tl.constexpr(ptx.SCALES_CONSTRAINTS)
_WIDEN_4 = tl.constexpr(ptx.widen(4))
_WIDEN_5 = tl.constexpr(ptx.widen(5))
_WIDEN_6 = tl.constexpr(ptx.widen(6))
_WIDEN_8 = tl.constexpr(ptx.widen(8))
_WIDEN_4_OPERANDS = tl.constexpr(ptx.widen_constraints(4))
_WIDEN_5_OPERANDS = tl.constexpr(ptx.widen_constraints(5))
_WIDEN_6_OPERANDS = tl.constexpr(ptx.widen_constraints(6))
_WIDEN_8_OPERANDS = tl.constexpr(ptx.widen_constraints(8))
_TWO_FLOATS = tl.constexpr((tl.float32, tl.float32))
_FOUR_WORDS = tl.constexpr((tl.int32,) * 4)
_PAIRS_16 = tl.constexpr((tl.int32,) * 16)
_PAIRS_8 = tl.constexpr((tl.int32,) * 8)


@triton.jit
def _group_words(quantum, i, found, BITS: tl.constexpr):
    """All words of a lane in a unit, each [tile, group, lane]; of 4 and 8 bits they are 16 bytes in a row.

    quantum  where the quantum of a unit lies, [tile, group]; i: group inside it, [group]"""
    if BITS == 4 or BITS == 8:
        at = (quantum + 128 * i[None, :])[:, :, None] + tl.arange(0, 128)[None, None, :]
        vector = tl.load(at, mask=found[:, None, None], other=0)
        even, odd = tl.split(vector.reshape([vector.shape[0], vector.shape[1], 32, 2, 2]))
        w0, w2 = tl.split(even)
        w1, w3 = tl.split(odd)
        return (w0, w1, w2, w3)
    else:
        lane = tl.arange(0, 32)
        words = ()
        for k in tl.static_range(BITS):
            n = BITS * i + k
            at = quantum[:, :, None] + ((128 * (n // 4) + n % 4)[:, None] + 4 * lane[None, :])[None, :, :]
            words = words + (tl.load(at, mask=found[:, None, None], other=0),)
        return words


@triton.jit
def _units(quantum, i, found, BITS: tl.constexpr):
    """Units as words of two bfloat16 weights: a tensor [tile, group, lane] for every pair of `packing`."""
    LANE_WORDS: tl.constexpr = 4 if BITS == 8 else BITS
    w = _group_words(quantum, i, found, BITS)
    at = (quantum + 128 * LANE_WORDS + i[None, :])[:, :, None] + (tl.arange(0, 32) // 4 * 4)[None, None, :]
    scales = tl.load(at, mask=found[:, None, None], other=0)  # rows g and g + 8
    if BITS == 8:
        s0, s1 = tl.inline_asm_elementwise(_SCALES, _SCALES_OPERANDS, [scales], _TWO_FLOATS, True, 1)
        return tl.inline_asm_elementwise(
            _WIDEN_8, _WIDEN_8_OPERANDS, [w[0], w[1], w[2], w[3], s0, s1], _PAIRS_8, True, 1
        )
    else:
        s0, s1, s2, s3 = tl.inline_asm_elementwise(_SPLIT, _SPLIT_OPERANDS, [scales], _FOUR_WORDS, True, 1)
        if BITS == 4:
            return tl.inline_asm_elementwise(
                _WIDEN_4, _WIDEN_4_OPERANDS, [w[0], w[1], w[2], w[3], s0, s1, s2, s3], _PAIRS_16, True, 1
            )
        elif BITS == 5:
            return tl.inline_asm_elementwise(
                _WIDEN_5, _WIDEN_5_OPERANDS, [w[0], w[1], w[2], w[3], w[4], s0, s1, s2, s3], _PAIRS_16, True, 1
            )
        else:
            tl.static_assert(BITS == 6)
            return tl.inline_asm_elementwise(
                _WIDEN_6, _WIDEN_6_OPERANDS, [w[0], w[1], w[2], w[3], w[4], w[5], s0, s1, s2, s3], _PAIRS_16, True, 1
            )


@triton.jit
def _half(o, P: tl.constexpr):
    """Pairs P .. P + 7 as [tile, group, lane, u, v, r]."""
    upper = tl.join(tl.join(o[P], o[P + 4]), tl.join(o[P + 2], o[P + 6]))
    lower = tl.join(tl.join(o[P + 1], o[P + 5]), tl.join(o[P + 3], o[P + 7]))
    return tl.join(upper, lower)


@triton.jit
def _weights(words, step, found, BITS: tl.constexpr, TILES: tl.constexpr, STEP: tl.constexpr):
    """Columns [STEP step, STEP step + STEP) of some row tiles, [16 TILES, STEP] bf16; row 16 tile + 8 r + g."""
    WORDS: tl.constexpr = 128 * (4 if BITS == 8 else BITS) + 32
    GROUPS: tl.constexpr = STEP // 32 if BITS == 8 else STEP // 64
    group = step * GROUPS + tl.arange(0, GROUPS)
    o = _units(words[:, None] + (group // 4 * WORDS)[None, :], group % 4, found, BITS)
    if BITS == 8:
        pairs = _half(o, 0)
    else:
        pairs = tl.join(_half(o, 0), _half(o, 8))  # tile, group, lane, u, v, r, h
    low = pairs.to(tl.int16).to(tl.bfloat16, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    both = tl.join(low, high)
    if BITS == 8:
        both = both.reshape([TILES, GROUPS, 8, 4, 2, 2, 2, 2])  # tile, group, g, t, u, v, r, e
        both = both.permute([0, 6, 2, 1, 3, 4, 5, 7])
    else:
        both = both.reshape([TILES, GROUPS, 8, 4, 2, 2, 2, 2, 2])  # tile, group, g, t, u, v, r, h, e
        both = both.permute([0, 6, 2, 1, 7, 3, 4, 5, 8])
    return both.reshape([16 * TILES, STEP])


@triton.jit(do_not_specialize=["tokens", "steps", "quanta", "tiles", "rows8", "half8", "apart8", "stride8"])
def product_chunk(
    x, words, out, tokens, steps, quanta, tiles, rows8, half8, apart8, stride8,
    BITS: tl.constexpr, TILES: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out[t, 8 (half8 r + apart8 tile) + g] = sum over k of x[t, k] w[16 tile + 8 r + g, k]; bf16, rounded once.

    x [tokens, STEP steps], out with rows 8 stride8 elements apart; `tiles` row tiles, 8 rows8 rows."""
    WORDS: tl.constexpr = 128 * (4 if BITS == 8 else BITS) + 32
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    tile = tl.program_id(1) * TILES + tl.arange(0, TILES)
    found = tile < tiles
    first = words + tile.to(tl.int64) * quanta * WORDS
    row = x + token.to(tl.int64) * steps * STEP
    total = tl.zeros([TOKENS, 16 * TILES], tl.float32)
    for step in tl.range(steps, num_stages=STAGES):
        column = step * STEP + tl.arange(0, STEP)
        values = tl.load(row[:, None] + column[None, :], mask=(token < tokens)[:, None], other=0.0)
        total = tl.dot(values, _weights(first, step, found, BITS, TILES, STEP).T, total)
    n = tl.arange(0, 16 * TILES)
    at = tl.program_id(1) * TILES + n // 16
    row8 = n // 8 % 2 * half8 + at * apart8
    inside = (at < tiles) & (row8 < rows8)
    place = token.to(tl.int64)[:, None] * stride8 * 8 + (row8 * 8 + n % 8)[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(token < tokens)[:, None] & inside[None, :])
