"""Gated DeltaNet on a device, at the shapes of the 27B: against float64, and bit for bit however tokens are dealt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ninfer.kernels.gdn.slots import RING, GdnShape, GdnSlots
from tests.kernels.gdn.cases import Layer, layer
from tests.support.tolerance import BF16_ROUNDED, FP32_RECURRENCE, Tolerance, assert_within

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
LARGE = GdnShape(16, 48, 128, 128)
SHAPES = [LARGE, GdnShape(16, 32, 128, 128), GdnShape(2, 2, 16, 16), GdnShape(1, 3, 64, 32)]
# q, k and v are rounded to bf16 behind a convolution whose fp32 sum may fall on the other side of a tie.
ROUNDED = Tolerance(2 * BF16_ROUNDED.relative, 2e-3)
EXACT = Tolerance(BF16_ROUNDED.relative, 1e-4)
STATE = Tolerance(FP32_RECURRENCE.relative, 2e-5)
CHUNK_STATE = Tolerance(FP32_RECURRENCE.relative, 6e-5)
# Equal keys: every row's u is a difference of values near 30, twelve times the largest element of the state; rounding
# these to 17 bits leaves an error of 2^-17 of them in each. 64 such rows add up along one key (0.15 an element): about
# 1e-4 of the largest element on average, and 800,000 elements go up to four or five times that.
CHUNK_STRONG_STATE = Tolerance(FP32_RECURRENCE.relative, 5e-4)


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def problem(tokens: int, *, shape: GdnShape = LARGE, seed: int = 0, exact: bool = False, strong: bool = False) -> Layer:
    hidden = 5120 if shape == LARGE else 96
    return layer(shape, tokens, hidden=hidden, seed=seed, exact=exact, strong=strong, device=DEVICE)


def distance(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_thousand_tokens_of_rounds(shape: GdnShape, exact: bool) -> None:
    p = problem(1030, shape=shape, exact=exact)
    expected = p.expected([1024])
    slots = p.slots(2)
    widths = [1] * 70 + [16] * 50 + [7] * 20 + [5] * 4
    out = p.decode(slots, 1, 0, widths)
    assert_within(EXACT if exact else ROUNDED, out, expected.out)
    print(f"rounds, exact {exact}: state {distance(slots.s[1], expected.states[1024]):.1e}")
    if exact:
        assert_within(STATE, slots.s[1], expected.states[1024])
    assert torch.isnan(slots.s[0]).all()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 63, 64, 1000, 2048])
def test_a_chunk(shape: GdnShape, tokens: int, exact: bool) -> None:
    p = problem(tokens + 20, shape=shape, exact=exact)
    boundary = tokens // 64 * 64
    expected = p.expected([boundary])
    slots = p.slots(2)
    out = p.chunk(slots, 1, 0, tokens)
    assert_within(EXACT if exact else ROUNDED, out, expected.out[:tokens])
    print(f"chunk of {tokens}, exact {exact}: state {distance(slots.s[1], expected.states[boundary]):.1e}")
    if exact:
        assert_within(CHUNK_STATE, slots.s[1], expected.states[boundary])
    out = p.decode(slots, 1, tokens, [1, 3, 16])
    assert_within(EXACT if exact else ROUNDED, out, expected.out[tokens:])
    assert torch.isnan(slots.s[0]).all()


def test_equal_keys_with_full_strength() -> None:
    p = problem(1024, exact=True, strong=True)
    expected = p.expected()
    slots = p.slots(1)
    assert_within(EXACT, p.chunk(slots, 0, 0, 1024), expected.out)
    assert_within(CHUNK_STRONG_STATE, slots.s[0], expected.states[1024])
    slots = p.slots(1)
    assert_within(EXACT, p.decode(slots, 0, 0, [16] * 64), expected.out)


def same(ours: GdnSlots, theirs: GdnSlots, end: int) -> bool:
    pairs = [(ours.s, theirs.s)]
    if rows := end % 64:
        places = torch.arange(end - rows, end)
        pairs += [(x.open_k[:, :, places % 96], y.open_k[:, :, places % 96]) for x, y in [(ours, theirs)]]
        pairs += [(x.open_u[:, :, places % 80], y.open_u[:, :, places % 80]) for x, y in [(ours, theirs)]]
        pairs += [(x.open_g[..., places % 80], y.open_g[..., places % 80]) for x, y in [(ours, theirs)]]
    last = torch.arange(end - 3, end) % RING
    pairs.append((ours.ring[:, last], theirs.ring[:, last]))
    if end >= 64:
        pairs.append((ours.ring[:, RING:], theirs.ring[:, RING:]))
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("tokens", [8192, 2085])
def test_chunks_of_any_size_give_the_same_bits(tokens: int) -> None:
    p = problem(tokens)
    slots = p.slots(1)
    whole = p.chunk(slots, 0, 0, tokens)
    for size in (64, 256, 2048):
        other = p.slots(1)
        cuts = [*range(0, tokens, size), tokens]
        parts = [p.chunk(other, 0, begin, end) for begin, end in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)
        assert same(other, slots, tokens)
        assert torch.equal(other.ring[0, RING:], p.entry_columns(tokens // 64 * 64))
    assert torch.equal(p.chunk(p.slots(1), 0, 0, tokens), whole), "two runs differ"


@pytest.mark.parametrize(
    ("begin", "widths", "end"),
    [
        (70, [], 164),
        (62, [], 67),
        (66, [], 70),
        (20, [2], 40),
        (66, [1, 3], 193),
        (127, [], 4200),
        (100, [1] * 20, 1000),
    ],
    ids=str,
)
def test_a_chunk_goes_on_inside_a_block(begin: int, widths: list[int], end: int) -> None:
    p = problem(end + 3, exact=True)
    boundary = end // 64 * 64
    expected = p.expected([boundary])
    results = []
    for _ in range(2):
        slots, at = p.slots(2), begin
        p.chunk(slots, 1, 0, begin)
        if widths:
            p.decode(slots, 1, begin, widths)
            at += sum(widths)
        out = p.chunk(slots, 1, at, end)
        results.append((out, slots.s[1].clone()))
        assert_within(EXACT, out, expected.out[at:end])
        if boundary:
            assert_within(CHUNK_STATE, slots.s[1], expected.states[boundary])
            assert torch.equal(slots.ring[1, RING:], p.entry_columns(boundary))
        assert_within(EXACT, p.decode(slots, 1, end, [2, 1]), expected.out[end:])
        assert torch.isnan(slots.s[0]).all()
    for one, other in zip(*results, strict=True):
        assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)), "two runs differ"


@pytest.mark.parametrize("prompt", [0, 100])
def test_a_column_does_not_see_how_it_was_dealt(prompt: int) -> None:
    p = problem(prompt + 200)
    results = []
    for widths in ([1] * 200, [16] * 12 + [8], [3] * 66 + [2], [16, 1] * 11 + [13]):
        slots = p.slots(1)
        if prompt:
            p.chunk(slots, 0, 0, prompt)
        results.append(p.decode(slots, 0, prompt, widths))
        assert torch.equal(results[-1], results[0])


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_lanes_run_together_as_alone(columns: int) -> None:
    p = problem(400)
    positions = [130, 63, 0, 127, 320, 64, 1, 255]
    alone, together = p.slots(9), p.slots(9)
    for slots in (alone, together):
        for lane, position in enumerate(positions):
            if position:
                p.chunk(slots, lane, 0, position)
    blocks = [position // 64 for position in positions]
    order = [7, 2, 0, 3, 1, 6, 5, 4]
    single = [p.round(alone, [lane], [positions[lane]], [blocks[lane]], columns) for lane in order]
    arguments = ([positions[lane] for lane in order], [blocks[lane] for lane in order], columns)
    assert torch.equal(p.round(together, order, *arguments, capacity=32), torch.cat(single))
    for lane in range(8):
        ends = positions[lane] + columns
        for ours, theirs in ((together.s, alone.s), (together.open_u, alone.open_u), (together.ring, alone.ring)):
            assert torch.equal(torch.nan_to_num(ours[lane]), torch.nan_to_num(theirs[lane])), (lane, ends)


def test_rejected_columns_leave_nothing_behind() -> None:
    p, wrong = problem(700), problem(700, seed=9)
    expected = p.decode(p.slots(1), 0, 0, [1] * 500)
    slots = p.slots(1)
    position, block = 0, 0
    # Over block ends with every distance behind them.
    while position < 480:
        accepted = 1 + position * 7 % 16
        mixed = problem(700)
        for part in ("first", "second", "n"):
            getattr(mixed, part)[position + accepted :] = getattr(wrong, part)[position + accepted :]
        out = mixed.round(slots, [0], [position], [block], 16)[:accepted]
        assert torch.equal(out, expected[position : position + accepted]), position
        block = position // 64
        position += accepted
