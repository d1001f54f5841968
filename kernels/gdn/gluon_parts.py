"""What programs of a round of gated DeltaNet are made of, see ``gluon_round``."""

# mypy: ignore-errors
# ruff: noqa: RUF005 (the compiler knows no unpacking)
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from ninfer.kernels.gdn import triton_gates, variants
from ninfer.kernels.gdn.gluon_names import load_to_shared
from ninfer.kernels.kv_codec import ptx

WARPS = gl.constexpr(variants.ROUND_WARPS)
FETCH = gl.constexpr(ptx.FETCH)
# One text in both languages: functions of single elements mean the same in each.
silu = gluon.jit(triton_gates.silu.fn)
log_decay = gluon.jit(triton_gates.log_decay.fn)


@gluon.jit
def blocked_offsets(k, t, plane, width):
    """Place of value k of token t in a buffer of columns, which is small."""
    return (t // width * plane + k // 32) * (32 * width) + t % width * 32 + k % 32


@gluon.jit
def _wrapped(at, ROWS: gl.constexpr):
    """at % ROWS for at < 2 ROWS"""
    return gl.where(at < ROWS, at, at - ROWS)


@gluon.jit
def anew(number):
    """Zero, made of any number, that the compiler does not know: what is computed from it is computed where it is used,
    in every turn of a loop, instead of occupying registers from before the loop on."""
    zero = gl.inline_asm_elementwise("and.b32 $0, $1, 0;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)
    return zero * 128  # so that it divides


@gluon.jit
def number(array, index, ONE: gl.constexpr):
    """A number of an array in shared memory."""
    return gl.sum(array.index(index).load(ONE), axis=0)


@gluon.jit
def beside(vectors, COUNT: gl.constexpr):
    """[N, COUNT]"""
    if COUNT == 1:
        beside = vectors[0].reshape([vectors[0].shape[0], 1])
    else:
        beside = gl.join(vectors[0], vectors[1])
    return beside


@gluon.jit
def open_rows(
    keys, open_k, open_u, open_g, block, rows,
    DK: gl.constexpr, DV: gl.constexpr, KEY_ROWS: gl.constexpr, ROWS: gl.constexpr,
    KEYS_IN: gl.constexpr, U: gl.constexpr, ROW: gl.constexpr,
):  # fmt: skip
    """Rows [0, rows) of a block, zero beyond: k on its way to shared memory, u [64, DV], G [64], 1/|k| [64]."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, KEYS_IN))
    d = gl.arange(0, DK, layout=gl.SliceLayout(0, KEYS_IN))
    at = _wrapped(block * 64 % KEY_ROWS + row, KEY_ROWS)
    load_to_shared(keys, open_k + (at[:, None] * DK + d[None, :]), mask=(row < rows)[:, None])
    async_copy.commit_group()
    begin = block * 64 % ROWS
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, U))
    e = gl.arange(0, DV, layout=gl.SliceLayout(0, U))
    at = _wrapped(begin + row, ROWS)
    us = gl.load(open_u + (at[:, None] * DV + e[None, :]), mask=(row < rows)[:, None], other=0.0)
    row = gl.arange(0, 64, layout=ROW)
    at = _wrapped(begin + row, ROWS)
    gs = gl.load(open_g + at, mask=row < rows, other=0.0)
    scales = gl.load(open_g + (at + ROWS), mask=row < rows, other=0.0)
    return us, gs, scales


@gluon.jit
def fold(state, keys, us, gs, scales, block, to, stored, DK: gl.constexpr, DV: gl.constexpr, U: gl.constexpr):
    """State after a full block, in shared memory and, if `stored`, at `to`. Keys are exact in bf16, and three bf16
    parts hold all bits of a row of u."""
    SUM: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUM, 2)
    gs = gl.convert_layout(gs, gl.SliceLayout(1, U))
    scales = gl.convert_layout(scales, gl.SliceLayout(1, U))
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, U))
    last = gl.sum(gl.where(row == 63, gs, 0.0), axis=0)
    faded = (us * (gl.exp(last - gs) * scales)[:, None]).permute([1, 0])
    high = faded.to(gl.bfloat16)
    faded -= high.to(gl.float32)
    middle = faded.to(gl.bfloat16)
    low = (faded - middle.to(gl.float32)).to(gl.bfloat16)
    added = gl.full([DV, DK], 0.0, gl.float32, layout=SUM)
    for rounded in gl.static_range(3):
        # A quarter of the rows at a time, which needs a quarter of the room for the exchange.
        quarters = (low, middle, high)[rounded].reshape([DV, 2, 2, 16]).permute([0, 3, 1, 2])
        even, odd = quarters.split()
        for i in gl.static_range(4):
            quarter = (even if i % 2 == 0 else odd).split()[i // 2]
            added = mma_v2(gl.convert_layout(quarter, LEFT), keys.slice(16 * i, 16).load(RIGHT), added)
    folded = state.load(SUM) * gl.exp(last) + added
    state.store(folded)
    down = gl.arange(0, DV, layout=gl.SliceLayout(1, SUM)) + anew(block)
    across = gl.arange(0, DK, layout=gl.SliceLayout(0, SUM))
    gl.store(to + (down[:, None] * DK + across[None, :]), folded, mask=stored & (down < DV)[:, None])


@gluon.jit
def fetch(ab, taps, head, heads, key_head, key_heads, hidden, channels, DK: gl.constexpr, DV: gl.constexpr):
    """Ask for the lines of a head's rows of a and b and of its taps: at least, where they are longer."""
    LINES: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    line = gl.arange(0, 256, layout=LINES)
    row = head + line // 128 * heads
    _fetch_lines(ab.to(gl.int64) + 2 * (row * hidden + gl.minimum(line % 128 * 64, hidden - 1)))
    line = gl.arange(0, 64, layout=LINES)
    part, inside = line // 4 % 4, line % 4 * 32
    value = 2 * key_heads * DK + head * DV + gl.minimum(inside, DV - 1)
    key = (gl.minimum(part, 1) * key_heads + key_head) * DK + gl.minimum(inside, DK - 1)
    _fetch_lines(taps.to(gl.int64) + 4 * (line // 16 * channels + gl.where(part < 2, key, value)))


@gluon.jit
def _fetch_lines(address):
    gl.inline_asm_elementwise(FETCH, "=r,l", [address], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_taps(taps, channels, channel):
    loaded = ()
    for j in gl.static_range(4):
        loaded = loaded + (gl.load(taps + (j * channels + channel)),)
    return loaded


@gluon.jit
def load_weights(ab, head, heads, hidden, within, STEPS: gl.constexpr, STEP: gl.constexpr, EXACT: gl.constexpr):
    """Rows of a and b of a head, in steps that alternate."""
    loaded = ()
    for j in gl.static_range(STEPS):
        k = j * STEP + within
        loaded = loaded + (part_of_row(ab + (head * hidden + k), k < hidden, EXACT or j < STEPS - 1),)
        loaded = loaded + (part_of_row(ab + ((heads + head) * hidden + k), k < hidden, EXACT or j < STEPS - 1),)
    return loaded


@gluon.jit
def part_of_row(at, exists, WHOLE: gl.constexpr):
    """A step of a row: only the last may be shorter than the others."""
    if WHOLE:
        loaded = gl.load(at)
    else:
        loaded = gl.load(at, mask=exists, other=0.0)
    return loaded


@gluon.jit
def projected(
    x, weights, token, take, plane, width, hidden, within, zero,
    GROUP: gl.constexpr, STEPS: gl.constexpr, STEP: gl.constexpr, EXACT: gl.constexpr,
    VECTORS: gl.constexpr, OWN: gl.constexpr,
):  # fmt: skip
    """Of each column a and b, rows 2 i and 2 i + 1, as the sums of each warp [2 GROUP, WARPS]: without the factor of
    the input's norm."""
    own = gl.arange(0, 2 * GROUP, layout=gl.SliceLayout(1, OWN))
    sums = gl.full([2 * GROUP, WARPS], 0.0, gl.float32, layout=OWN)
    in_column = (within + zero) // 32 * (32 * width) + within % 32
    for i in gl.static_range(GROUP):
        t = token + gl.minimum(i, take - 1)
        column = t // width * plane * width * 32 + t % width * 32
        a_sum = gl.full([WARPS, STEP // WARPS], 0.0, gl.float32, layout=VECTORS)
        b_sum = a_sum
        for j in gl.static_range(STEPS):
            at = x + (column + j * STEP * width + in_column)
            wide = part_of_row(at, j * STEP + within < hidden, EXACT or j < STEPS - 1).to(gl.float32)
            a_sum = gl.fma(wide, weights[2 * j].to(gl.float32), a_sum)
            b_sum = gl.fma(wide, weights[2 * j + 1].to(gl.float32), b_sum)
        a_sum = gl.convert_layout(gl.sum(a_sum, axis=1), gl.SliceLayout(0, OWN))
        b_sum = gl.convert_layout(gl.sum(b_sum, axis=1), gl.SliceLayout(0, OWN))
        sums = gl.where((own == 2 * i)[:, None], a_sum[None, :], sums)
        sums = gl.where((own == 2 * i + 1)[:, None], b_sum[None, :], sums)
    return sums


@gluon.jit
def inputs(
    source, token, row_width, in_row, ring, begin, channels, channel, step, column, zero, RING: gl.constexpr
):  # fmt: skip
    """What the convolution reads for columns of a group: the three before each, and the column itself.

    token, step   the group's first column among those of the launch, and of its lane's
    column        which of the group's they are
    Of columns before the lane's first one the ring has those that exist.
    """
    loaded = ()
    for j in gl.static_range(4):
        since = step + column - 3 + j + zero
        fresh = gl.load(
            source + ((token + column - 3 + j)[:, None] * row_width + in_row),
            mask=(since >= 0)[:, None], other=0.0,
        )  # fmt: skip
        kept = gl.load(
            ring + ((gl.maximum(begin + since, 0) % RING)[:, None] * channels + channel),
            mask=((since < 0) & (begin + since >= 0))[:, None], other=0.0,
        )  # fmt: skip
        loaded = loaded + (gl.where((since >= 0)[:, None], fresh, kept),)
    return loaded


@gluon.jit
def convolved(columns, taps):
    """silu of the sum over taps, rounded once."""
    total = columns[0].to(gl.float32) * taps[0]
    for j in gl.static_range(1, 4):
        total = gl.fma(columns[j].to(gl.float32), taps[j], total)
    return silu(total).to(gl.bfloat16)
