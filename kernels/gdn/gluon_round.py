"""GPU route of a round: one program per lane and value head, its columns in groups.

The entry state and the keys of the open rows lie in shared memory, u of the open rows in registers, for the whole
round: its columns add their rows there, so a column meets the same values in the same places whether its predecessor
ran in this launch or in an earlier one. What the threads of a program have to tell each other passes through shared
memory between a few phases: projections and convolution of the group's columns; their gates, and their keys among the
open ones; then, for one or two columns at a time, scores of the open rows and products with the state, and u of one
column after the other, which stays within warps; the output norm. Phases walk in loops over the columns that are
there: a launch meets its code cold, so little code is time.

It is written in Gluon, Triton's language with layouts and exchanges told: left to guess, Triton exchanged a column's
vectors some twenty times. Every sum is made in a layout written down here, whatever the group, so no bit depends on a
column's company. One binary serves rounds of one column per lane and one those of several; lanes, columns and every
width of the buffers are run-time values.

State and rows were last written a whole round ago and are loaded before the predecessor is waited for.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ninfer.kernels.gdn import slots
from ninfer.kernels.gdn.gluon_names import load_to_shared
from ninfer.kernels.gdn.gluon_parts import (
    WARPS,
    anew,
    beside,
    blocked_offsets,
    convolved,
    fetch,
    fold,
    inputs,
    load_taps,
    load_weights,
    log_decay,
    number,
    open_rows,
    projected,
    silu,
)
from ninfer.kernels.gdn.triton_gates import L2_EPS
from ninfer.kernels.low_bit_linear import buffers

RING_ROWS = gl.constexpr(slots.RING_ROWS)
SQUARES_UNIT = gl.constexpr(0.5**buffers.SQUARES_BITS)


@gluon.jit(
    do_not_specialize=[
        "columns", "key_heads", "heads", "hidden", "capacity", "x_plane", "x_width", "out_plane", "out_width",
    ]
)  # fmt: skip
def gdn_round(
    first, second, x, squares, ab, taps, decay_rate, dt_bias, norm, s, open_k, open_u, open_g, ring,
    lanes, positions, state_blocks, out,
    columns, key_heads, heads, hidden, capacity, x_plane, x_width, out_plane, out_width, x_eps, eps, scale,
    DK: gl.constexpr, DV: gl.constexpr, KEY_ROWS: gl.constexpr, ROWS: gl.constexpr, RING: gl.constexpr,
    GROUP: gl.constexpr, STEPS: gl.constexpr, STEP: gl.constexpr, EXACT: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """See ``rounds.gdn_round``. GROUP: columns of a lane at a time, one or an even number; STEPS of STEP values of x
    make a row of `hidden`, EXACT: without a rest."""
    if DEPENDENT:
        gdc_launch_dependents()
    # Values of the state down the warps, 16 in each; keys across eight lanes, whose sums stay within a warp.
    STATE: gl.constexpr = gl.BlockedLayout([4, 4], [4, 8], [WARPS, 1], [1, 0])
    KEYS: gl.constexpr = gl.BlockedLayout([2, 4], [4, 8], [WARPS, 1], [1, 0])
    KEYS_IN: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    # The open rows across eight lanes; a thread has the values that it has of the state.
    U: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [1, WARPS], [0, 1])
    # A column's vector to a warp.
    VECTORS: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [WARPS, 1], [1, 0])
    # Gates: the partial sums of a warp each in one thread.
    PARTS: gl.constexpr = gl.BlockedLayout([1, WARPS], [32, 1], [WARPS, 1], [1, 0])
    GATES: gl.constexpr = gl.SliceLayout(1, PARTS)
    OWN: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, WARPS], [0, 1])  # those sums where they come from
    ROW: gl.constexpr = gl.SliceLayout(1, KEYS)
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    VALUE: gl.constexpr = gl.SliceLayout(0, U)
    # Columns that the recurrence takes at once lie between each other.
    AT_ONCE: gl.constexpr = 1 if GROUP == 1 else 2
    MIXED: gl.constexpr = gl.BlockedLayout([1, 4, 1], [1, 32, 1], [WARPS // AT_ONCE, 1, AT_ONCE], [2, 1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    FLAT2: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    FLAT3: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])

    state = gl.allocate_shared_memory(gl.float32, [DV, DK], FLAT2)
    keys = gl.allocate_shared_memory(gl.bfloat16, [64, DK], FLAT2)
    key_rows = keys._reinterpret(gl.bfloat16, [64, DK], FLAT)
    vectors = gl.allocate_shared_memory(gl.float32, [2 * GROUP, DK], FLAT2)  # q and k of each column
    vector = vectors._reinterpret(gl.float32, [2 * GROUP, DK], FLAT)
    values = gl.allocate_shared_memory(gl.float32, [GROUP, DV], FLAT2)
    value = values._reinterpret(gl.float32, [GROUP, DV], FLAT)
    mixed = gl.allocate_shared_memory(gl.float32, [GROUP // AT_ONCE, DV, AT_ONCE], FLAT2)
    whole_mixed = mixed._reinterpret(gl.float32, [GROUP // AT_ONCE, DV, AT_ONCE], FLAT3)
    scores = ()
    for _ in gl.static_range(2 * AT_ONCE):
        scores = scores + (gl.allocate_shared_memory(gl.float32, [64], FLAT),)
    parts = gl.allocate_shared_memory(gl.float32, [2 * GROUP, WARPS], FLAT2)  # of a and b of each column
    lengths = gl.allocate_shared_memory(gl.float32, [2 * GROUP], FLAT)
    growths = gl.allocate_shared_memory(gl.float32, [2 * GROUP], FLAT)
    growth_of = growths._reinterpret(gl.float32, [2 * GROUP, 1], FLAT)
    betas = gl.allocate_shared_memory(gl.float32, [2 * GROUP], FLAT)
    beta_of = betas._reinterpret(gl.float32, [2 * GROUP, 1], FLAT)
    roots = gl.allocate_shared_memory(gl.float32, [2 * GROUP], FLAT)
    root_of = roots._reinterpret(gl.float32, [2 * GROUP, 1], FLAT)

    head = gl.program_id(0)
    b = gl.program_id(1)
    hidden = hidden // 32 * 32  # as it is: so that it divides
    share = heads // key_heads
    key_head = head // share
    leads = head - key_head * share == 0  # of the programs with the same key head, the one that keeps its rows
    lane = gl.load(lanes + b).to(gl.int64)
    begin = gl.load(positions + b)
    current = gl.load(state_blocks + b)
    open_k += (lane * key_heads + key_head) * (KEY_ROWS * DK)
    open_u += (lane * heads + head) * (ROWS * DV)
    open_g += (lane * heads + head) * (2 * ROWS)
    if GROUP == 1:
        columns = 1

    s += (lane * heads + head) * (DV * DK)
    down = gl.arange(0, DV, layout=gl.SliceLayout(1, STATE))
    across = gl.arange(0, DK, layout=gl.SliceLayout(0, STATE))
    load_to_shared(state, s + (down[:, None] * DK + across[None, :]), mask=(current > 0) & (down < DV)[:, None])
    known = gl.minimum(begin - current * 64, 64)
    us, gs, scales = open_rows(keys, open_k, open_u, open_g, current, known, DK, DV, KEY_ROWS, ROWS, KEYS_IN, U, ROW)
    g = gl.load(open_g + gl.maximum(begin - 1, 0) % ROWS)  # of the row before; read where there is one

    channels = 2 * key_heads * DK + heads * DV
    pair = gl.arange(0, 2 * GROUP, layout=gl.SliceLayout(1, VECTORS))  # 2 i: q of column i, 2 i + 1: its k
    member = gl.arange(0, GROUP, layout=gl.SliceLayout(1, VECTORS))
    d = gl.arange(0, DK, layout=gl.SliceLayout(0, VECTORS))
    e = gl.arange(0, DV, layout=gl.SliceLayout(0, VECTORS))
    pair_channel = (pair % 2 * key_heads + key_head)[:, None] * DK + d[None, :]
    value_channel = (2 * key_heads * DK + head * DV + e)[None, :] + member[:, None] * 0
    if GROUP == 1:
        pair_taps = load_taps(taps, channels, pair_channel)
        value_taps = load_taps(taps, channels, value_channel)
    ring += lane * RING_ROWS * channels
    inner = gl.arange(0, STEP // WARPS, layout=gl.SliceLayout(0, VECTORS))
    outer = gl.arange(0, WARPS, layout=gl.SliceLayout(1, VECTORS))
    within = outer[:, None] * (STEP // WARPS) + inner[None, :]
    if GROUP == 1:
        weights = load_weights(ab, head, heads, hidden, within, STEPS, STEP, EXACT)
    rate = gl.load(decay_rate + head)
    bias = gl.load(dt_bias + head)
    weight = gl.load(norm + e)
    row = gl.arange(0, 64, layout=ROW)
    u_row = gl.arange(0, 64, layout=gl.SliceLayout(1, U))
    u_value = gl.arange(0, DV, layout=gl.SliceLayout(0, U))
    gate = gl.arange(0, 2 * GROUP, layout=GATES)  # 2 i: a of column i, 2 i + 1: its b
    if DEPENDENT:
        if GROUP > 1:
            fetch(ab, taps, head, heads, key_head, key_heads, hidden, channels, DK, DV)
        gdc_wait()

    step = 0
    while step < columns:
        position = begin + step
        block = position // 64
        place = position - block * 64
        if GROUP == 1:
            take = 1
        else:
            take = gl.minimum(gl.minimum(columns - step, 64 - place), GROUP)
        token = b * columns + step  # the group's first; behind its last column that one again
        zero = anew(step)
        if GROUP > 1:
            # Not kept in registers from one group to the next.
            pair_taps = load_taps(taps, channels, pair_channel + zero)
            value_taps = load_taps(taps, channels, value_channel + zero)
            weights = load_weights(ab, head, heads, hidden, within + zero, STEPS, STEP, EXACT)
        # On their way at once: what the phases below read.
        pair_at = gl.minimum(pair // 2, take - 1)
        member_at = gl.minimum(member, take - 1)
        pair_inputs = inputs(
            first, token, 2 * key_heads * DK, pair_channel, ring, begin, channels, pair_channel, step, pair_at, zero,
            RING,
        )  # fmt: skip
        value_inputs = inputs(
            second, token, 2 * heads * DV, (head * DV + e)[None, :], ring, begin, channels, value_channel, step,
            member_at, zero, RING,
        )  # fmt: skip
        z = gl.load(second + ((token + member_at)[:, None] * (2 * heads * DV) + ((heads + head) * DV + e)[None, :]))
        gate_token = token + gl.minimum(gate // 2, take - 1)
        whole = gl.load(squares + gate_token)
        fraction = gl.load(squares + capacity + gate_token)

        parts.store(
            projected(
                x, weights, token, take, x_plane, x_width, hidden, within, zero,
                GROUP, STEPS, STEP, EXACT, VECTORS, OWN,
            )
        )  # fmt: skip
        pair_out = convolved(pair_inputs, pair_taps)
        value_out = convolved(value_inputs, value_taps)
        is_there = pair // 2 < take
        ring_at = ((position + pair // 2) % RING)[:, None] * channels
        gl.store(ring + (ring_at + pair_channel), pair_inputs[3], mask=leads & is_there[:, None])
        key_at = (position + pair // 2) % KEY_ROWS
        gl.store(
            open_k + (key_at[:, None] * DK + d[None, :]), pair_out, mask=leads & (is_there & (pair % 2 == 1))[:, None]
        )
        ring_at = ((position + member) % RING)[:, None] * channels
        gl.store(ring + (ring_at + value_channel), value_inputs[3], mask=(member < take)[:, None])
        wide = pair_out.to(gl.float32)
        vectors.store(wide)
        values.store(value_out.to(gl.float32))
        lengths.store(gl.sum(wide * wide, axis=1))

        if block > current:
            async_copy.wait_group(0)
            fold(state, keys, us, gs, scales, block, s, step == 0, DK, DV, U)
            us, gs, scales = open_rows(
                keys, open_k, open_u, open_g, block, place,
                DK, DV, KEY_ROWS, ROWS, KEYS_IN, U, ROW,
            )  # fmt: skip
            current = block

        # Gates, rounded like every output of a linear map, and the columns' rows among the open ones. Normalised
        # vectors are q and k times a number: the number goes behind the sums.
        factor = 1.0 / gl.sqrt((whole.to(gl.float32) + fraction.to(gl.float32) * SQUARES_UNIT) / hidden + x_eps)
        rounded = (gl.sum(parts.load(PARTS), axis=1) * factor).to(gl.bfloat16).to(gl.float32)
        logs = log_decay(rounded, rate, bias)
        root = 1.0 / gl.sqrt(lengths.load(GATES) + L2_EPS)
        betas.store(1.0 / (1.0 + gl.exp(-rounded)))
        roots.store(root)
        growth = logs
        before = g
        for i in gl.static_range(GROUP):
            before = gl.where(place + i > 0, before, 0.0) + gl.sum(gl.where(gate == 2 * i, logs, 0.0), axis=0)
            growth = gl.where(gate // 2 == i, before, growth)
            here = (row == place + i) & (i < take)
            gs = gl.where(here, before, gs)
            scales = gl.where(here, gl.sum(gl.where(gate == 2 * i + 1, root, 0.0), axis=0), scales)
            g = gl.where(i < take, before, g)
        growths.store(growth)
        async_copy.wait_group(0)
        for c in range(take):
            k_row = vector.index(2 * c + 1).load(gl.SliceLayout(0, VECTORS))
            key_rows.index(place + c).store(k_row.to(gl.bfloat16))

        for turn in range((take + AT_ONCE - 1) // AT_ONCE):
            rows_k = keys.load(KEYS).to(gl.float32)
            entry = state.load(STATE)
            carried = ()
            for i in gl.static_range(AT_ONCE):
                c = turn * AT_ONCE + i
                query = vector.index(2 * c).load(gl.SliceLayout(0, STATE))
                key = vector.index(2 * c + 1).load(gl.SliceLayout(0, STATE))
                k_scores = gl.sum(rows_k * gl.convert_layout(key, gl.SliceLayout(0, KEYS))[None, :], axis=1)
                q_scores = gl.sum(rows_k * gl.convert_layout(query, gl.SliceLayout(0, KEYS))[None, :], axis=1)
                k_carried = gl.sum(entry * key[None, :], axis=1)
                q_carried = gl.sum(entry * query[None, :], axis=1)
                carried = carried + (gl.convert_layout(k_carried, VALUE), gl.convert_layout(q_carried, VALUE))
                there = row <= place + c
                fading = gl.exp(gl.where(there, number(growth_of, 2 * c, ONE) - gs, 0.0)) * scales
                k_scores = k_scores * number(root_of, 2 * c + 1, ONE) * fading
                q_scores = q_scores * number(root_of, 2 * c, ONE) * fading
                scores[2 * i].store(gl.where(row < place + c, k_scores, 0.0))
                scores[2 * i + 1].store(gl.where(there, q_scores, 0.0))  # its own row last, which has no u yet
            # One column after the other, within warps.
            outputs = ()
            for i in gl.static_range(AT_ONCE):
                c = turn * AT_ONCE + i
                k_scores = scores[2 * i].load(gl.SliceLayout(1, U))
                q_scores = scores[2 * i + 1].load(gl.SliceLayout(1, U))
                k_inside = gl.sum(us * k_scores[:, None], axis=0)
                q_inside = gl.sum(us * q_scores[:, None], axis=0)
                mine = (u_row == place + c) & (c < take)
                with_own = gl.sum(gl.where(mine, q_scores, 0.0), axis=0)
                log = number(growth_of, 2 * c, ONE)
                grown = gl.exp(log)
                k_scale = number(root_of, 2 * c + 1, ONE)
                u = value.index(c).load(VALUE) - (grown * k_scale) * carried[2 * i] - k_inside
                u = number(beta_of, 2 * c + 1, ONE) * u
                o = (grown * number(root_of, 2 * c, ONE)) * carried[2 * i + 1] + q_inside
                o = (o + with_own * u) * scale
                outputs = outputs + (o,)
                us = gl.where(mine[:, None], u[None, :], us)
                slot = (position + c) % ROWS
                gl.store(open_u + (slot * DV + u_value), u, mask=(u_value < DV) & (c < take))
                gl.store(open_g + slot, log, mask=c < take)
                gl.store(open_g + ROWS + slot, k_scale, mask=c < take)
            mixed.index(turn).store(beside(outputs, AT_ONCE))

        o = whole_mixed.load(MIXED).permute([0, 2, 1]).reshape([GROUP, DV])
        o = gl.convert_layout(o, VECTORS, assert_trivial=True)
        total = gl.sum(o * o, axis=1)
        y = o * (1.0 / gl.sqrt(total / DV + eps))[:, None] * weight[None, :] * silu(z.to(gl.float32))
        at = blocked_offsets((head * DV + e)[None, :], (token + member)[:, None], out_plane, out_width)
        gl.store(out + at, y.to(gl.bfloat16), mask=(member < take)[:, None])
        step += take
