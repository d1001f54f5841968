"""Triton route of a round: one program per lane and value head, its columns one after the other.

A column reads the state and the open rows from memory and leaves its own row there for the next one, which finds them
in a cache. So it meets the same values in the same places whether its predecessor ran in this launch or in an earlier
one, and little has to live in registers: three programs share a multiprocessor, and next to no shared memory is taken
from its cache. One binary serves every number of columns and lanes and every width of the buffers: all of these are
run-time values.

State and rows were last written a whole round ago: before the predecessor is waited for they are called into the
second-level cache.
Sums over a row of the state or over the open rows stay within a warp, and run inside a thread first.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.low_bit_linear.triton_finish import norm_factor

BLOCK = tl.constexpr(64)
L2_EPS = tl.constexpr(1e-6)  # model spec, section 0: inside the root, on the sum


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def log_decay(a, decay_rate, dt_bias):
    """decay_rate * softplus(a + dt_bias); the quotient removes the rounding of 1 + e from the logarithm."""
    x = a + dt_bias
    e = tl.exp(tl.minimum(x, 20.0))
    one = 1.0 + e
    soft = tl.where(one == 1.0, e, tl.log(one) * (e / tl.where(one == 1.0, 1.0, one - 1.0)))
    return decay_rate * tl.where(x > 20.0, x, soft)


@triton.jit
def _blocked_offsets(k, t, plane, width):
    """Place of value k of token t in a buffer of columns, which is small."""
    return (t // width * plane + k // 32) * (32 * width) + t % width * 32 + k % 32


@triton.jit
def _add2(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add3(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _wrapped(at, ROWS: tl.constexpr):
    """at % ROWS for at < 2 ROWS"""
    return tl.where(at < ROWS, at, at - ROWS)


@triton.jit
def _call(base, row, WIDTH: tl.constexpr, LINE: tl.constexpr):
    """Have rows of WIDTH values, of which a line of memory holds LINE, brought to the second-level cache."""
    line = tl.arange(0, max(WIDTH // LINE, 1)) * LINE
    places = (base + row[:, None] * WIDTH + line[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _state_rows(state, part, present, DK: tl.constexpr, DV: tl.constexpr, RUN: tl.constexpr):
    """A quarter of a state, zero where there is none: rows 16 a + 4 part + r as [DV/16, 4, DK/RUN, RUN]."""
    down = (tl.arange(0, DV // 16) * 16)[:, None, None, None] + (part * 4 + tl.arange(0, 4))[None, :, None, None]
    across = (tl.arange(0, DK // RUN) * RUN)[None, None, :, None] + tl.arange(0, RUN)[None, None, None, :]
    return tl.load(state + (down * DK + across), mask=present, other=0.0)


@triton.jit
def _whole(parts, DV: tl.constexpr):
    """[DV/16, 16] from four parts of [DV/16, 4]"""
    both = tl.join(tl.join(parts[0], parts[1]), tl.join(parts[2], parts[3]))
    return both.permute([0, 3, 2, 1]).reshape([DV // 16, 16])


@triton.jit
def _open_keys(
    open_k, key_base, block, rows, DK: tl.constexpr, RUN: tl.constexpr, KEY_ROWS: tl.constexpr
):  # fmt: skip
    """k of rows [0, rows) of a block, zero beyond: [8, 8, DK/RUN, RUN]."""
    place = (tl.arange(0, 8) * 8)[:, None, None, None] + tl.arange(0, 8)[None, :, None, None]
    d = (tl.arange(0, DK // RUN) * RUN)[None, None, :, None] + tl.arange(0, RUN)[None, None, None, :]
    at = key_base + _wrapped(block * 64 % KEY_ROWS + place, KEY_ROWS)
    return tl.load(open_k + (at * DK + d), mask=place < rows, other=0.0)


@triton.jit
def _open_us(open_u, head_base, block, rows, DV: tl.constexpr, ROWS: tl.constexpr):
    """u of rows [0, rows) of a block, zero beyond: [8, DV/16, 8, 16], rows along the first and third axis."""
    place = (tl.arange(0, 8) * 8)[:, None, None, None] + tl.arange(0, 8)[None, None, :, None]
    e = (tl.arange(0, DV // 16) * 16)[None, :, None, None] + tl.arange(0, 16)[None, None, None, :]
    at = head_base + _wrapped(block * 64 % ROWS + place, ROWS)
    return tl.load(open_u + (at * DV + e), mask=place < rows, other=0.0)


@triton.jit
def _open_factors(open_g, head_base, block, rows, ROWS: tl.constexpr):
    """G and 1/|k| of rows [0, rows) of a block, zero beyond: [8, 8] each."""
    place = (tl.arange(0, 8) * 8)[:, None] + tl.arange(0, 8)[None, :]
    at = open_g + (2 * head_base + _wrapped(block * 64 % ROWS + place, ROWS))
    there = place < rows
    return tl.load(at, mask=there, other=0.0), tl.load(at + ROWS, mask=there, other=0.0)


@triton.jit
def _fold(
    state, present, open_k, open_u, open_g, key_base, head_base, block, to,
    DK: tl.constexpr, DV: tl.constexpr, KEY_ROWS: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The state after a full block, written to `to`: row after row of the block is added, in a tile at a time."""
    TILE: tl.constexpr = min(DK, 64)
    e = tl.arange(0, DV)
    g_at = open_g + 2 * head_base
    last = tl.load(g_at + (block * 64 + 63) % ROWS)
    for part in tl.range(0, DK // TILE, num_stages=1):
        d = part * TILE + tl.arange(0, TILE)
        at = e[:, None] * DK + d[None, :]
        tile = tl.load(state + at, mask=present, other=0.0) * tl.exp(last)
        for j in tl.range(0, 64, num_stages=1, loop_unroll_factor=UNROLL):
            row = (block * 64 + j) % ROWS
            fading = tl.exp(last - tl.load(g_at + row)) * tl.load(g_at + ROWS + row)
            u = tl.load(open_u + (head_base + row) * DV + e) * fading
            k = tl.load(open_k + (key_base + (block * 64 + j) % KEY_ROWS) * DK + d).to(tl.float32)
            tile += u[:, None] * k[None, :]
        tl.store(to + at, tile)


@triton.jit
def _column(first, second, t, head, key_head, key_heads, heads, d, e, DK: tl.constexpr, DV: tl.constexpr):
    """What a column of this head reads: q, k at `d`, v, z at `e`."""
    row = t.to(tl.int64)
    keys = first + (row * 2 * key_heads + key_head) * DK
    values = second + (row * 2 * heads + head) * DV
    return tl.load(keys + d), tl.load(keys + key_heads * DK + d), tl.load(values + e), tl.load(values + heads * DV + e)


@triton.jit
def _inputs(
    x, squares, capacity, t, plane, width, hidden, x_eps, STEPS: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """A column of the layer's input: the factor of its norm, then x in steps."""
    loaded = (norm_factor(squares, capacity, t, hidden, x_eps),)
    for i in tl.static_range(STEPS):
        k = i * STEP + tl.arange(0, STEP)
        loaded = loaded + (tl.load(x + _blocked_offsets(k, t, plane, width), mask=k < hidden, other=0.0),)
    return loaded


@triton.jit
def _weights(ab, head, heads, hidden, STEPS: tl.constexpr, STEP: tl.constexpr):
    """Rows of a and b of a head, in steps that alternate."""
    loaded = ()
    for i in tl.static_range(STEPS):
        k = i * STEP + tl.arange(0, STEP)
        loaded = loaded + (tl.load(ab + head * hidden + k, mask=k < hidden, other=0.0),)
        loaded = loaded + (tl.load(ab + (heads + head) * hidden + k, mask=k < hidden, other=0.0),)
    return loaded


@triton.jit
def _projected(loaded, weights, STEPS: tl.constexpr, STEP: tl.constexpr):
    """a and b of a column."""
    a = tl.zeros([STEP], tl.float32)
    b = tl.zeros([STEP], tl.float32)
    for i in tl.static_range(STEPS):
        wide = loaded[1 + i].to(tl.float32)
        a = tl.fma(wide, weights[2 * i].to(tl.float32), a)
        b = tl.fma(wide, weights[2 * i + 1].to(tl.float32), b)
    a, b = tl.reduce((a, b), 0, _add2)
    return a * loaded[0], b * loaded[0]


@triton.jit
def _taps(taps, channels, channel):
    """The four taps of channels."""
    loaded = ()
    for j in tl.static_range(4):
        loaded = loaded + (tl.load(taps + j * channels + channel),)
    return loaded


@triton.jit
def _past(ring, channels, channel, begin, RING: tl.constexpr):
    """The three columns before a position; zero before the first."""
    kept = ()
    for j in tl.static_range(3):
        earlier = begin - 3 + j
        at = ring + tl.maximum(earlier, 0) % RING * channels
        kept = kept + (tl.load(at + channel, mask=earlier >= 0, other=0.0),)
    return kept


@triton.jit
def _mixed(past, now, taps):
    """silu of the sum over taps, rounded once."""
    total = past[0].to(tl.float32) * taps[0]
    total += past[1].to(tl.float32) * taps[1]
    total += past[2].to(tl.float32) * taps[2]
    total += now.to(tl.float32) * taps[3]
    return silu(total).to(tl.bfloat16)


@triton.jit(
    do_not_specialize=[
        "columns", "key_heads", "heads", "hidden", "capacity", "x_plane", "x_width", "out_plane", "out_width",
    ]
)  # fmt: skip
def gdn_round(
    first, second, x, squares, ab, taps, decay_rate, dt_bias, norm, s, open_k, open_u, open_g, ring,
    lanes, positions, state_blocks, workspace, out,
    columns, key_heads, heads, hidden, capacity, x_plane, x_width, out_plane, out_width, x_eps, eps, scale,
    DK: tl.constexpr, DV: tl.constexpr, KEY_ROWS: tl.constexpr, ROWS: tl.constexpr, RING: tl.constexpr,
    COLUMNS: tl.constexpr, STEPS: tl.constexpr, STEP: tl.constexpr, UNROLL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
    head = tl.program_id(0)
    b = tl.program_id(1)
    hidden = hidden // 32 * 32
    share = heads // key_heads
    key_head = head // share
    leads = head - key_head * share == 0  # of the programs with the same key head, the one that keeps what they share
    lane = tl.load(lanes + b).to(tl.int64)
    begin = tl.load(positions + b)
    current = tl.load(state_blocks + b)
    key_base = (lane * key_heads + key_head) * KEY_ROWS
    head_base = (lane * heads + head) * ROWS
    # Vectors of a head are matrices throughout: sums along the second axis stay in a warp.
    RUN: tl.constexpr = min(DK, 64)
    d = (tl.arange(0, DK // RUN) * RUN)[:, None] + tl.arange(0, RUN)[None, :]
    e = (tl.arange(0, DV // 16) * 16)[:, None] + tl.arange(0, 16)[None, :]

    state = s + (lane * heads + head) * (DV * DK)
    known = tl.minimum(begin - current * 64, 64)
    if DEPENDENT:
        _call(state, tl.arange(0, DV), DK, 32)
        called = tl.minimum(tl.arange(0, 64), tl.maximum(known - 1, 0))
        _call(open_k, key_base + _wrapped(current * 64 % KEY_ROWS + called, KEY_ROWS), DK, 64)
        _call(open_u, head_base + _wrapped(current * 64 % ROWS + called, ROWS), DV, 32)
    g_at = open_g + 2 * head_base
    g = tl.load(g_at + tl.maximum(begin - 1, 0) % ROWS)  # of the row before; read where there is one
    channels = 2 * key_heads * DK + heads * DV
    q_channel = key_head * DK + d
    k_channel = key_heads * DK + q_channel
    v_channel = 2 * key_heads * DK + head * DV + e
    ring += lane * RING * channels
    q_past = _past(ring, channels, q_channel, begin, RING)
    k_past = _past(ring, channels, k_channel, begin, RING)
    v_past = _past(ring, channels, v_channel, begin, RING)
    weights = _weights(ab, head, heads, hidden, STEPS, STEP)
    q_taps = _taps(taps, channels, q_channel)
    k_taps = _taps(taps, channels, k_channel)
    v_taps = _taps(taps, channels, v_channel)
    rate = tl.load(decay_rate + head)
    bias = tl.load(dt_bias + head)
    weight = tl.load(norm + e)
    if DEPENDENT:
        gdc_wait()

    now = _column(first, second, b * columns, head, key_head, key_heads, heads, d, e, DK, DV)
    inputs = _inputs(x, squares, capacity, b * columns, x_plane, x_width, hidden, x_eps, STEPS, STEP)
    a_all = tl.zeros([COLUMNS], tl.float32)
    b_all = tl.zeros([COLUMNS], tl.float32)
    for step in tl.range(0, columns, num_stages=1):
        a, strength = _projected(inputs, weights, STEPS, STEP)
        a_all = tl.where(tl.arange(0, COLUMNS) == step, a, a_all)
        b_all = tl.where(tl.arange(0, COLUMNS) == step, strength, b_all)
        following = b * columns + tl.minimum(step + 1, columns - 1)
        inputs = _inputs(x, squares, capacity, following, x_plane, x_width, hidden, x_eps, STEPS, STEP)
    # Rounded like every output of a linear map.
    logs = log_decay(a_all.to(tl.bfloat16).to(tl.float32), rate, bias)
    betas = 1.0 / (1.0 + tl.exp(-b_all.to(tl.bfloat16).to(tl.float32)))
    for step in tl.range(0, columns, num_stages=1):
        position = begin + step
        block = position // 64
        place = position - block * 64
        if block > current:
            to = s + (lane * heads + head) * (DV * DK)
            if step > 0:
                to = workspace + (b * heads + head).to(tl.int64) * (DV * DK)
            _fold(
                state, current > 0, open_k, open_u, open_g, key_base, head_base, current, to,
                DK, DV, KEY_ROWS, ROWS, UNROLL,
            )  # fmt: skip
            # Rows of this block may take the places of rows of that one.
            tl.debug_barrier()
            state = to
            current = block
        keys = _open_keys(open_k, key_base, block, place, DK, RUN, KEY_ROWS)
        rows = _state_rows(state, 0, current > 0, DK, DV, RUN)
        gs, scales = _open_factors(open_g, head_base, block, place, ROWS)
        mine = tl.arange(0, COLUMNS) == step
        beta = tl.sum(tl.where(mine, betas, 0.0))
        g = tl.where(place > 0, g, 0.0) + tl.sum(tl.where(mine, logs, 0.0))
        q_now, k_now, v_now, gate = now
        query = _mixed(q_past, q_now, q_taps)
        key = _mixed(k_past, k_now, k_taps)
        value = _mixed(v_past, v_now, v_taps).to(tl.float32)
        ring_at = ring + position % RING * channels
        tl.store(ring_at + v_channel, v_now)
        tl.store(ring_at + q_channel, q_now, mask=leads)
        tl.store(ring_at + k_channel, k_now, mask=leads)
        # Whoever reads this row later in the round must have written it: all programs write the same bits.
        tl.store(open_k + (key_base + position % KEY_ROWS) * DK + d, key)
        q_past = (q_past[1], q_past[2], q_now)
        k_past = (k_past[1], k_past[2], k_now)
        v_past = (v_past[1], v_past[2], v_now)
        following = b * columns + tl.minimum(step + 1, columns - 1)
        now = _column(first, second, following, head, key_head, key_heads, heads, d, e, DK, DV)
        # Normalised vectors are q and k times a number: the number goes behind the sums.
        query = query.to(tl.float32)
        key = key.to(tl.float32)
        qq, kk, qk = tl.reduce(tl.reduce((query * query, key * key, query * key), 0, _add3), 0, _add3)
        q_scale = 1.0 / tl.sqrt(qq + L2_EPS)
        k_scale = 1.0 / tl.sqrt(kk + L2_EPS)

        keys = keys.to(tl.float32)
        there = (tl.arange(0, 8) * 8)[:, None] + tl.arange(0, 8)[None, :] < place
        fading = tl.exp(tl.where(there, g - gs, 0.0)) * scales
        q_scores = tl.sum(tl.sum(keys * query[None, None, :, :], axis=2), axis=2) * (q_scale * fading)
        k_scores = tl.sum(tl.sum(keys * key[None, None, :, :], axis=2), axis=2) * (k_scale * fading)
        # Barriers keep the compiler from loading everything first.
        q_parts, k_parts = (), ()
        for i in tl.static_range(4):
            if i < 3:
                coming = _state_rows(state, i + 1, current > 0, DK, DV, RUN)
            else:
                us = _open_us(open_u, head_base, block, place, DV, ROWS)
            q_parts = q_parts + (tl.sum(tl.sum(rows * query[None, None, :, :], axis=2), axis=2),)
            k_parts = k_parts + (tl.sum(tl.sum(rows * key[None, None, :, :], axis=2), axis=2),)
            tl.debug_barrier()
            if i < 3:
                rows = coming
        q_carried = _whole(q_parts, DV)
        k_carried = _whole(k_parts, DV)
        q_inside = tl.sum(tl.sum(us * q_scores[:, None, :, None], axis=2), axis=0)
        k_inside = tl.sum(tl.sum(us * k_scores[:, None, :, None], axis=2), axis=0)
        growth = tl.exp(g)
        u = beta * (value - (growth * k_scale) * k_carried - k_inside)
        o = ((growth * q_scale) * q_carried + q_inside + (qk * q_scale * k_scale) * u) * scale

        # The column's row joins the open ones.
        tl.store(open_u + (head_base + position % ROWS) * DV + e, u)
        tl.store(g_at + position % ROWS, g)
        tl.store(g_at + ROWS + position % ROWS, k_scale)

        factor = 1.0 / tl.sqrt(tl.sum(tl.sum(o * o, axis=0), axis=0) / DV + eps)
        y = o * factor * weight * silu(gate.to(tl.float32))
        t = b * columns + step
        tl.store(out + _blocked_offsets(head * DV + e, t, out_plane, out_width), y.to(tl.bfloat16))
        tl.debug_barrier()
