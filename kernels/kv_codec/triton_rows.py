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

ROWS = tl.constexpr(8)
WIDTH = tl.constexpr(256)
GROUPS = tl.constexpr(4)  # of 64 columns, with a scale each
PARTS = tl.constexpr(16)
_ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to an integer, ties to even


@triton.jit
def load_rows(x, at, present):
    """fp32 [8, 256] of rows that begin at x + at; zeros where not present."""
    column = tl.arange(0, WIDTH)
    return tl.load(x + at[:, None] + column[None, :], mask=present[:, None], other=0.0).to(tl.float32)


@triton.jit
def normed_rotated(x, at, present, weight, eps, cos, sin, token, HALF: tl.constexpr):
    """Rows after offset norm and rotary positions, rounded to bf16 after each, as fp32 [8, 256] (model spec 6.3).

    cos, sin  [T, HALF] fp32, row `token` of it for each row
    """
    column = tl.arange(0, WIDTH)
    # Told that runs of eight stay together, the compiler loads both in the same layout.
    partner = tl.max_contiguous(tl.multiple_of(tl.where(column < 2 * HALF, column ^ HALF, column), 8), 8)
    rows = load_rows(x, at, present)
    across = tl.load(x + at[:, None] + partner[None, :], mask=present[:, None], other=0.0).to(tl.float32)
    root = tl.sqrt_rn(tl.sum(rows * rows, axis=1) * (1.0 / WIDTH) + eps)
    factor = tl.div_rn(tl.full([ROWS], 1.0, tl.float32), root)[:, None]
    every = tl.zeros([ROWS, 1], tl.int32)  # a load per row costs less than spreading one load over the threads
    rows = rows * factor * (tl.load(weight + (every + column[None, :])) + 1.0)
    across = across * factor * (tl.load(weight + (every + partner[None, :])) + 1.0)
    angle = token[:, None] * HALF + (column % HALF)[None, :]
    turned = present[:, None] & (column < 2 * HALF)[None, :]
    c = tl.load(cos + angle, mask=turned, other=1.0)
    s = tl.load(sin + angle, mask=turned, other=0.0)
    s = tl.where((column < HALF)[None, :], -s, s)
    rows = rows.to(tl.bfloat16).to(tl.float32) * c + across.to(tl.bfloat16).to(tl.float32) * s
    return rows.to(tl.bfloat16).to(tl.float32)


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
def _scale(peak, NARROW: tl.constexpr):
    """peak / 127, rounded to fp16 where the cache stores it so."""
    scale = tl.div_rn(peak, tl.full(peak.shape, 127.0, tl.float32))
    if NARROW:
        scale = scale.to(tl.float16).to(tl.float32)
    return scale


@triton.jit
def _code(x, inverse):
    code = (x * inverse + _ROUNDING) - _ROUNDING
    return tl.minimum(tl.maximum(code, -127.0), 127.0).to(tl.int8)


@triton.jit
def store_parts(parts, out, at, present):
    """Write rows given in parts to out + at, in the element type of `out`."""
    narrow = ()
    for i in tl.static_range(PARTS):
        narrow = narrow + (parts[i].to(out.dtype.element_ty),)
    where = out + at[:, None] + tl.arange(0, WIDTH)[None, :]
    tl.store(where, _together(narrow), mask=present[:, None])


@triton.jit
def store_parts_int8(parts, codes, scales, at, at_scale, present, NARROW: tl.constexpr):
    """Write int8 codes and scales of rows given in parts (kv-and-state spec 3.2).

    NARROW  the scale is rounded to fp16 before codes are made from it
    """
    peak = tl.abs(parts[0])
    for i in tl.static_range(1, PARTS):
        peak = tl.maximum(peak, tl.abs(parts[i]))
    scale = _scale(tl.max(peak.reshape([ROWS, GROUPS, PARTS // GROUPS]), axis=2, keep_dims=True), NARROW)
    inverse = _inverse(scale).broadcast_to([ROWS, GROUPS, PARTS // GROUPS]).reshape([ROWS, PARTS])
    code = ()
    for i in tl.static_range(PARTS):
        code = code + (_code(parts[i], inverse),)
    tl.store(codes + at[:, None] + tl.arange(0, WIDTH)[None, :], _together(code), mask=present[:, None])
    where = scales + at_scale[:, None] + tl.arange(0, GROUPS)[None, :]
    tl.store(where, scale.reshape([ROWS, GROUPS]).to(scales.dtype.element_ty), mask=present[:, None])


@triton.jit
def store_rows_int8(x, codes, scales, at, at_scale, present):
    """As :func:`store_parts_int8` for rows [8, 256] that were not rotated; scales are fp16."""
    grouped = x.reshape([ROWS, GROUPS, WIDTH // GROUPS])
    scale = _scale(tl.max(tl.abs(grouped), axis=2), True)
    code = _code(grouped, _inverse(scale)[:, :, None]).reshape([ROWS, WIDTH])
    tl.store(codes + at[:, None] + tl.arange(0, WIDTH)[None, :], code, mask=present[:, None])
    where = scales + at_scale[:, None] + tl.arange(0, GROUPS)[None, :]
    tl.store(where, scale.to(tl.float16), mask=present[:, None])
