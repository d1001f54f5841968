"""The GPU routes on a CPU: run by `test_interpreted.py` in a process with TRITON_INTERPRET=1."""

# ruff: noqa: E402 (Gluon for the interpreter comes before the kernels)

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.support import gluon, ptx

gluon.install()
from ninfer.kernels.gdn import triton_launch, variants
from ninfer.kernels.gdn.slots import RING, GdnShape
from tests.kernels.gdn.cases import SMALL, layer
from tests.support.tolerance import BF16_ROUNDED, FP32_RECURRENCE, Tolerance, assert_within

ptx.install()
ONE = GdnShape(1, 1, 16, 16)
SHARED = GdnShape(1, 2, 32, 16)
ROUND = {"run": triton_launch.gdn_round}
CHUNK = {"run": triton_launch.gdn_chunk}
# Products of a chunk keep 17 bits of their operands.
CHUNK_STATE = Tolerance(FP32_RECURRENCE.relative, 3e-5)
# Equal keys: u is the small difference of large numbers.
CHUNK_STRONG_STATE = Tolerance(FP32_RECURRENCE.relative, 1e-4)
# q, k and v are rounded to bf16 behind a convolution whose sum may fall on the other side of a tie.
CONVOLVED = Tolerance(2 * BF16_ROUNDED.relative, 2e-3)
CHUNK_ROUNDED = Tolerance(BF16_ROUNDED.relative, 5e-5)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "HIDDEN_STEP", 32)
    monkeypatch.setattr(variants, "SUB_BLOCKS", 2)


@pytest.mark.parametrize(("prompt", "widths"), [(0, [1, 3]), (126, [3, 1]), (127, [1, 1])], ids=str)
def test_rounds_match_the_oracle(prompt: int, widths: list[int]) -> None:
    """From nothing, over a block's end inside a round and between two."""
    p = layer(SHARED, prompt + sum(widths), exact=True, hidden=96)
    expected = p.expected([128])
    slots = p.slots(2)
    if prompt:
        p.chunk(slots, 1, 0, prompt)
    out = p.decode(slots, 1, prompt, widths, **ROUND)
    assert_within(BF16_ROUNDED, out, expected.out[prompt:])
    if prompt + sum(widths[:-1]) >= 128:
        assert_within(FP32_RECURRENCE, slots.s[1], expected.states[128])
    assert torch.isnan(slots.s[0]).all()


