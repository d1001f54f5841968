"""Pages and states through host memory: many at a time, in pieces, in any order."""

from __future__ import annotations

import random

import pytest
import torch

from ninfer.config import EngineSettings
from ninfer.engine import transfers
from ninfer.engine.host_memory import HostMemory
from ninfer.engine.lanes import Lane
from ninfer.engine.transfers import Transfers
from ninfer.errors import StartupError
from ninfer.model.carried import Carried
from ninfer.step import CaptureState, LoadPages, PageMapping, ParkPages, PrefillChunk, RestoreState, Transfer

PAGES = 40
CPU = torch.device("cpu")
SETTINGS = EngineSettings(lanes=3, host_images=2, host_pages=PAGES)


def cache() -> Carried:
    source = torch.Generator().manual_seed(0)
    planes = [torch.randint(-(1 << 60), 1 << 60, (PAGES, words), generator=source) for words in (5, 1, 8)]
    states, entry, recent = (torch.randn(4, 3, *shape, generator=source) for shape in ((2, 8, 4), (3, 6), (3, 6)))
    return Carried(states, entry.bfloat16(), recent.bfloat16(), tuple(planes))


def carry_out(moved: Transfers, lanes: list[Lane], *steps: Transfer) -> None:
    moved.carry_out(steps, lanes, PrefillChunk(0, 128, (1,), PageMapping(0, ()), None, sample=False))


@pytest.mark.parametrize("scratch_pages", [None, 1, 7, 100])
def test_pages_move_in_pieces_of_any_size(scratch_pages: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    carried = cache()
    monkeypatch.setattr(transfers, "_WINDOW_BYTES", 3 * carried.page_bytes)
    # A few bytes more than whole pages, and no whole number of words.
    scratch = None if scratch_pages is None else torch.zeros(carried.page_bytes * scratch_pages // 2 + 3).bfloat16()
    moved = Transfers(carried, SETTINGS, scratch)
    before = [plane.clone() for plane in carried.planes]
    order = random.Random(3)
    pages, places, back = (order.sample(range(PAGES), 30) for _ in range(3))
    carry_out(moved, [Lane()], ParkPages(tuple(pages), tuple(places)))
    data = bytes(moved.read_pages(pages))
    for plane in carried.planes:
        plane.fill_(-1)
    carry_out(moved, [Lane()], LoadPages(tuple(places), tuple(back)))
    untouched = sorted(set(range(PAGES)) - set(back))
    for plane, was in zip(carried.planes, before, strict=True):
        assert torch.equal(plane[back], was[pages])
        assert (plane[untouched] == -1).all()
    assert moved.read_pages(back) == data
    moved.write_pages(sorted(back), memoryview(data))
    for plane, was in zip(carried.planes, before, strict=True):
        assert torch.equal(plane[sorted(back)], was[pages])


@pytest.mark.parametrize("through_scratch", [False, True])
def test_an_image_goes_to_any_lane(through_scratch: bool) -> None:
    carried = cache()
    scratch = torch.zeros(transfers.scratch_bytes(carried) // 2 + 1, dtype=torch.bfloat16) if through_scratch else None
    moved = Transfers(carried, SETTINGS, scratch)
    states, entry, recent = carried.states.clone(), carried.entry.clone(), carried.recent.clone()
    lanes = [Lane(), Lane(frontier=200, state_block=3), Lane(frontier=70, state_block=1)]
    carry_out(moved, lanes, CaptureState(1, 0), CaptureState(2, 1), RestoreState(0, 2), RestoreState(1, 0))
    assert lanes == [Lane(state_block=1), Lane(frontier=200, state_block=3), Lane(state_block=3)]
    for now, was in ((carried.states, states), (carried.entry, entry)):
        assert torch.equal(now, was[:, [2, 1, 1]])
    assert torch.equal(carried.recent, recent)
    # Bytes from elsewhere: the block is that of the chunk.
    moved.write_image(0, moved.read_image(1))
    carry_out(moved, lanes, RestoreState(0, 0))
    assert lanes[0] == Lane(state_block=2)
    assert torch.equal(carried.states[:, 0], states[:, 2])


def test_a_warm_up_leaves_everything_as_it_is() -> None:
    carried = cache()
    carried.recent.copy_(carried.entry)
    parts = (carried.states, carried.entry, carried.recent, *carried.planes)
    before = [part.clone() for part in parts]
    moved = Transfers(carried, SETTINGS, None)
    moved.warm_up()
    assert all(torch.equal(part, was) for part, was in zip(parts, before, strict=True))
    with pytest.raises(AssertionError, match="never stored"):
        moved.read_image(0)


def test_a_model_without_recurrent_layers_has_images_of_nothing() -> None:
    nothing = torch.empty(0, 3, 0, 0)
    moved = Transfers(Carried(nothing, nothing, nothing, cache().planes), SETTINGS, None)
    assert moved.image_bytes == 0
    lanes = [Lane(), Lane(frontier=64, state_block=1), Lane()]
    carry_out(moved, lanes, CaptureState(1, 0), RestoreState(0, 2))
    assert lanes[2] == Lane(state_block=1)


def test_a_model_without_attention_has_pages_of_nothing() -> None:
    carried = cache()
    moved = Transfers(Carried(carried.states, carried.entry, carried.recent, ()), SETTINGS, None)
    carry_out(moved, [Lane()], ParkPages((1, 2), (5, 6)), LoadPages((5, 6), (3, 4)))
    assert moved.read_pages((1, 2)).nbytes == 0


def test_host_memory_that_cannot_be_had_is_refused() -> None:
    size = 1 << 56
    with pytest.raises(StartupError, match=f"cannot allocate {size << 4} bytes of host memory for 16 things: "):
        HostMemory(16, size, CPU, "16 things")
    memory = HostMemory(3, 5, CPU, "little")
    assert (memory.data.shape, memory.data.dtype) == ((3, 5), torch.uint8)
