"""Device functions on tiles of eight rows of 256: norm, rotary positions, H256, int8 codes.

Decode and prefill call the same functions with the same tile, so a row gets the same bytes from both. A program has
four warps, so a thread holds sixteen neighbours of a row: the first four stages of H256 stay inside a thread, the other
four exchange values between the sixteen lanes that share a row.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.kv_codec import ptx

ROWS = tl.constexpr(8)
WIDTH = tl.constexpr(256)
GROUPS = tl.constexpr(4)  # of 64 columns, with a scale each
PARTS = tl.constexpr(16)
_ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer, ties to even
_ROUND = tl.constexpr(ptx.ROUND_BF16)


@triton.jit
def load_rows(x, at, present):
    """fp32 [8, 256] of rows that begin at x + at; zeros where not present."""
    column = tl.arange(0, WIDTH)
    return tl.load(x + at[:, None] + column[None, :], mask=present[:, None], other=0.0).to(tl.float32)


@triton.jit
def _apart(x):
    """The sixteen neighbours that a thread holds of [8, 256], as a tuple of [8, 16] in bit-reversed order."""
    low, high = tl.split(x.reshape([ROWS, PARTS, 2, 2, 2, 2]))
    quarters = tl.split(low) + tl.split(high)
    eighths = ()
    for i in tl.static_range(4):
        eighths = eighths + tl.split(quarters[i])
    parts = ()
    for i in tl.static_range(8):
        parts = parts + tl.split(eighths[i])
    return parts


@triton.jit
def _together(parts):
    """The inverse of :func:`_apart`."""
    eighths = ()
    for i in tl.static_range(8):
        eighths = eighths + (tl.join(parts[2 * i], parts[2 * i + 1]),)
    quarters = ()
    for i in tl.static_range(4):
        quarters = quarters + (tl.join(eighths[2 * i], eighths[2 * i + 1]),)
    low = tl.join(quarters[0], quarters[1])
    return tl.join(low, tl.join(quarters[2], quarters[3])).reshape([ROWS, WIDTH])


@triton.jit
def normed_rotated(rows, weight, eps, cos, sin, token, present, HALF: tl.constexpr):
    """Rows after offset norm and rotary positions, rounded to bf16 after each, as fp32 [8, 256] (model spec 6.3).

    rows      fp32 [8, 256]
    weight    pointer to [256] fp32, one for all rows or [8, 1]
    cos, sin  [T, HALF] fp32, row `token` of it for each row that is present; HALF a power of two, 16 to 128
    """
    column = tl.arange(0, WIDTH)
    lane = tl.arange(0, PARTS)
    every = tl.zeros([ROWS, 1], tl.int32)  # a load per row costs less than spreading one load over the threads
    # All loads before the branches of root and division, which they could not pass.
    scale = tl.load(weight + (every + column[None, :])) + 1.0
    angle = token[:, None] * HALF + (column % HALF)[None, :]
    turned = present[:, None] & (column < 2 * HALF)[None, :]
    c = tl.load(cos + angle, mask=turned, other=1.0)
    s = tl.load(sin + angle, mask=turned, other=0.0)
    root = tl.sqrt_rn(tl.sum(rows * rows, axis=1) * (1.0 / WIDTH) + eps)
    factor = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)[:, None]
    rows = rows * factor * scale
    rows = _as_bf16(rows)
    s = tl.where((column < HALF)[None, :], -s, s)
    parts = _apart(rows)
    partner = tl.where(lane < 2 * HALF // PARTS, lane ^ (HALF // PARTS), lane)[None, :] + every
    across = ()
    for i in tl.static_range(PARTS):
        across = across + (tl.gather(parts[i], partner, 1),)
    rows = rows * c + _together(across) * s
    return _as_bf16(rows)


@triton.jit
def _inside(parts, APART: tl.constexpr):
    """(a, b) -> (a + b, a - b) for members of the tuple APART places apart."""
    done = ()
    for i in tl.static_range(PARTS):
        if i // APART % 2 == 0:
            done = done + (parts[i] + parts[i + APART],)
        else:
            done = done + (parts[i - APART] - parts[i],)
    return done


@triton.jit
def _across(parts, APART: tl.constexpr):
    """The same for elements of every part APART lanes apart."""
    lane = tl.arange(0, PARTS)[None, :] + tl.zeros([ROWS, 1], tl.int32)
    sign = tl.where(lane // APART % 2 == 0, 1.0, -1.0)
    done = ()
    for i in tl.static_range(PARTS):
        done = done + (tl.gather(parts[i], lane ^ APART, 1) + sign * parts[i],)
    return done


@triton.jit
def hadamard(x):
    """H256 of each row: strides 1, 2, .. 128 in that order, then 2**-4 (kv-and-state spec 3.1).

    x        fp32 [8, 256]
    returns  sixteen parts fp32 [8, 16] for :func:`store_parts` and :func:`store_parts_int8`
    """
    parts = _apart(x)
    parts = _inside(parts, 8)  # numbers are bit-reversed: neighbours of the row stand eight apart
    parts = _inside(parts, 4)
    parts = _inside(parts, 2)
    parts = _inside(parts, 1)
    parts = _across(parts, 1)
    parts = _across(parts, 2)
    parts = _across(parts, 4)
    parts = _across(parts, 8)
    done = ()
    for i in tl.static_range(PARTS):
        done = done + (parts[i] * 0.0625,)
    return done


@triton.jit
def _inverse(scale):
    some = scale != 0.0
    return tl.where(some, tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), tl.where(some, scale, 1.0)), 0.0)


@triton.jit
def _scale(peak, narrow):
    """peak / 127, where `narrow` rounded to fp16 as the cache stores it."""
    scale = tl.div_rn(peak, tl.full(peak.shape, 127.0, tl.float32))
    return tl.where(narrow, scale.to(tl.float16).to(tl.float32), scale)


@triton.jit
def _code(x, inverse):
    near = tl.minimum(tl.maximum(x * inverse, -127.0), 127.0) + _ROUNDING
    return near.to(tl.int32, bitcast=True).to(tl.int8)  # the integer stands in the lowest bits


@triton.jit
def _as_bf16(x):
    """fp32 rounded to bf16, ties to even; the compiler rounds one at a time."""
    return tl.inline_asm_elementwise(_ROUND, "=f,=f,f,f", [x], dtype=tl.float32, is_pure=True, pack=2)


@triton.jit
def chosen_parts(chosen, rows, parts):
    """The parts of `rows` fp32 [8, 256] where chosen [8], `parts` elsewhere."""
    own = _apart(rows)
    done = ()
    for i in tl.static_range(PARTS):
        done = done + (tl.where(chosen[:, None], own[i], parts[i]),)
    return done


@triton.jit
def store_parts(parts, out, at, present):
    """Write rows given in parts to out + at, in the element type of `out`."""
    narrow = ()
    for i in tl.static_range(PARTS):
        narrow = narrow + (parts[i].to(out.dtype.element_ty),)
    where = out + at[:, None] + tl.arange(0, WIDTH)[None, :]
    tl.store(where, _together(narrow), mask=present[:, None])


@triton.jit
def int8_codes(parts, narrow):
    """Codes int8 [8, 256] and scales fp32 [8, 4] of rows given in parts (kv-and-state spec 3.2).

    narrow  bool or [8, 1, 1]: the scale is rounded to fp16 before codes are made from it
    """
    peak = tl.abs(parts[0])
    for i in tl.static_range(1, PARTS):
        peak = tl.maximum(peak, tl.abs(parts[i]))
    scale = _scale(tl.max(peak.reshape([ROWS, GROUPS, PARTS // GROUPS]), axis=2, keep_dims=True), narrow)
    inverse = _inverse(scale).broadcast_to([ROWS, GROUPS, PARTS // GROUPS]).reshape([ROWS, PARTS])
    code = ()
    for i in tl.static_range(PARTS):
        code = code + (_code(parts[i], inverse),)
    return _together(code), scale.reshape([ROWS, GROUPS])


@triton.jit
def store_parts_int8(parts, codes, scales, at, at_scale, present):
    """Write codes and fp16 scales of rows given in parts."""
    code, scale = int8_codes(parts, True)
    tl.store(codes + at[:, None] + tl.arange(0, WIDTH)[None, :], code, mask=present[:, None])
    where = scales + at_scale[:, None] + tl.arange(0, GROUPS)[None, :]
    tl.store(where, scale.to(tl.float16), mask=present[:, None])


@triton.jit
def store_rows_int8(x, codes, scales, at, at_scale, present):
    """As :func:`store_parts_int8` for rows [8, 256] that were not rotated."""
    store_parts_int8(_apart(x), codes, scales, at, at_scale, present)
