"""Device functions of decode attention: a page from memory straight into operands of the matrix unit.

Keys are the rows of both products: scores^T = K q^T, out^T = V^T p^T, so that a query costs a column of eight and not
a row of sixteen. The four warps of a program are the batch of a batched product: warp w has the keys 32 r + 8 w + g of
a page (r < 2, g < 8) in the first product and the columns [64 w, 64 w + 64) in the second. Batched products use the
matrix unit of a single warp on every chip, so a query's bits do not depend on how many others there are.

Shapes and permutations describe what a lane (g = lane // 4, t = lane % 4) already holds: 16 bytes of a key's row for
the first product, which sums over the row in any order; 8 neighbours of sixteen keys for the second.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.kv_codec import ptx

# The order in which tl.dot numbers k inside a lane when joins feed it: kWidth 4 for halves (8 for bytes) up to Triton
# 3.7, 2 (4) from 3.8 on. A wrong value gives right results by way of shuffles.
K_WIDTH = tl.constexpr(4 if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 8) else 2)

PAGE = tl.constexpr(64)
WIDTH = tl.constexpr(256)
_INT8 = tl.constexpr(ptx.INT8_PAIRS)
_INT8_OPERANDS = tl.constexpr(ptx.INT8_PAIRS_CONSTRAINTS)
_INT8_TYPES = tl.constexpr((tl.float16,) * 4)
_FETCH = tl.constexpr(ptx.FETCH)
_BF16 = tl.constexpr(ptx.BF16_PAIRS)
_BF16_OPERANDS = tl.constexpr(ptx.BF16_PAIRS_CONSTRAINTS)
_BF16_TYPES = tl.constexpr((tl.bfloat16,) * 2)


@triton.jit
def page_keys():
    """Which key of a page stands at [warp, row]: int32 [4, 16]."""
    row = tl.arange(0, 16)
    return (row // 8 * 32 + row % 8)[None, :] + (tl.arange(0, 4) * 8)[:, None]


@triton.jit
def fetch_page(keys, values, page, INT8: tl.constexpr):
    """Ask for a page of one key head from memory; `page` counts both."""
    line = tl.arange(0, 128 if INT8 else 256) * 128 + page * (64 * 256 if INT8 else 64 * 512)
    for plane in tl.static_range(2):
        address = (values if plane else keys).to(tl.int64) + line
        tl.inline_asm_elementwise(_FETCH, "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _held(COUNT: tl.constexpr):
    """(repetition, warp, g, t) of row i of a tensor [COUNT * 128, ..]: rows go to lanes, then warps, in order."""
    i = tl.arange(0, COUNT * 128)[:, None]
    return i // 128, i // 32 % 4, i // 4 % 8, i % 4


@triton.jit
def load_keys(keys, row, WORDS: tl.constexpr):
    """The page whose first row is `row`, WORDS (64 or 128) 32-bit words a row, in slices of 64 bytes: a tuple of
    [256, 4]. Words, for the compiler gives every byte that a loop carries a register of its own."""
    r, w, g, t = _held(2)
    at = (r * 32 + w * 8 + g) * WORDS + t * 4 + tl.arange(0, 4)[None, :]
    base = keys.to(tl.pointer_type(tl.int32)) + row * WORDS
    slices = ()
    for s in tl.static_range(WORDS // 16):
        slices = slices + (tl.load(base + s * 16 + at),)
    return slices


@triton.jit
def key_operand(words, INT8: tl.constexpr):
    """A slice of keys as the operand [4, 16, 64] int8 or [4, 16, 32] bf16."""
    if INT8:
        low = tl.join(words.to(tl.int8), (words >> 16).to(tl.int8))
        x = tl.join(low, tl.join((words >> 8).to(tl.int8), (words >> 24).to(tl.int8)))
    else:
        low = words.to(tl.int16).to(tl.bfloat16, bitcast=True)
        x = tl.join(low, (words >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True))
    COUNT: tl.constexpr = 16 if INT8 else 8  # elements of a lane
    if K_WIDTH == 4:
        x = x.reshape([2, 4, 8, 4, 2, COUNT // 2])  # r, w, g, t, then half and element of the matrix unit
        return x.permute([1, 0, 2, 4, 3, 5]).reshape([4, 16, 4 * COUNT])
    else:
        x = x.reshape([2, 4, 8, 4, 2, 2, COUNT // 4])  # r, w, g, t, then step, half, element
        return x.permute([1, 0, 2, 4, 5, 3, 6]).reshape([4, 16, 4 * COUNT])


@triton.jit
def query_operand(queries, count, R: tl.constexpr, INT8: tl.constexpr):
    """The same slice of R rows of queries, zeros from row `count` on, as the operand [4, 64 or 32, R], the same for
    every warp."""
    COUNT: tl.constexpr = 16 if INT8 else 8
    j, _, g, t = _held(R // 8)
    at = (j * 8 + g) * WIDTH + t * COUNT + tl.arange(0, COUNT)[None, :]
    x = tl.load(queries + at, mask=j * 8 + g < count, other=0.0)
    if K_WIDTH == 4:
        x = x.reshape([R // 8, 4, 8, 4, 2, COUNT // 2])
        return x.permute([1, 4, 3, 5, 0, 2]).reshape([4, 4 * COUNT, R])
    else:
        x = x.reshape([R // 8, 4, 8, 4, 2, 2, COUNT // 4])
        return x.permute([1, 4, 5, 3, 6, 0, 2]).reshape([4, 4 * COUNT, R])


@triton.jit
def load_scales(scales, row, position):
    """Four fp16 scales of each key as a 64-bit word, [4, 16], keys as by :func:`page_keys`."""
    return tl.load(scales.to(tl.pointer_type(tl.int64)) + row + position)


@triton.jit
def scale_of(words, group: tl.constexpr):
    return (words >> (16 * group)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def load_values(values, row, WORDS: tl.constexpr):
    """The page's rows as 32-bit words, keys 8 s + t and keys 8 s + 4 + t: two of [1024, WORDS]."""
    s, w, g, t = _held(8)
    at = (s * 8 + t) * (32 * WORDS) + (w * 8 + g) * WORDS + tl.arange(0, WORDS)[None, :]
    base = values.to(tl.pointer_type(tl.int32)) + row * (32 * WORDS)
    return (tl.load(base + at), tl.load(base + 4 * (32 * WORDS) + at))


