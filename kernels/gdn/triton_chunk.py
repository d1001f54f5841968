"""Triton route of a chunk: blocks in parallel as far as they do not depend on each other, then the state through them.

    convolve_blocks  q, k and v
    prepare_blocks   gates, scores and the inverse of I + A
    scan_blocks      u, o and the state, block after block; values in slices
    finish_rows      norm and gate, and what the lane keeps

A chunk that begins inside a block has zero rows in front, and as the state it goes on from the block's entry state with
the rows in it that are there. That they are overwritten last of all: their places may be those of the chunk's own last.

With A[i, j] = beta_i exp(G_i - G_j) (kn_i . kn_j) for j < i, the rows of u solve (I + A) u = beta (v - exp(G) S kn).
The inverse is found by forward substitution, row by row inside squares of 16 rows and square by square above them.

The matrix units multiply bf16. q and k are bf16 already and their norms are numbers that go behind the products; every
other operand is the sum of two bf16 numbers (17 bits), and the product of the two smaller parts is left out.
Rows of `first` and `second` lie multiples of a compile-time number apart (APART times the stride), so that loads can be
wide. Slices of values hold values as rows, so that u and the state pass from product to product in registers.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.gdn.triton_gates import L2_EPS, log_decay, silu


@triton.jit
def _halves(x):
    """Two bf16 tensors with sum x, up to 2^-17 of it."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _product(a, b):
    """a @ b of fp32 tensors"""
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    total = tl.dot(a_low, b_high)
    total = tl.dot(a_high, b_low, total)
    return tl.dot(a_high, b_high, total)