def test_a_column_does_not_see_how_it_was_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    p = layer(ONE, 67)
    results = []
    for group, widths in ((2, [5]), (2, [1] * 5), (2, [2, 3]), (4, [5])):
        monkeypatch.setattr(variants, "ROUND_GROUP", group)
        slots = p.slots(1)
        p.chunk(slots, 0, 0, 62)
        results.append(p.decode(slots, 0, 62, widths, **ROUND))
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.slow
def test_lanes_run_together_as_alone() -> None:
    p = layer(ONE, 132)
    positions = [126, 63, 0, 64]
    alone, together = p.slots(5), p.slots(5)
    for slots in (alone, together):
        for lane, position in enumerate(positions):
            if position:
                p.chunk(slots, lane, 0, position)
    blocks = [position // 64 for position in positions]
    order = [2, 0, 3, 1]
    single = [p.round(alone, [lane], [positions[lane]], [blocks[lane]], 2, **ROUND) for lane in order]
    both = p.round(together, order, [positions[i] for i in order], [blocks[i] for i in order], 2, capacity=20, **ROUND)
    assert torch.equal(both, torch.cat(single))


@pytest.mark.slow
def test_rejected_columns_leave_nothing_behind() -> None:
    """The second round begins behind the block it folds and adds rows to places of that block's first ones."""
    p, wrong = layer(ONE, 100), layer(ONE, 100, seed=9)
    plain, slots = p.slots(1), p.slots(1)
    for each in (plain, slots):
        p.chunk(each, 0, 0, 63)
    expected = p.decode(plain, 0, 63, [15, 2, 1], **ROUND)
    position, block = 63, 0
    for accepted, columns in ((15, 16), (2, 4), (1, 1)):
        mixed = layer(ONE, 100)
        for part in ("first", "second", "n"):
            getattr(mixed, part)[position + accepted :] = getattr(wrong, part)[position + accepted :]
        out = mixed.round(slots, [0], [position], [block], columns, **ROUND)[:accepted]
        assert torch.equal(out, expected[position - 63 : position - 63 + accepted])
        block = position // 64
        position += accepted
    assert torch.equal(slots.s, plain.s)


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [
        (SHARED, 130),
        pytest.param(SMALL, 1, marks=pytest.mark.slow),
        pytest.param(SMALL, 192, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_chunks_match_the_oracle(shape: GdnShape, tokens: int) -> None:
    p = layer(shape, tokens + 2, exact=True)
    boundary = tokens // 64 * 64
    expected = p.expected([boundary])
    slots = p.slots(2)
    out = p.chunk(slots, 1, 0, tokens, **CHUNK)
    assert_within(CHUNK_ROUNDED, out, expected.out[:tokens])
    assert_within(CHUNK_STATE, slots.s[1], expected.states[boundary])
    # Decode goes on from what the chunk left.
    out = p.decode(slots, 1, tokens, [2], **ROUND)
    assert_within(CHUNK_ROUNDED, out, expected.out[tokens:])


def test_chunks_of_any_size_give_the_same_bits() -> None:
    p = layer(ONE, 200)
    slots, other = p.slots(1), p.slots(1)
    whole = p.chunk(slots, 0, 0, 200, **CHUNK)
    cuts = [0, 64, 200]
    parts = [p.chunk(other, 0, begin, end, **CHUNK) for begin, end in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)
    for ours, theirs in zip((other.s, other.open_u, other.open_g), (slots.s, slots.open_u, slots.open_g), strict=True):
        assert torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs))
    last = [position % RING for position in (197, 198, 199)]
    assert torch.equal(other.ring[:, last], slots.ring[:, last])
    for each in (other, slots):
        assert torch.equal(each.ring[0, RING:], p.entry_columns(192))
    # Inside the block nothing moves, whatever the ring holds.
    p.chunk(other, 0, 192, 200, **CHUNK)
    assert torch.equal(other.ring[0, RING:], p.entry_columns(192))


@pytest.mark.parametrize(
    ("begin", "widths", "end"),
    [
        (70, [], 164),  # rows at the end take the places of those that were there
        (20, [2], 40),  # the block stays open, and is the first
        pytest.param(66, [], 70, marks=pytest.mark.slow),
        pytest.param(20, [], 80, marks=pytest.mark.slow),
        pytest.param(66, [1, 3], 193, marks=pytest.mark.slow),
        pytest.param(127, [], 300, marks=pytest.mark.slow),  # in two parts
    ],
    ids=str,
)
def test_a_chunk_goes_on_inside_a_block(begin: int, widths: list[int], end: int) -> None:
    p = layer(SHARED, end + 2, exact=True)
    boundary = end // 64 * 64
    expected = p.expected([boundary])
    slots = p.slots(2)
    p.chunk(slots, 1, 0, begin, **CHUNK)
    if widths:
        p.decode(slots, 1, begin, widths, **ROUND)
        begin += sum(widths)
    out = p.chunk(slots, 1, begin, end, **CHUNK)
    assert_within(CHUNK_ROUNDED, out, expected.out[begin:end])
    if boundary:
        assert_within(CHUNK_STATE, slots.s[1], expected.states[boundary])
        assert torch.equal(slots.ring[1, RING:], p.entry_columns(boundary))
    last = [position % RING for position in range(end - 3, end)]
    columns = torch.cat([p.first, p.second[:, : SHARED.value_heads * SHARED.value_width]], dim=-1)
    assert torch.equal(slots.ring[1, last], columns[end - 3 : end])
    out = p.decode(slots, 1, end, [2], **ROUND)
    assert_within(CHUNK_ROUNDED, out, expected.out[end:])
    assert torch.isnan(slots.s[0]).all()


@pytest.mark.parametrize(
    ("begin", "end"),
    [(62, 67), pytest.param(63, 130, marks=pytest.mark.slow), pytest.param(66, 70, marks=pytest.mark.slow)],
)
def test_columns_in_front_of_a_chunk_are_in_the_ring(begin: int, end: int) -> None:
    """Those in front of its second block, too."""
    p = layer(ONE, end)
    ours, theirs = p.slots(1), p.slots(1)
    for slots in (ours, theirs):
        p.chunk(slots, 0, 0, begin)
    out, expected = p.chunk(ours, 0, begin, end, **CHUNK), p.chunk(theirs, 0, begin, end)
    assert_within(CONVOLVED, out, expected.double())
    assert torch.equal(torch.nan_to_num(ours.ring), torch.nan_to_num(theirs.ring))
    assert torch.equal(ours.ring[0, RING:], p.entry_columns(end // 64 * 64))


def test_equal_keys_with_full_strength() -> None:
    p = layer(ONE, 192, exact=True, strong=True)
    expected = p.expected()
    slots = p.slots(1)
    assert_within(CHUNK_ROUNDED, p.chunk(slots, 0, 0, 192, **CHUNK), expected.out)
    assert_within(CHUNK_STRONG_STATE, slots.s[0], expected.states[192])
