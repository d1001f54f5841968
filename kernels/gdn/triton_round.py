"""Triton route of a round: one program per lane and value head, its columns one after the other.

The state and the open rows of a head live in registers for the whole round: its columns add their rows there, so a
column meets the same values in the same places whether its predecessor ran in this launch or in an earlier one.
One binary serves every number of columns, lanes and every width of the buffers: all of these are run-time values.

State and rows were last written a whole round ago and are loaded before the predecessor is waited for.
Shapes with a dimension of 16 in the last place give a warp whole reductions: no sum over a row of the state or over the
open rows crosses warps.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.gdn import slots
from ninfer.kernels.low_bit_linear.triton_finish import norm_factor

BLOCK = tl.constexpr(64)
RING_ROWS = tl.constexpr(slots.RING_ROWS)
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
def _add6(a, b, c, d, e, f, g, h, i, j, k, l):  # noqa: E741
    return a + g, b + h, c + i, d + j, e + k, f + l


@triton.jit
def _wrapped(at, ROWS: tl.constexpr):
    """at % ROWS for at < 2 ROWS"""
    return tl.where(at < ROWS, at, at - ROWS)


@triton.jit
def _open_rows(
    open_k, open_u, open_g, key_base, head_base, block, rows,
    DK: tl.constexpr, DV: tl.constexpr, KEY_ROWS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rows [0, rows) of a block, zero beyond: k [64, DK/64, 64], u [8, DV/16, 8, 16], G [64], 1/|k| [64]."""
    row = tl.arange(0, 64)
    RUN: tl.constexpr = min(DK, 64)
    d = (tl.arange(0, DK // RUN) * RUN)[None, :, None] + tl.arange(0, RUN)[None, None, :]
    at = key_base + _wrapped(block * 64 % KEY_ROWS + row, KEY_ROWS)
    keys = tl.load(open_k + at[:, None, None] * DK + d, mask=(row < rows)[:, None, None], other=0.0)
    place = (tl.arange(0, 8) * 8)[:, None, None, None] + tl.arange(0, 8)[None, None, :, None]
    e = (tl.arange(0, DV // 16) * 16)[None, :, None, None] + tl.arange(0, 16)[None, None, None, :]
    begin = block * 64 % ROWS
    at = head_base + _wrapped(begin + place, ROWS)
    us = tl.load(open_u + at * DV + e, mask=place < rows, other=0.0)
    at = 2 * head_base + _wrapped(begin + row, ROWS)
    gs = tl.load(open_g + at, mask=row < rows, other=0.0)
    scales = tl.load(open_g + at + ROWS, mask=row < rows, other=0.0)
    return keys, us, gs, scales


@triton.jit
def _store_folded(state, keys, us, gs, scales, last, to, DK: tl.constexpr, DV: tl.constexpr):
    """State after a full block; `last` is G of its last row. Keys are exact in bf16, and three bf16 parts hold all
    bits of a row of u."""
    down = tl.arange(0, DV)[:, None, None]
    RUN: tl.constexpr = min(DK, 32)
    across = (tl.arange(0, DK // RUN) * RUN)[None, :, None] + tl.arange(0, RUN)[None, None, :]
    faded = us.permute([1, 3, 0, 2]).reshape([DV, 64]) * (tl.exp(last - gs) * scales)[None, :]
    rows = keys.to(tl.bfloat16).reshape([64, DK])
    high = faded.to(tl.bfloat16)
    faded -= high.to(tl.float32)
    middle = faded.to(tl.bfloat16)
    low = (faded - middle.to(tl.float32)).to(tl.bfloat16)
    added = tl.dot(low, rows)
    added = tl.dot(middle, rows, added)
    added = tl.dot(high, rows, added)
    tl.store(to + (down * DK + across), state * tl.exp(last) + added.reshape([DV, DK // RUN, RUN]))


@triton.jit
def _column(first, second, t, head, key_head, key_heads, heads, DK: tl.constexpr, DV: tl.constexpr):
    """What a column of this head reads: q above k [2, DK], v above z [2, DV]."""
    which = tl.arange(0, 2)[:, None]
    row = t.to(tl.int64)
    pair = tl.load(first + (row * 2 * key_heads + which * key_heads + key_head) * DK + tl.arange(0, DK)[None, :])
    gated = tl.load(second + (row * 2 * heads + which * heads + head) * DV + tl.arange(0, DV)[None, :])
    return pair, gated


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
def _summands(loaded, weights, STEPS: tl.constexpr, STEP: tl.constexpr):
    """What to add up for a and b of a column, without the factor of its norm."""
    a = tl.zeros([STEP], tl.float32)
    b = tl.zeros([STEP], tl.float32)
    for i in tl.static_range(STEPS):
        wide = loaded[1 + i].to(tl.float32)
        a = tl.fma(wide, weights[2 * i].to(tl.float32), a)
        b = tl.fma(wide, weights[2 * i + 1].to(tl.float32), b)
    return a, b


@triton.jit
def _taps(taps, channels, channel):
    """The four taps of channels; zero for what is no channel."""
    loaded = ()
    for j in tl.static_range(4):
        loaded = loaded + (tl.load(taps + j * channels + channel, mask=channel < channels, other=0.0),)
    return loaded


@triton.jit
def _past(ring, channels, channel, begin, RING: tl.constexpr):
    """The three columns before a position; zero before the first."""
    kept = ()
    for j in tl.static_range(3):
        earlier = begin - 3 + j
        at = ring + tl.maximum(earlier, 0) % RING * channels
        kept = kept + (tl.load(at + channel, mask=(earlier >= 0) & (channel < channels), other=0.0),)
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
    COLUMNS: tl.constexpr, STEPS: tl.constexpr, STEP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
    head = tl.program_id(0)
    b = tl.program_id(1)
    hidden = tl.multiple_of(hidden, 32)
    share = heads // key_heads
    key_head = head // share
    leads = head - key_head * share == 0  # of the programs with the same key head, the one that keeps its rows
    lane = tl.load(lanes + b).to(tl.int64)
    begin = tl.load(positions + b)
    current = tl.load(state_blocks + b)
    key_base = (lane * key_heads + key_head) * KEY_ROWS
    head_base = (lane * heads + head) * ROWS

    down = tl.arange(0, DV)[:, None, None]
    RUN: tl.constexpr = min(DK, 32)
    across = (tl.arange(0, DK // RUN) * RUN)[None, :, None] + tl.arange(0, RUN)[None, None, :]
    in_state = down * DK + across
    s += (lane * heads + head) * (DV * DK)
    state = tl.load(s + in_state, mask=current > 0, other=0.0)
    KEY_RUN: tl.constexpr = min(DK, 64)
    known = tl.minimum(begin - current * 64, 64)
    keys, us, gs, scales = _open_rows(
        open_k, open_u, open_g, key_base, head_base, current, known, DK, DV, KEY_ROWS, ROWS
    )
    g_at = open_g + 2 * head_base
    g = tl.load(g_at + tl.maximum(begin - 1, 0) % ROWS)  # of the row before; read where there is one
    # Pairs, as large as the program: the compiler would load smaller tensors again for every layout they are used in.
    # z, which is not convolved, takes part with zero taps.
    which = tl.arange(0, 2)[:, None]
    d = tl.arange(0, DK)[None, :]
    e = tl.arange(0, DV)
    channels = 2 * key_heads * DK + heads * DV
    pair_channel = (which * key_heads + key_head) * DK + d
    gated_channel = (2 * key_heads) * DK + head * DV + which * (heads * DV) + e[None, :]
    pair_taps = _taps(taps, channels, pair_channel)
    gated_taps = _taps(taps, channels, gated_channel)
    ring += lane * RING_ROWS * channels
    pair_past = _past(ring, channels, pair_channel, begin, RING)
    gated_past = _past(ring, channels, gated_channel, begin, RING)
    weights = _weights(ab, head, heads, hidden, STEPS, STEP)
    rate = tl.load(decay_rate + head)
    bias = tl.load(dt_bias + head)
    weight = tl.load(norm + e)
    row = tl.arange(0, 64)
    places = (tl.arange(0, 8) * 8)[:, None, None, None] + tl.arange(0, 8)[None, None, :, None]
    # Rows of a block that ends here may share places with rows that this round adds.
    tl.debug_barrier()
    if DEPENDENT:
        gdc_wait()

    pair_now, gated_now = _column(first, second, b * columns, head, key_head, key_heads, heads, DK, DV)
    inputs = _inputs(x, squares, capacity, b * columns, x_plane, x_width, hidden, x_eps, STEPS, STEP)
    a, beta = tl.reduce(_summands(inputs, weights, STEPS, STEP), 0, _add2)
    a_all = tl.zeros([COLUMNS], tl.float32) + a * inputs[0]
    b_all = tl.zeros([COLUMNS], tl.float32) + beta * inputs[0]
    # Further columns by threes: what they read arrives together and their sums share exchanges between warps, of which
    # each column would wait for its own. A sum is made as above, so no bit depends on its company.
    for step in tl.range(1, columns, 3, num_stages=1):
        again = _weights(ab, head, heads, hidden, STEPS, STEP)  # from a cache; there are no registers to keep them
        factors = ()
        summands = ()
        for i in tl.static_range(3):
            t = b * columns + tl.minimum(step + i, columns - 1)
            inputs = _inputs(x, squares, capacity, t, x_plane, x_width, hidden, x_eps, STEPS, STEP)
            factors = factors + (inputs[0],)
            summands = summands + _summands(inputs, again, STEPS, STEP)
        sums = tl.reduce(summands, 0, _add6)
        for i in tl.static_range(3):
            mine = tl.arange(0, COLUMNS) == step + i
            a_all = tl.where(mine, sums[2 * i] * factors[i], a_all)
            b_all = tl.where(mine, sums[2 * i + 1] * factors[i], b_all)
    # Rounded like every output of a linear map.
    logs = log_decay(a_all.to(tl.bfloat16).to(tl.float32), rate, bias)
    betas = 1.0 / (1.0 + tl.exp(-b_all.to(tl.bfloat16).to(tl.float32)))
    keys = keys.to(tl.float32)
    for step in tl.range(0, columns, num_stages=1):
        position = begin + step
        block = position // 64
        place = position - block * 64
        if block > current:
            last = tl.sum(tl.where(row == 63, gs, 0.0))
            to = s
            if step > 0:
                to = workspace + (b * heads + head).to(tl.int64) * (DV * DK)
            _store_folded(state, keys, us, gs, scales, last, to, DK, DV)
            tl.debug_barrier()
            state = tl.load(to + in_state)
            keys, us, gs, scales = _open_rows(
                open_k, open_u, open_g, key_base, head_base, block, place, DK, DV, KEY_ROWS, ROWS
            )
            keys = keys.to(tl.float32)
            current = block
        mine = tl.arange(0, COLUMNS) == step
        beta = tl.sum(tl.where(mine, betas, 0.0))
        g = tl.where(place > 0, g, 0.0) + tl.sum(tl.where(mine, logs, 0.0))
        pair = _mixed(pair_past, pair_now, pair_taps)
        query, key = tl.split(pair.to(tl.float32).trans(1, 0))
        value, _ = tl.split(_mixed(gated_past, gated_now, gated_taps).trans(1, 0))
        _, gate = tl.split(gated_now.trans(1, 0))
        ring_at = ring + position % RING * channels
        tl.store(ring_at + gated_channel, gated_now, mask=gated_channel < channels)
        tl.store(ring_at + pair_channel, pair_now, mask=leads)
        tl.store(open_k + (key_base + position % KEY_ROWS) * DK + d + which * 0, pair, mask=(which == 1) & leads)
        pair_past = (pair_past[1], pair_past[2], pair_now)
        gated_past = (gated_past[1], gated_past[2], gated_now)
        following = b * columns + tl.minimum(step + 1, columns - 1)
        pair_now, gated_now = _column(first, second, following, head, key_head, key_heads, heads, DK, DV)
        # Normalised vectors are q and k times a number: the number goes behind the sums.
        qq, kk, qk = tl.reduce((query * query, key * key, query * key), 0, _add3)
        q_scale = 1.0 / tl.sqrt(qq + L2_EPS)
        k_scale = 1.0 / tl.sqrt(kk + L2_EPS)

        fading = tl.exp(tl.where(row < place, g - gs, 0.0)) * scales
        k_wide = key.reshape([1, DK // KEY_RUN, KEY_RUN])
        k_scores = tl.sum(tl.sum(keys * k_wide, axis=1), axis=1) * k_scale * fading
        q_wide = query.reshape([1, DK // KEY_RUN, KEY_RUN])
        q_scores = tl.sum(tl.sum(keys * q_wide, axis=1), axis=1) * q_scale * fading
        k_inside = tl.sum(tl.sum(us * k_scores.reshape([8, 1, 8, 1]), axis=2), axis=0).reshape([DV])
        q_inside = tl.sum(tl.sum(us * q_scores.reshape([8, 1, 8, 1]), axis=2), axis=0).reshape([DV])
        k_carried = tl.sum(tl.sum(state * key.reshape([1, DK // RUN, RUN]), axis=1), axis=1)
        q_carried = tl.sum(tl.sum(state * query.reshape([1, DK // RUN, RUN]), axis=1), axis=1)
        growth = tl.exp(g)
        u = beta * (value.to(tl.float32) - (growth * k_scale) * k_carried - k_inside)
        o = ((growth * q_scale) * q_carried + q_inside + (qk * q_scale * k_scale) * u) * scale

        # The column's row joins the open ones, here and in memory.
        if step + 1 < columns:
            keys = tl.where(row[:, None, None] == place, k_wide, keys)
            us = tl.where(places == place, u.reshape([1, DV // 16, 1, 16]), us)
            gs = tl.where(row == place, g, gs)
            scales = tl.where(row == place, k_scale, scales)
        tl.store(open_u + (head_base + position % ROWS) * DV + e, u)
        tl.store(g_at + position % ROWS, g)
        tl.store(g_at + ROWS + position % ROWS, k_scale)

        factor = 1.0 / tl.sqrt(tl.sum(o * o) / DV + eps)
        y = o * factor * weight * silu(gate.to(tl.float32))
        t = b * columns + step
        tl.store(out + _blocked_offsets(head * DV + e, t, out_plane, out_width), y.to(tl.bfloat16))
