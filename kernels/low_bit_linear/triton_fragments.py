"""Device functions of the Triton route: packed words to operands of the matrix unit, without moving data between lanes.

The shapes and permutations below describe what each lane already holds in the numbering of Triton's operand layouts, so
the compiler has nothing to convert: the compile matrix checks that no shuffle is left.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.low_bit_linear import ptx

# The order in which tl.dot numbers k inside a lane when joins feed it: kWidth 4 up to Triton 3.7, 2 from 3.8 on. A
# wrong value gives right results by way of shuffles.
K_WIDTH = tl.constexpr(4 if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 8) else 2)

_ASM_4 = tl.constexpr(ptx.unpack(4, 0))
_ASM_5_EVEN = tl.constexpr(ptx.unpack(5, 0))
_ASM_5_ODD = tl.constexpr(ptx.unpack(5, 1))
_ASM_6 = tl.constexpr(ptx.unpack(6, 0))
_ASM_8 = tl.constexpr(ptx.unpack(8, 0))
_OPERANDS_4 = tl.constexpr(ptx.unpack_constraints(4))
_OPERANDS_5 = tl.constexpr(ptx.unpack_constraints(5))
_OPERANDS_6 = tl.constexpr(ptx.unpack_constraints(6))
_OPERANDS_8 = tl.constexpr(ptx.unpack_constraints(8))
_PAIRS_16 = tl.constexpr((tl.bfloat16,) * 16)
_PAIRS_8 = tl.constexpr((tl.bfloat16,) * 8)
_SCALES = tl.constexpr(ptx.SCALES)
_SCALES_OPERANDS = tl.constexpr(ptx.SCALES_CONSTRAINTS)
_TWO_FLOATS = tl.constexpr((tl.float32, tl.float32))
_ORDER_POINT = tl.constexpr(ptx.ORDER_POINT)
_OPAQUE = tl.constexpr(ptx.OPAQUE)
_VARYING = tl.constexpr(ptx.VARYING)
_ORDER_POINT_OPERANDS = tl.constexpr(ptx.ORDER_POINT_CONSTRAINTS)


@triton.jit
def order_point(z):
    """No load may move across; `z` is any int32 scalar."""
    tl.inline_asm_elementwise(_ORDER_POINT, _ORDER_POINT_OPERANDS, [z], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def opaque(z):
    """`z`, any int32; what is computed from it is not taken for what was computed from `z` before."""
    return tl.inline_asm_elementwise(_OPAQUE, _ORDER_POINT_OPERANDS, [z], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def varying(z):
    """`z`, any int32 scalar, as a value that lanes might hold differently."""
    return tl.inline_asm_elementwise(_VARYING, _ORDER_POINT_OPERANDS, [z], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def minus_zero(COUNT: tl.constexpr):
    """-0.0, [COUNT] fp32; a literal would lose its sign."""
    return tl.full([COUNT], -(1 << 31), tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def load_quantum(words, LANE_WORDS: tl.constexpr):
    """All words of a quantum: LANE_WORDS times [128] codes and [32, 4] scales, 16 bytes per lane each."""
    code = tl.arange(0, 128)
    lane = tl.arange(0, 32)
    scale = (lane // 4 * 4)[:, None] + tl.arange(0, 4)[None, :]
    chunks = ()
    for j in tl.static_range(LANE_WORDS):
        chunks = chunks + (tl.load(words + 128 * j + code, eviction_policy="evict_first"),)
    return chunks + (tl.load(words + 128 * LANE_WORDS + scale, eviction_policy="evict_first"),)


@triton.jit
def group_scales(quantum, LANE_WORDS: tl.constexpr):
    """The four scale words [g, t] of a quantum; fp16 halves: row g, row g + 8. Split as words, for a split of the
    loaded halves would wait for the load at once."""
    even, odd = tl.split(quantum[LANE_WORDS].reshape([8, 4, 2, 2]))
    s0, s2 = tl.split(even)
    s1, s3 = tl.split(odd)
    return (s0, s1, s2, s3)


@triton.jit
def scale_pair(words):
    """Scale words [g, t] as fp32 [g, t] of row g, and of row g + 8."""
    return tl.inline_asm_elementwise(_SCALES, _SCALES_OPERANDS, [words], dtype=_TWO_FLOATS, is_pure=True, pack=1)


@triton.jit
def scale_tile(words):
    """Scale words [g, t] as fp32 [r, g, t, 1]."""
    upper, lower = scale_pair(words)
    return tl.join(upper, lower).permute([2, 0, 1])[:, :, :, None]


@triton.jit
def _word_pair(quantum, i: tl.constexpr):
    """Words 2i and 2i + 1 of every lane, [32, 2]: an asm call with pack=2 sees exactly these two, whatever the order of
    registers in the loaded tensor."""
    first, second = tl.split(quantum[i // 2].reshape([32, 2, 2]).permute([0, 2, 1]))
    if i % 2 == 0:
        return first
    else:
        return second


@triton.jit
def _half_operand(o, P: tl.constexpr):
    """Pairs P .. P + 7, each [lane, e], as [lane, e, u, v, r]."""
    upper = tl.join(tl.join(o[P], o[P + 4]), tl.join(o[P + 2], o[P + 6]))
    lower = tl.join(tl.join(o[P + 1], o[P + 5]), tl.join(o[P + 3], o[P + 7]))
    return tl.join(upper, lower)


@triton.jit
def _operand_64(o):
    """16 pairs as the operand [16, 64]; row = 8 r + g."""
    a = tl.join(_half_operand(o, 0), _half_operand(o, 8)).reshape([8, 4, 2, 2, 2, 2, 2])  # g, t, e, u, v, r, h
    if K_WIDTH == 4:
        a = a.permute([5, 0, 6, 4, 1, 3, 2])
    else:
        a = a.permute([5, 0, 6, 3, 4, 1, 2])
    return a.reshape([16, 64])


@triton.jit
def _operand_32(o):
    """8 pairs as the operand [16, 32]; row = 8 r + g."""
    a = _half_operand(o, 0).reshape([8, 4, 2, 2, 2, 2])  # g, t, e, u, v, r
    if K_WIDTH == 4:
        a = a.permute([5, 0, 4, 1, 3, 2])
    else:
        a = a.permute([5, 0, 3, 4, 1, 2])
    return a.reshape([16, 32])


@triton.jit
def group_pairs(quantum, i: tl.constexpr, BITS: tl.constexpr):
    """Codes of group i of a quantum, exact in bfloat16: a tensor [lane, e] for every pair of `packing`."""
    if BITS == 4:
        c0 = _word_pair(quantum, 2 * i)
        c1 = _word_pair(quantum, 2 * i + 1)
        return tl.inline_asm_elementwise(_ASM_4, _OPERANDS_4, [c0, c1], dtype=_PAIRS_16, is_pure=True, pack=2)
    elif BITS == 8:
        c0 = _word_pair(quantum, 2 * i)
        c1 = _word_pair(quantum, 2 * i + 1)
        return tl.inline_asm_elementwise(_ASM_8, _OPERANDS_8, [c0, c1], dtype=_PAIRS_8, is_pure=True, pack=2)
    elif BITS == 6:
        c0 = _word_pair(quantum, 3 * i)
        c1 = _word_pair(quantum, 3 * i + 1)
        c2 = _word_pair(quantum, 3 * i + 2)
        return tl.inline_asm_elementwise(_ASM_6, _OPERANDS_6, [c0, c1, c2], dtype=_PAIRS_16, is_pure=True, pack=2)
    else:
        tl.static_assert(BITS == 5)
        c0 = _word_pair(quantum, 5 * i // 2)
        c1 = _word_pair(quantum, 5 * i // 2 + 1)
        c2 = _word_pair(quantum, 5 * i // 2 + 2)
        if i % 2 == 0:
            return tl.inline_asm_elementwise(
                _ASM_5_EVEN, _OPERANDS_5, [c0, c1, c2], dtype=_PAIRS_16, is_pure=True, pack=2
            )
        else:
            return tl.inline_asm_elementwise(
                _ASM_5_ODD, _OPERANDS_5, [c0, c1, c2], dtype=_PAIRS_16, is_pure=True, pack=2
            )


@triton.jit
def weight_operand(quantum, i: tl.constexpr, BITS: tl.constexpr):
    """Codes of group i of a quantum, exact in bfloat16: [16, group]."""
    o = group_pairs(quantum, i, BITS)
    if BITS == 8:
        return _operand_32(o)
    else:
        return _operand_64(o)


@triton.jit
def row_pieces(o, P: tl.constexpr):
    """Pairs P .. P + 7 as eight consecutive columns of each lane's two rows: [lane, 8] for row g, for row g + 8."""
    upper = tl.join(tl.join(o[P], o[P + 4]), tl.join(o[P + 2], o[P + 6]))  # lane, e, u, v
    lower = tl.join(tl.join(o[P + 1], o[P + 5]), tl.join(o[P + 3], o[P + 7]))
    return upper.permute([0, 2, 3, 1]).reshape([32, 8]), lower.permute([0, 2, 3, 1]).reshape([32, 8])


