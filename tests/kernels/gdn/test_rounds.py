"""Rounds and chunks on the CPU: against float64, and bit for bit however the tokens are dealt."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ninfer.kernels.gdn.slots import RING, GdnShape
from tests.kernels.gdn.cases import SMALL, layer
from tests.support.tolerance import BF16_ROUNDED, FP32_RECURRENCE, Tolerance, assert_within

ROUNDED = Tolerance(BF16_ROUNDED.relative, FP32_RECURRENCE.scaled)
SHAPES = [SMALL, GdnShape(2, 6, 32, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("prompt", [0, 1, 2, 64, 100, 128])
def test_a_prompt_and_its_continuation(shape: GdnShape, prompt: int) -> None:
    tokens = prompt + 70
    p = layer(shape, tokens, exact=True)
    boundary = tokens // 64 * 64
    expected = p.expected([boundary])
    slots = p.slots(2)
    parts = [p.chunk(slots, 1, 0, prompt)] if prompt else []
    parts.append(p.decode(slots, 1, prompt, [1] * 70))
    assert_within(ROUNDED, torch.cat(parts), expected.out)
    assert_within(FP32_RECURRENCE, slots.s[1], expected.states[boundary])
    assert torch.isnan(slots.s[0]).all(), "another lane was touched"


def test_chunks_and_rounds_of_any_size_give_the_same_bits() -> None:
    p = layer(SHAPES[1], 210)
    slots = p.slots(1)
    whole = p.chunk(slots, 0, 0, 210)
    for cuts in ([0, 64, 210], [0, 128, 192, 210]):
        other = p.slots(1)
        parts = [p.chunk(other, 0, begin, end) for begin, end in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(other.s, slots.s)
        assert torch.equal(other.ring[0, RING:], p.entry_columns(192))
    for widths in ([1] * 82, [16] * 5 + [2], [7] * 11 + [5]):
        other = p.slots(1)
        p.chunk(other, 0, 0, 128)
        assert torch.equal(p.decode(other, 0, 128, widths), whole[128:])


@pytest.mark.parametrize(
    "cuts", [[0, 1, 2, 63, 64, 65, 210], [0, 62, 67, 128, 130, 210], [0, 70, 164, 165, 210], [0, 191, 210]], ids=str
)
def test_a_chunk_goes_on_inside_a_block(cuts: list[int]) -> None:
    p = layer(SHAPES[1], 213)
    slots, other = p.slots(1), p.slots(1)
    whole = p.chunk(slots, 0, 0, 210)
    parts = [p.chunk(other, 0, begin, end) for begin, end in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(other.s, slots.s)
    assert torch.equal(other.ring[0, RING:], p.entry_columns(192))
    assert torch.equal(p.decode(other, 0, 210, [2, 1]), p.decode(slots, 0, 210, [2, 1]))


@pytest.mark.parametrize(("prompt", "widths"), [(0, [1] * 5), (60, [3, 1]), (100, [1] * 20), (63, [1, 5])], ids=str)
def test_a_chunk_goes_on_behind_rounds(prompt: int, widths: list[int]) -> None:
    p = layer(SHAPES[1], 210)
    slots, other = p.slots(1), p.slots(1)
    whole = p.chunk(slots, 0, 0, 210)
    parts = [p.chunk(other, 0, 0, prompt)] if prompt else []
    parts.append(p.decode(other, 0, prompt, widths))
    begin = prompt + sum(widths)
    if begin // 64 == (begin - widths[-1]) // 64:  # the state is that of the block
        parts.append(p.chunk(other, 0, begin, 210))
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(other.s, slots.s)
        assert torch.equal(other.ring[0, RING:], p.entry_columns(192))


@pytest.mark.parametrize(
    ("begin", "end", "block"),
    [(64, 65, 1), (64, 127, 1), (64, 128, 2), (64, 200, 3), (62, 64, 1), (62, 67, 1), (127, 130, 2), (126, 191, 2)],
    ids=str,
)
def test_a_chunk_keeps_the_columns_in_front_of_its_last_block(begin: int, end: int, block: int) -> None:
    p = layer(SMALL, end)
    slots = p.slots(2)
    p.chunk(slots, 1, 0, begin)
    p.chunk(slots, 1, begin, end)
    assert torch.equal(slots.ring[1, RING:], p.entry_columns(block * 64))
    assert torch.isnan(slots.ring[0]).all()


def test_rejected_columns_leave_nothing_behind() -> None:
    p = layer(SHAPES[1], 200)
    plain, slots = p.slots(1), p.slots(1)
    expected = p.decode(plain, 0, 0, [1] * 150)
    wrong = layer(SHAPES[1], 200, seed=9)
    position, block, out = 0, 0, []
    for accepted in [3, 16, 1, 7] * 6:
        if position >= 130:
            break
        # Columns after the accepted ones belong to another text.
        mixed = layer(SHAPES[1], 200)
        for part in ("first", "second", "n"):
            tensor = getattr(mixed, part)
            tensor[position + accepted :] = getattr(wrong, part)[position + accepted :]
        out.append(mixed.round(slots, [0], [position], [block], 16)[:accepted])
        block = position // 64
        position += accepted
    got = torch.cat(out)
    assert torch.equal(got, expected[: got.shape[0]])


def test_lanes_run_together_as_alone() -> None:
    p = layer(SHAPES[1], 180)
    positions = [130, 63, 0, 127]
    alone, together = p.slots(4), p.slots(4)
    for slots in (alone, together):
        for lane, position in enumerate(positions):
            if position:
                p.chunk(slots, lane, 0, position)
    blocks = [position // 64 for position in positions]
    order = [2, 0, 3, 1]
    single = [p.round(alone, [lane], [positions[lane]], [blocks[lane]], 4) for lane in order]
    both = p.round(together, order, [positions[i] for i in order], [blocks[i] for i in order], 4)
    assert torch.equal(both, torch.cat(single))


def test_equal_keys_with_full_strength() -> None:
    p = layer(SMALL, 256, exact=True, strong=True)
    expected = p.expected()
    slots = p.slots(1)
    assert_within(ROUNDED, p.chunk(slots, 0, 0, 256), expected.out)
    assert_within(FP32_RECURRENCE, slots.s[0], expected.states[256])