@triton.jit
def hide_values(words, keys):
    """Zeros for keys of the page from number `keys` on, which may hold anything."""
    s, _, _, t = _held(8)
    key = s * 8 + t
    return (tl.where(key < keys, words[0], 0), tl.where(key + 4 < keys, words[1], 0))


@triton.jit
def value_operand(words, INT8: tl.constexpr):
    """Values, exact, as the operand [4, 64, 64]: row 16 (i // 2) + 8 (i % 2) + g is column 64 w + 8 g + i of the head;
    the other side is numbered as :func:`weight_operand` numbers keys."""
    both = tl.join(words[0], words[1])
    if INT8:
        a, b, c, d = tl.inline_asm_elementwise(_INT8, _INT8_OPERANDS, [both], dtype=_INT8_TYPES, is_pure=True, pack=2)
        x = tl.join(tl.join(a, c), tl.join(b, d)).reshape([2, 2, 2, 4, 8, 4, 2, 2, 2, 2])
    else:
        a, b = tl.inline_asm_elementwise(_BF16, _BF16_OPERANDS, [both], dtype=_BF16_TYPES, is_pure=True, pack=2)
        # words, e, b0 -> word, b1, e, b0: four words of two columns, eight columns in all
        x = tl.join(a, b).reshape([2, 2, 2, 4, 8, 4, 2, 2, 2, 2]).permute([0, 1, 2, 3, 4, 5, 6, 8, 7, 9])
    # S, H, c, w, g, t, word, e, b1, b0
    if K_WIDTH == 4:
        x = x.permute([3, 6, 8, 9, 4, 0, 1, 5, 2, 7])
    else:
        x = x.permute([3, 6, 8, 9, 4, 0, 1, 2, 5, 7])
    return x.reshape([4, 64, 64])


@triton.jit
def weight_operand(p0, p1, p2, p3, R: tl.constexpr):
    """Weights of a page for each quarter of the head, [4, 16, R] as scores stand, as the operand [4, 64, R]."""
    p = tl.join(tl.join(p0, p2), tl.join(p1, p3))
    p = p.reshape([2, 2, 2, 2, 4, R, 4])  # H, c, S, e, t, query, quarter: key 32 S + 16 H + 8 c + 4 e + t
    if K_WIDTH == 4:
        p = p.permute([6, 2, 0, 4, 1, 3, 5])
    else:
        p = p.permute([6, 2, 0, 1, 4, 3, 5])
    return p.reshape([4, 64, R])