@triton.jit
def _unit_lower_inverse(a):
    """(I + a)^-1 for a [64, 64], strictly lower triangular."""
    i = tl.arange(0, 64)[:, None]
    j = tl.arange(0, 64)[None, :]
    square = tl.arange(0, 4)
    own = (square[:, None] == square[None, :])[:, None, :, None]
    x = -tl.sum(tl.where(own, a.reshape([4, 16, 4, 16]), 0.0), axis=2)  # [4, 16, 16]
    row = tl.arange(0, 16)[None, :, None]
    for r in range(1, 16):
        solved = tl.sum(tl.where(row == r, x, 0.0), axis=1)
        solved += tl.sum(solved[:, :, None] * x, axis=1)
        x = tl.where(row == r, solved[:, None, :], x)
    x += tl.where(row == tl.arange(0, 16)[None, None, :], 1.0, 0.0)
    inverse = tl.where(own, x[:, :, None, :], 0.0).reshape([64, 64])
    below = tl.where((i // 32 == j // 32) & (i // 16 != j // 16), a, 0.0)
    inverse -= _product(_product(inverse, below), inverse)
    below = tl.where(i // 32 != j // 32, a, 0.0)
    return inverse - _product(_product(inverse, below), inverse)


@triton.jit
def _ring_sum(ring, taps, token, begin, channel, channels, RING: tl.constexpr):
    """The part of the sum over taps that lies in the ring, [64, columns]; a row's taps in it come before the others."""
    total = tl.zeros([64, channel.shape[0]], tl.float32)
    for j in tl.static_range(3):
        at = token - 3 + j
        rows = tl.load(
            ring + ((begin + at) % RING)[:, None] * channels + channel[None, :],
            mask=((at < 0) & (begin + at >= 0))[:, None], other=0.0,
        ).to(tl.float32)  # fmt: skip
        tap = tl.load(taps + j * channels + channel)
        total = tl.fma(rows, tap[None, :] + tl.zeros_like(rows), total)
    return total


@triton.jit
def _mixed_rows(source, ring, taps, token, tokens, begin, stride, column, channel, channels, opens, RING: tl.constexpr):
    """Convolution and SiLU of rows [64, columns], rounded once; zero outside the chunk. `opens`: some of the rows have
    taps in front of it. The sum is fused by hand, for it must round alike in every block; what is not there adds 0."""
    total = tl.zeros([64, column.shape[0]], tl.float32)
    if opens:
        total = _ring_sum(ring, taps, token, begin, channel, channels, RING)
    for j in tl.static_range(4):
        at = token - 3 + j
        rows = tl.load(
            source + at.to(tl.int64)[:, None] * stride + column[None, :], mask=((at >= 0) & (at < tokens))[:, None],
            other=0.0,
        ).to(tl.float32)  # fmt: skip
        tap = tl.load(taps + j * channels + channel)
        total = tl.fma(rows, tap[None, :] + tl.zeros_like(rows), total)
    # One comparison, for a token in front of the chunk is a large unsigned number: registers are short.
    there = token.to(tl.uint32, bitcast=True) < tokens.to(tl.uint32, bitcast=True)
    return silu(tl.where(there[:, None], total, 0.0)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["tokens", "begin", "first_block", "key_heads", "heads", "first_stride", "second_stride"])
def convolve_blocks(
    first, second, taps, ring, queries, keys, values,
    tokens, begin, first_block, key_heads, heads, first_stride, second_stride,
    DK: tl.constexpr, DV: tl.constexpr, RING: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Per block and head of q, k (in this order) or v. ring is the lane's.

    Scratch per block and head: queries, keys [64, DK], values [DV, 64] bf16."""
    first_stride *= APART
    second_stride *= APART
    index = tl.program_id(0)
    local = tl.program_id(1)
    row = tl.arange(0, 64)
    token = (first_block + local) * 64 - begin % 64 + row
    channels = 2 * key_heads * DK + heads * DV
    opens = (first_block + local) * 64 - begin % 64 < 3
    if index < 2 * key_heads:
        d = tl.arange(0, DK)
        channel = index * DK + d
        rows = _mixed_rows(
            first, ring, taps, token, tokens, begin, first_stride, channel, channel, channels, opens, RING
        )
        at = row[:, None] * DK + d[None, :]
        if index < key_heads:
            tl.store(queries + (local * key_heads + index) * (64 * DK) + at, rows)
        else:
            tl.store(keys + (local * key_heads + index - key_heads) * (64 * DK) + at, rows)
    else:
        value_head = index - 2 * key_heads
        e = tl.arange(0, DV)
        column = value_head * DV + e
        value_channel = 2 * key_heads * DK + column
        values_mixed = _mixed_rows(
            second, ring, taps, token, tokens, begin, second_stride, column, value_channel, channels, opens, RING
        )
        to = values + (local * heads + value_head).to(tl.int64) * (DV * 64)
        tl.store(to + e[:, None] * 64 + row[None, :], tl.trans(values_mixed))


@triton.jit(do_not_specialize=["tokens", "begin", "first_block", "key_heads", "heads", "ab_stride"])
def prepare_blocks(
    ab, decay_rate, dt_bias, queries, keys, inverses, inside, factors,
    tokens, begin, first_block, key_heads, heads, ab_stride, scale,
    DK: tl.constexpr,
):  # fmt: skip
    """Per block and value head.

    Scratch per block and head: inverses, inside two parts of [64, 64] bf16; factors [6, 64] fp32, the last two of them
    sums of the decay and factors of keys, as the lane keeps them."""
    head = tl.program_id(0)
    local = tl.program_id(1)
    key_head = head // (heads // key_heads)
    row = tl.arange(0, 64)
    token = (first_block + local) * 64 - begin % 64 + row
    there = (token >= 0) & (token < tokens)
    partial = (first_block + local + 1) * 64 - begin % 64 > tokens
    gate_at = ab + token.to(tl.int64) * ab_stride + head
    a = tl.load(gate_at, mask=there, other=0.0).to(tl.float32)
    b = tl.load(gate_at + heads, mask=there, other=0.0).to(tl.float32)
    at = (local * key_heads + key_head) * (64 * DK)
    d = tl.arange(0, DK)
    k = tl.load(keys + at + (row[:, None] * DK + d[None, :]))
    q = tl.load(queries + at + (row[:, None] * DK + d[None, :]))
    wide = q.to(tl.float32)
    q_scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=1) + L2_EPS)
    wide = k.to(tl.float32)
    k_scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=1) + L2_EPS)
    turned = tl.trans(k)
    g = log_decay(a, tl.load(decay_rate + head), tl.load(dt_bias + head))
    g = tl.cumsum(tl.where(there, g, 0.0), axis=0)
    beta = tl.where(there, 1.0 / (1.0 + tl.exp(-b)), 0.0)
    last = tl.sum(tl.where(row == 63, g, 0.0))
    base = (local * heads + head).to(tl.int64)
    # A block that stays open leaves the state alone.
    factor_at = factors + base * 384 + row
    tl.store(factor_at, tl.exp(g) * k_scale)
    tl.store(factor_at + 64, tl.exp(g) * q_scale * scale)
    tl.store(factor_at + 128, tl.where(partial, 0.0, tl.exp(last - g) * k_scale))
    tl.store(factor_at + 192, tl.where(partial, 1.0, tl.exp(last)) + tl.zeros([64], tl.float32))
    tl.store(factor_at + 256, g)
    tl.store(factor_at + 320, k_scale)
    lower = row[:, None] >= row[None, :]
    fading = tl.exp(tl.where(lower, g[:, None] - g[None, :], 0.0)) * k_scale[None, :]
    square_at = base * (2 * 64 * 64)
    square = row[:, None] * 64 + row[None, :]
    upto = tl.where(lower, tl.dot(q, turned) * (q_scale * scale)[:, None] * fading, 0.0)
    high, low = _halves(upto)
    tl.store(inside + square_at + square, high)
    tl.store(inside + square_at + 64 * 64 + square, low)
    before = tl.where(
        row[:, None] > row[None, :], tl.dot(k, turned) * (k_scale * beta)[:, None] * fading, 0.0
    )  # fmt: skip
    high, low = _halves(_unit_lower_inverse(before) * beta[None, :])
    tl.store(inverses + square_at + square, high)
    tl.store(inverses + square_at + 64 * 64 + square, low)


@triton.jit
def _with_rows(
    state, open_k, open_u, open_g, offset, begin, head, key_head, column,
    DK: tl.constexpr, DV: tl.constexpr, KEY_ROWS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A slice [columns, DK] of the state behind the first `offset` rows of a block, from that at the block's start."""
    row = tl.arange(0, 64)
    d = tl.arange(0, DK)
    there = row < offset
    position = begin - offset + row
    g_at = open_g + 2 * head * ROWS + position % ROWS
    g = tl.load(g_at, mask=there, other=0.0)
    k_scale = tl.load(g_at + ROWS, mask=there, other=0.0)
    key_at = (key_head * KEY_ROWS + position % KEY_ROWS)[:, None] * DK + d[None, :]
    k = tl.load(open_k + key_at, mask=there[:, None], other=0.0)
    u_at = (head * ROWS + position % ROWS)[None, :] * DV + column[:, None]
    u = tl.load(open_u + u_at, mask=there[None, :], other=0.0)
    last = tl.sum(tl.where(row == offset - 1, g, 0.0))
    high, low = _halves(u * (tl.exp(last - g) * k_scale)[None, :])
    state = tl.dot(low, k, state * tl.exp(last))
    return tl.dot(high, k, state)


@triton.jit(do_not_specialize=["tokens", "begin", "first_block", "blocks", "key_heads", "heads"])
def scan_blocks(
    queries, keys, values, inverses, inside, factors, s, open_k, open_u, open_g, mixed,
    tokens, begin, first_block, blocks, key_heads, heads,
    DK: tl.constexpr, DV: tl.constexpr, SLICE: tl.constexpr, KEY_ROWS: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Per value head and slice of its values. s and rows are the lane's; mixed [blocks, heads, DV, 64] fp32."""
    part = tl.program_id(0)
    head = tl.program_id(1)
    key_head = head // (heads // key_heads)
    e = tl.arange(0, SLICE)
    d = tl.arange(0, DK)
    row = tl.arange(0, 64)
    s_at = s + (head * DV + part * SLICE) * DK + (e[:, None] * DK + d[None, :])
    offset = begin % 64
    state = tl.load(s_at, mask=begin // 64 + first_block > 0, other=0.0)
    if (offset > 0) & (first_block == 0):
        state = _with_rows(
            state, open_k, open_u, open_g, offset, begin, head, key_head, part * SLICE + e, DK, DV, KEY_ROWS, ROWS
        )  # fmt: skip
    in_keys = row[:, None] * DK + d[None, :]
    in_values = e[:, None] * 64 + row[None, :]
    in_square = row[:, None] * 64 + row[None, :]
    for local in tl.range(0, blocks, num_stages=STAGES):
        key_at = (local * key_heads + key_head) * (64 * DK)
        base = tl.cast(local, tl.int64) * heads + head
        value_at = (base * DV + part * SLICE) * 64
        square_at = base * (2 * 64 * 64)
        k = tl.load(keys + key_at + in_keys)
        q = tl.load(queries + key_at + in_keys)
        v = tl.load(values + value_at + in_values)
        inverse_high = tl.load(inverses + square_at + in_square)
        inverse_low = tl.load(inverses + square_at + 64 * 64 + in_square)
        inside_high = tl.load(inside + square_at + in_square)
        inside_low = tl.load(inside + square_at + 64 * 64 + in_square)
        k_growth = tl.load(factors + base * 384 + row)
        q_growth = tl.load(factors + base * 384 + 64 + row)
        fade = tl.load(factors + base * 384 + 128 + row)
        growth = tl.load(factors + base * 384 + 192)

        high, low = _halves(state)
        turned = tl.trans(k)
        carried = tl.dot(high, turned, tl.dot(low, turned))
        turned = tl.trans(q)
        out = tl.dot(high, turned, tl.dot(low, turned)) * q_growth[None, :]
        high, low = _halves(v.to(tl.float32) - carried * k_growth[None, :])
        turned = tl.trans(inverse_high)
        u = tl.dot(low, turned)
        u = tl.dot(high, tl.trans(inverse_low), u)
        u = tl.dot(high, turned, u)
        high, low = _halves(u)
        turned = tl.trans(inside_high)
        out = tl.dot(low, turned, out)
        out = tl.dot(high, tl.trans(inside_low), out)
        out = tl.dot(high, turned, out)
        tl.store(mixed + value_at + in_values, out)
        high, low = _halves(u * fade[None, :])
        state = tl.dot(low, k, state * growth)
        state = tl.dot(high, k, state)
        if (first_block + local + 1) * 64 - offset > tokens:
            token = (first_block + local) * 64 - offset + row
            at = (head * ROWS + (begin + token) % ROWS)[None, :] * DV + (part * SLICE + e)[:, None]
            tl.store(open_u + at, u, mask=((token >= 0) & (token < tokens))[None, :])
    if (offset == 0) | (offset + tokens >= 64):  # else the block is open still, and the state that at its start
        tl.store(s_at, state)


@triton.jit
def _keep_columns(
    first, second, ring, to, token, begin, kept, head, key_heads, heads, first_stride, second_stride, DK: tl.constexpr,
    DV: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Copy what the convolution read of tokens [n, 1], where `kept`, to rows `to` of the ring: the channels of a value
    head, and those of the key head with the same number. Tokens before the chunk's first are in the ring."""
    channels = 2 * key_heads * DK + heads * DV
    fresh = kept & (token >= 0)
    before = kept & (token < 0)
    source = ring + ((begin + token) % RING) * channels
    e = tl.arange(0, DV)[None, :]
    column = 2 * key_heads * DK + head * DV + e
    value = tl.load(second + token * second_stride + head * DV + e, mask=fresh, other=0.0)
    value += tl.load(source + column, mask=before, other=0.0)
    tl.store(ring + to * channels + column, value, mask=kept)
    if head < key_heads:
        d = tl.arange(0, DK)[None, :]
        for both in tl.static_range(2):
            channel = (both * key_heads + head) * DK + d
            key_rows = tl.load(first + token * first_stride + channel, mask=fresh, other=0.0)
            key_rows += tl.load(source + channel, mask=before, other=0.0)
            tl.store(ring + to * channels + channel, key_rows, mask=kept)


@triton.jit
def _keep_rows(
    keys, factors, open_k, open_g, token, tokens, begin, local, head, key_heads, heads, opens,
    DK: tl.constexpr, KEY_ROWS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Copy keys, their factors and sums of the decay of a block's tokens [64] to the lane. `opens`: the sums go on
    behind those of the rows that are there."""
    there = (token >= 0) & (token < tokens)
    factor_at = factors + (local * heads + head).to(tl.int64) * 384 + tl.arange(0, 64)
    g_at = open_g + 2 * head * ROWS
    before = tl.load(g_at + (begin + ROWS - 1) % ROWS, mask=opens & (begin % 64 > 0), other=0.0)
    at = (begin + token) % ROWS
    tl.store(g_at + at, before + tl.load(factor_at + 256), mask=there)
    tl.store(g_at + ROWS + at, tl.load(factor_at + 320), mask=there)
    if head < key_heads:
        d = tl.arange(0, DK)[None, :]
        k = tl.load(keys + (local * key_heads + head) * (64 * DK) + tl.arange(0, 64)[:, None] * DK + d)
        key_at = (head * KEY_ROWS + (begin + token) % KEY_ROWS)[:, None] * DK + d
        tl.store(open_k + key_at, k, mask=there[:, None])


@triton.jit(do_not_specialize=["tokens", "begin", "first_block", "key_heads", "heads", "first_stride", "second_stride"])
def finish_rows(
    mixed, first, second, norm, keys, factors, ring, open_k, open_g, out,
    tokens, begin, first_block, key_heads, heads, first_stride, second_stride, eps,
    DK: tl.constexpr, DV: tl.constexpr, KEY_ROWS: tl.constexpr, ROWS: tl.constexpr, RING: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """out[t] = norm of o * silu(z); the last block also keeps its rows if it stays open, the three columns before the
    last block start, if that lies behind the chunk's first token, as entry columns behind the lane's ring, and the last
    three in the ring."""
    first_stride *= APART
    second_stride *= APART
    head = tl.program_id(0)
    local = tl.program_id(1)
    block = first_block + local
    row = tl.arange(0, 64)
    e = tl.arange(0, DV)
    offset = begin % 64
    token = block * 64 - offset + row
    o = tl.load(mixed + (local * heads + head).to(tl.int64) * (DV * 64) + e[:, None] * 64 + row[None, :])
    factor = 1.0 / tl.sqrt(tl.sum(o * o, axis=0) / DV + eps)
    o = tl.trans(o * factor[None, :])
    there = ((token >= 0) & (token < tokens))[:, None]
    row_at = token.to(tl.int64)[:, None]
    z_at = row_at * second_stride + (heads + head) * DV
    z = tl.load(second + z_at + e[None, :], mask=there, other=0.0).to(tl.float32)
    y = o * tl.load(norm + e)[None, :] * silu(z)
    tl.store(out + (row_at * heads + head) * DV + e[None, :], y.to(tl.bfloat16), mask=there)
    if (block + 1) * 64 - offset >= tokens:
        if (block + 1) * 64 - offset > tokens:
            _keep_rows(
                keys, factors, open_k, open_g, token, tokens, begin, local, head, key_heads, heads, block == 0,
                DK, KEY_ROWS, ROWS,
            )  # fmt: skip
        index = tl.arange(0, 4)
        full = (offset + tokens) // 64 * 64 - offset
        _keep_columns(
            first, second, ring, (RING - 1 + index)[:, None], (full - 4 + index).to(tl.int64)[:, None], begin,
            ((index > 0) & (full > 0))[:, None], head, key_heads, heads, first_stride, second_stride, DK, DV, RING,
        )  # fmt: skip
        tl.debug_barrier()  # what was read of the ring is overwritten
        last = tokens - 4 + index
        _keep_columns(
            first, second, ring, ((begin + last) % RING)[:, None], last.to(tl.int64)[:, None], begin,
            ((index > 0) & (last >= 0))[:, None], head, key_heads, heads, first_stride, second_stride, DK, DV, RING,
        )  # fmt: skip
