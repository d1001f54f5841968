"""Triton route of a round: one program per lane and value head, its columns in groups.

The state and the open rows of a head live in registers for the whole round: its columns add their rows there, so a
column meets the same values in the same places whether its predecessor ran in this launch or in an earlier one.
What a column does not have from u of another is computed for the whole group and shares its exchanges between warps; u
of one column after the other then follows within warps. Every sum over values is made in one layout and order whatever
the group, so no bit depends on a column's company.
One binary serves rounds of one column per lane and one those of several; lanes, columns and every width of the buffers
are run-time values. Widening to fp64 and back moves no bits: it marks where the compiler shall exchange joined tensors
instead of their parts.

State and rows were last written a whole round ago and are loaded before the predecessor is waited for.
Shapes with several small dimensions give a warp whole reductions: no sum over a row of the state or over the open rows
crosses warps, and both kinds leave their values in the same threads.
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
def _add4(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def _add6(a, b, c, d, e, f, g, h, i, j, k, l):  # noqa: E741
    return a + g, b + h, c + i, d + j, e + k, f + l


@triton.jit
def _add8(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p):  # noqa: E741
    return a + i, b + j, c + k, d + l, e + m, f + n, g + o, h + p


@triton.jit
def _add12(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x):  # noqa: E741
    return a + m, b + n, c + o, d + p, e + q, f + r, g + s, h + t, i + u, j + v, k + w, l + x


@triton.jit
def _sums(parts, COUNT: tl.constexpr):
    """The sum of each of several vectors, all in one exchange between warps."""
    if COUNT == 1:
        sums = (tl.sum(parts[0], axis=0),)
    elif COUNT == 2:
        sums = tl.reduce(parts, 0, _add2)
    elif COUNT == 3:
        sums = tl.reduce(parts, 0, _add3)
    elif COUNT == 4:
        sums = tl.reduce(parts, 0, _add4)
    elif COUNT == 6:
        sums = tl.reduce(parts, 0, _add6)
    elif COUNT == 8:
        sums = tl.reduce(parts, 0, _add8)
    else:
        sums = tl.reduce(parts, 0, _add12)
    return sums


@triton.jit
def _joined(parts, COUNT: tl.constexpr):
    """Equal tensors side by side, so that one exchange between warps moves them all."""
    if COUNT == 1:
        joined = parts[0]
    elif COUNT == 2:
        joined = tl.join(parts[0], parts[1])
    elif COUNT == 4:
        joined = tl.join(tl.join(parts[0], parts[1]), tl.join(parts[2], parts[3]))
    else:
        low = tl.join(tl.join(parts[0], parts[1]), tl.join(parts[2], parts[3]))
        high = tl.join(tl.join(parts[4], parts[5]), tl.join(parts[6], parts[7]))
        joined = tl.join(low, high)
    return joined


@triton.jit
def _halves(joined):
    a, b = tl.split(joined)
    return (a, b)


@triton.jit
def _parted(joined, COUNT: tl.constexpr):
    """What `_joined` has put together."""
    if COUNT == 1:
        parts = (joined,)
    elif COUNT == 2:
        a, b = tl.split(joined)
        parts = (a, b)
    elif COUNT == 4:
        low, high = tl.split(joined)
        parts = _halves(low) + _halves(high)
    else:
        low, high = tl.split(joined)
        a, b = tl.split(low)
        c, d = tl.split(high)
        parts = _halves(a) + _halves(b) + _halves(c) + _halves(d)
    return parts


@triton.jit
def _two(pairs, COUNT: tl.constexpr, WIDE: tl.constexpr):
    """Of joined pairs [2, N], first and second rows: a tuple of each."""
    wide = _joined(pairs, COUNT).to(WIDE)
    if COUNT == 1:
        first, second = tl.split(wide.trans(1, 0))
    elif COUNT == 2:
        first, second = tl.split(wide.permute([1, 2, 0]))
    else:
        first, second = tl.split(wide.permute([1, 2, 3, 0]))
    return _parted(first, COUNT), _parted(second, COUNT)


@triton.jit
def _places(parts, COUNT: tl.constexpr):
    """Vectors [64] beside the open rows' u, joined."""
    joined = _joined(parts, COUNT)
    if COUNT == 2:
        joined = joined.reshape([8, 1, 1, 8, 1, 2])
    elif COUNT == 4:
        joined = joined.reshape([8, 1, 1, 8, 1, 2, 2])
    else:
        joined = joined.reshape([8, 1, 1, 8, 1, 2, 2, 2])
    return joined