@triton.jit
def column_offsets(n: tl.constexpr, WIDTH: tl.constexpr):
    """Where the lanes find columns 8n .. 8n + 7 inside a block of 32 rows of x. Beyond WIDTH the last repeats."""
    lane = tl.arange(0, 32)
    column = tl.minimum(lane // 4 + 8 * n, WIDTH - 1)
    return (lane % 4 * 8 + column * 32)[:, None] + tl.arange(0, 8)[None, :]


@triton.jit
def column_operand(x, offsets, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """The operand [GROUP, 8] of eight columns, from x [GROUP / 32, WIDTH, 32]."""
    if GROUP == 64:
        halves = tl.join(tl.load(x + offsets), tl.load(x + 32 * WIDTH + offsets))
        v = halves.reshape([8, 4, 2, 2, 2, 2])  # g, t, u, v, e, h
        if K_WIDTH == 4:
            v = v.permute([5, 3, 1, 2, 4, 0])
        else:
            v = v.permute([5, 2, 3, 1, 4, 0])
        return v.reshape([64, 8])
    else:
        v = tl.load(x + offsets).reshape([8, 4, 2, 2, 2])  # g, t, u, v, e
        if K_WIDTH == 4:
            v = v.permute([3, 1, 2, 4, 0])
        else:
            v = v.permute([2, 3, 1, 4, 0])
        return v.reshape([32, 8])