@triton.jit
def _stacked(parts, COUNT: tl.constexpr):
    """[N, COUNT]"""
    if COUNT == 1:
        stacked = parts[0][:, None]
    elif COUNT == 2:
        stacked = tl.join(parts[0], parts[1])
    else:
        joined = _joined(parts, 4)
        stacked = joined.permute([0, 2, 1]).reshape([joined.shape[0], 4])
    return stacked


@triton.jit
def _wrapped(at, ROWS: tl.constexpr):
    """at % ROWS for at < 2 ROWS"""
    return tl.where(at < ROWS, at, at - ROWS)


@triton.jit
def _row_places():
    """Places [8, 1, 1, 8, 1] of the open rows in the tensor of their u."""
    return (tl.arange(0, 8) * 8)[:, None, None, None, None] + tl.arange(0, 8)[None, None, None, :, None]


@triton.jit
def _open_rows(
    open_k, open_u, open_g, key_base, head_base, block, rows,
    DK: tl.constexpr, DV: tl.constexpr, KEY_ROWS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rows [0, rows) of a block, zero beyond: k [8, 64, DK/32, 4], u [8, 4, DV/16, 8, 4], G [64], 1/|k| [64]."""
    row = tl.arange(0, 64)
    RUN: tl.constexpr = min(DK, 32)
    d = (tl.arange(0, RUN // 4) * 4)[:, None, None, None] + (tl.arange(0, DK // RUN) * RUN)[None, None, :, None]
    d += tl.arange(0, 4)[None, None, None, :]
    at = key_base + _wrapped(block * 64 % KEY_ROWS + row, KEY_ROWS)
    at = at[None, :, None, None] * DK
    keys = tl.load(open_k + at + d, mask=(row < rows)[None, :, None, None], other=0.0)
    place = _row_places()
    e = (tl.arange(0, 4) * 4)[None, :, None, None, None] + (tl.arange(0, DV // 16) * 16)[None, None, :, None, None]
    e += tl.arange(0, 4)[None, None, None, None, :]
    begin = block * 64 % ROWS
    at = head_base + _wrapped(begin + place, ROWS)
    us = tl.load(open_u + at * DV + e, mask=place < rows, other=0.0)
    at = 2 * head_base + _wrapped(begin + row, ROWS)
    gs = tl.load(open_g + at, mask=row < rows, other=0.0)
    scales = tl.load(open_g + at + ROWS, mask=row < rows, other=0.0)
    return keys, us, gs, scales


@triton.jit
def _in_state(DK: tl.constexpr, DV: tl.constexpr):
    """Offsets [4, DV/16, 4, DK/32, 32] of the state: value 16 j + 4 i + l is at [i, j, l]. So a warp has the values
    that it has of the open rows."""
    RUN: tl.constexpr = min(DK, 32)
    down = (tl.arange(0, 4) * 4)[:, None, None, None, None] + (tl.arange(0, DV // 16) * 16)[None, :, None, None, None]
    down += tl.arange(0, 4)[None, None, :, None, None]
    across = (tl.arange(0, DK // RUN) * RUN)[None, None, None, :, None] + tl.arange(0, RUN)[None, None, None, None, :]
    return down * DK + across


@triton.jit
def _across_rows(wide, DK: tl.constexpr):
    """A vector [DK] beside the open rows' keys."""
    RUN: tl.constexpr = min(DK, 32)
    return wide.reshape([DK // RUN, RUN // 4, 4]).permute([1, 0, 2]).reshape([RUN // 4, 1, DK // RUN, 4])


@triton.jit
def _scores(keys, wide, DK: tl.constexpr):
    """keys . wide [64]"""
    products = keys.to(tl.float32) * _across_rows(wide, DK)
    return tl.sum(tl.sum(tl.sum(products, axis=2), axis=2), axis=0)


@triton.jit
def _in_order(values, DV: tl.constexpr):
    """[DV] of values [4, DV/16, 4]"""
    return values.permute([1, 0, 2]).reshape([DV])


@triton.jit
def _apart(values, DV: tl.constexpr):
    """The inverse of `_in_order`."""
    return values.reshape([DV // 16, 4, 4]).permute([1, 0, 2])


@triton.jit
def _inside(us, scores, MEMBER: tl.constexpr, COUNT: tl.constexpr):
    """us . scores of k and of q [4, DV/16, 4] of a member, of joined scores. The products are those of all, so that
    all are exchanged at once; what nobody asks for is not computed."""
    same = ()
    for _ in tl.static_range(COUNT):
        same = same + (us,)
    products = _parted(_joined(same, COUNT) * scores, COUNT)
    k_inside = tl.sum(tl.sum(products[2 * MEMBER], axis=3), axis=0)
    q_inside = tl.sum(tl.sum(products[2 * MEMBER + 1], axis=3), axis=0)
    return k_inside, q_inside


@triton.jit
def _carried(state, wide, DK: tl.constexpr, DV: tl.constexpr):
    """state . wide [4, DV/16, 4]"""
    RUN: tl.constexpr = min(DK, 32)
    products = state * wide.reshape([1, 1, 1, DK // RUN, RUN])
    return tl.sum(tl.sum(products, axis=3), axis=3)


@triton.jit
def _store_folded(state, keys, us, gs, scales, last, to, DK: tl.constexpr, DV: tl.constexpr):
    """State after a full block; `last` is G of its last row. Keys are exact in bf16, and three bf16 parts hold all
    bits of a row of u."""
    RUN: tl.constexpr = min(DK, 32)
    faded = us.permute([2, 1, 4, 0, 3]).reshape([DV, 64]) * (tl.exp(last - gs) * scales)[None, :]
    rows = keys.permute([1, 2, 0, 3]).reshape([64, DK])
    high = faded.to(tl.bfloat16)
    faded -= high.to(tl.float32)
    middle = faded.to(tl.bfloat16)
    low = (faded - middle.to(tl.float32)).to(tl.bfloat16)
    added = tl.dot(low, rows)
    added = tl.dot(middle, rows, added)
    added = tl.dot(high, rows, added)
    added = added.reshape([DV // 16, 4, 4, DK // RUN, RUN]).permute([1, 0, 2, 3, 4])
    tl.store(to + _in_state(DK, DV), state * tl.exp(last) + added)


@triton.jit
def _column(first, second, t, head, key_head, key_heads, heads, DK: tl.constexpr, DV: tl.constexpr):
    """What a column of this head reads: q above k [2, DK], v above z [2, DV]."""
    which = tl.arange(0, 2)[:, None]
    row = t.to(tl.int64)
    pair = tl.load(first + (row * 2 * key_heads + which * key_heads + key_head) * DK + tl.arange(0, DK)[None, :])
    gated = tl.load(second + (row * 2 * heads + which * heads + head) * DV + tl.arange(0, DV)[None, :])
    return pair, gated


@triton.jit
def _columns(
    first, second, t, last, head, key_head, key_heads, heads, DK: tl.constexpr, DV: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """GROUP columns from t on, of which no more than `last` follow; behind them the last one again."""
    pairs = ()
    gated = ()
    for i in tl.static_range(GROUP):
        row = t + tl.minimum(i, last)
        pair, value = _column(first, second, row, head, key_head, key_heads, heads, DK, DV)
        pairs = pairs + (pair,)
        gated = gated + (value,)
    return pairs, gated


@triton.jit
def _behind(entries, take, GROUP: tl.constexpr):
    """Of three columns and GROUP more, the three behind which column `take` comes."""
    past = ()
    for j in tl.static_range(3):
        entry = entries[GROUP + j]
        for count in tl.static_range(1, GROUP):
            entry = tl.where(take == count, entries[count + j], entry)
        past = past + (entry,)
    return past


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
    total = tl.fma(past[1].to(tl.float32), taps[1], total)
    total = tl.fma(past[2].to(tl.float32), taps[2], total)
    total = tl.fma(now.to(tl.float32), taps[3], total)
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
    COLUMNS: tl.constexpr, GROUP: tl.constexpr, STEPS: tl.constexpr, STEP: tl.constexpr, DEPENDENT: tl.constexpr,
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

    in_state = _in_state(DK, DV)
    s += (lane * heads + head) * (DV * DK)
    state = tl.load(s + in_state, mask=current > 0, other=0.0)
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
    places = _row_places()
    # Rows of a block that ends here may share places with rows that this round adds.
    tl.debug_barrier()
    if DEPENDENT:
        gdc_wait()

    if GROUP == 1:
        columns = 1
    pair_now, gated_now = _columns(
        first, second, b * columns, columns - 1, head, key_head, key_heads, heads, DK, DV, GROUP
    )
    # What several columns read arrives together, and their sums share exchanges between warps, of which each column
    # would wait for its own.
    AT_ONCE: tl.constexpr = 1 if GROUP == 1 else 4
    a_all = tl.zeros([COLUMNS], tl.float32)
    b_all = tl.zeros([COLUMNS], tl.float32)
    for step in tl.range(0, columns, AT_ONCE, num_stages=1):
        factors = ()
        summands = ()
        for i in tl.static_range(AT_ONCE):
            t = b * columns + tl.minimum(step + i, columns - 1)
            inputs = _inputs(x, squares, capacity, t, x_plane, x_width, hidden, x_eps, STEPS, STEP)
            factors = factors + (inputs[0],)
            summands = summands + _summands(inputs, weights, STEPS, STEP)
        sums = _sums(summands, 2 * AT_ONCE)
        for i in tl.static_range(AT_ONCE):
            mine = tl.arange(0, COLUMNS) == step + i
            a_all = tl.where(mine, sums[2 * i] * factors[i], a_all)
            b_all = tl.where(mine, sums[2 * i + 1] * factors[i], b_all)
    # Rounded like every output of a linear map.
    logs = log_decay(a_all.to(tl.bfloat16).to(tl.float32), rate, bias)
    betas = 1.0 / (1.0 + tl.exp(-b_all.to(tl.bfloat16).to(tl.float32)))
    step = 0
    while step < columns:
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
            current = block
        take = tl.minimum(tl.minimum(columns - step, 64 - place), GROUP)

        # What no column has from another of the group.
        pair_all = pair_past + pair_now
        gated_all = gated_past + gated_now
        pairs = ()
        gated = ()
        for i in tl.static_range(GROUP):
            pair = _mixed((pair_all[i], pair_all[i + 1], pair_all[i + 2]), pair_now[i], pair_taps)
            value = _mixed((gated_all[i], gated_all[i + 1], gated_all[i + 2]), gated_now[i], gated_taps)
            pairs = pairs + (pair,)
            gated = gated + (tl.where(which == 0, value.to(tl.float32), silu(gated_now[i].to(tl.float32))),)
            ring_at = ring + (position + i) % RING * channels
            tl.store(ring_at + gated_channel, gated_now[i], mask=(gated_channel < channels) & (i < take))
            tl.store(ring_at + pair_channel, pair_now[i], mask=leads & (i < take))
            at = key_base + (position + i) % KEY_ROWS
            tl.store(open_k + at * DK + d + which * 0, pair, mask=(which == 1) & leads & (i < take))
        if GROUP > 1:
            pair_past = _behind(pair_all, take, GROUP)
            gated_past = _behind(gated_all, take, GROUP)
            after = tl.minimum(step + take, columns - 1)
            pair_now, gated_now = _columns(
                first, second, b * columns + after, columns - 1 - after, head, key_head, key_heads, heads, DK, DV, GROUP
            )
        query, key = _two(pairs, GROUP, tl.float32)
        value, gate = _two(gated, GROUP, tl.float64)
        summands = ()
        for i in tl.static_range(GROUP):
            summands = summands + (query[i] * query[i], key[i] * key[i], query[i] * key[i])
        sums = _sums(summands, 3 * GROUP)
        # Normalised vectors are q and k times a number: the number goes behind the sums.
        q_scale = ()
        k_scale = ()
        growths = ()
        betas_here = ()
        for i in tl.static_range(GROUP):
            q_scale = q_scale + (1.0 / tl.sqrt(sums[3 * i] + L2_EPS),)
            k_scale = k_scale + (1.0 / tl.sqrt(sums[3 * i + 1] + L2_EPS),)
            mine = tl.arange(0, COLUMNS) == step + i
            beta, log = tl.reduce((tl.where(mine, betas, 0.0), tl.where(mine, logs, 0.0)), 0, _add2)
            g = tl.where(place + i > 0, g, 0.0) + log
            growths = growths + (g,)
            betas_here = betas_here + (beta,)
        # The columns' rows join the open ones.
        if GROUP > 1:
            g = growths[0]
            for i in tl.static_range(GROUP):
                here = (row == place + i) & (i < take)
                keys = tl.where(here[None, :, None, None], _across_rows(key[i], DK).to(tl.bfloat16), keys)
                gs = tl.where(here, growths[i], gs)
                scales = tl.where(here, k_scale[i], scales)
                g = tl.where(i < take, growths[i], g)
        gs_there, scales_there = _parted(tl.join(gs, scales).to(tl.float64), 2)
        gs_there = gs_there.to(tl.float32)
        scales_there = scales_there.to(tl.float32)
        scores = ()
        carried = ()
        for i in tl.static_range(GROUP):
            earlier = row < place + i
            fading = tl.exp(tl.where(earlier, growths[i] - gs_there, 0.0)) * scales_there
            k_scores = _scores(keys, key[i], DK) * k_scale[i] * fading
            q_scores = _scores(keys, query[i], DK) * q_scale[i] * fading
            scores = scores + (tl.where(earlier, k_scores, 0.0), tl.where(earlier, q_scores, 0.0))
            carried = carried + (_carried(state, key[i], DK, DV), _carried(state, query[i], DK, DV))
        scores = _places(scores, 2 * GROUP)

        # One column after the other, without an exchange between warps.
        rows_u = ()
        mixed = ()
        for i in tl.static_range(GROUP):
            k_inside, q_inside = _inside(us, scores, i, 2 * GROUP)
            growth = tl.exp(growths[i])
            u = _apart(value[i].to(tl.float32), DV) - (growth * k_scale[i]) * carried[2 * i] - k_inside
            u = betas_here[i] * u
            o = (growth * q_scale[i]) * carried[2 * i + 1] + q_inside
            o = (o + (sums[3 * i + 2] * q_scale[i] * k_scale[i]) * u) * scale
            rows_u = rows_u + (_in_order(u, DV),)
            mixed = mixed + (_in_order(o, DV),)
            if GROUP > 1:
                us = tl.where((places == place + i) & (i < take), u[None, :, :, None, :], us)
            slot = (position + i) % ROWS
            tl.store(g_at + slot, growths[i], mask=i < take)
            tl.store(g_at + ROWS + slot, k_scale[i], mask=i < take)

        squared = ()
        for i in tl.static_range(GROUP):
            squared = squared + (mixed[i] * mixed[i],)
        totals = _sums(squared, GROUP)
        outputs = ()
        for i in tl.static_range(GROUP):
            y = mixed[i] * (1.0 / tl.sqrt(totals[i] / DV + eps)) * weight * gate[i].to(tl.float32)
            outputs = outputs + (y.to(tl.bfloat16),)
        member = tl.arange(0, GROUP)[None, :]
        at = (head_base + (position + member) % ROWS) * DV + e[:, None]
        tl.store(open_u + at, _stacked(rows_u, GROUP), mask=member < take)
        at = _blocked_offsets((head * DV + e)[:, None], b * columns + step + member, out_plane, out_width)
        tl.store(out + at, _stacked(outputs, GROUP), mask=member < take)
        step += take
