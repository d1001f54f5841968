"""States and pages on their way between lanes, the page pool and host memory (kv-and-state spec, 9.1 and 13.2).

An image is the entry columns of all layers (oldest first, channel fastest), then their states [HV, DV, DK]; a stored
page is its planes behind each other, in the pool's order. On a GPU what moves is gathered into one piece of scratch
first, so that few copies go over the bus; all of it happens on the engine's stream, in order, and nobody waits but who
reads or writes host memory by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ninfer.config import MIB, EngineSettings
from ninfer.engine.host_memory import HostMemory
from ninfer.engine.lanes import Lane
from ninfer.engine.stopwatch import Stopwatch
from ninfer.model.carried import Carried
from ninfer.step import PAGE_TOKENS, CaptureState, LoadPages, ParkPages, PrefillChunk, RestoreState, Transfer

# Host memory through which pages pass that go to or come from a file; larger pieces would not be faster.
_WINDOW_BYTES = 16 * MIB


class Transfers:
    """Carries out transfers for one engine.

    carried   views of the engine's cache
    scratch   flat, on the device, free between steps, and large enough for an image and for a page; None if the cache
              lies in host memory itself
    """

    def __init__(self, carried: Carried, settings: EngineSettings, scratch: Tensor | None) -> None:
        self._carried = carried
        self._device = torch.device(settings.device)
        self.image_bytes, self.page_bytes = carried.state_bytes, carried.page_bytes
        images, places = settings.host_images, settings.host_pages
        self._images = HostMemory(images, self.image_bytes, self._device, f"{images} states of sequences")
        self._places = HostMemory(places, self.page_bytes, self._device, f"{places} pages of the attention cache")
        window = max(1, _WINDOW_BYTES // max(1, self.page_bytes))
        self._window = HostMemory(window, self.page_bytes, self._device, "reading and writing pages")
        self._scratch = None if scratch is None else scratch.view(torch.uint8)
        spare = self._window.data.view(-1) if self._scratch is None else self._scratch
        pages = spare.numel() // self.page_bytes if self.page_bytes else 1
        # [n, words] int64: pages that are gathered.
        self._rows = spare[: pages * self.page_bytes].view(torch.int64).view(pages, self.page_bytes // 8)
        self.parking, self.loading = Stopwatch(self._device), Stopwatch(self._device)
        # Block at whose start each image was captured; None if it came from elsewhere.
        self._blocks: dict[int, int | None] = {}

    def carry_out(self, transfers: Sequence[Transfer], lanes: list[Lane], chunk: PrefillChunk | None = None) -> None:
        """Queue transfers, in order; `chunk` is the one that they belong to. A lane that gets a state is left without a
        request.
        """
        for transfer in transfers:
            match transfer:
                case CaptureState(lane, image):
                    self.capture(lane, image, lanes[lane].state_block)
                case RestoreState(image, lane):
                    self._restore(image, lane)
                    lanes[lane] = Lane(state_block=self._block_of(image, lane, chunk))
                case ParkPages(pages, places):
                    with self.parking.running():
                        self._park(pages, places)
                case LoadPages(places, pages):
                    with self.loading.running():
                        self._load(places, pages)

    def _block_of(self, image: int, lane: int, chunk: PrefillChunk | None) -> int:
        block = self._blocks[image]
        if block is None:
            assert chunk is not None, f"image {image} is of a block that nothing says"
            assert lane == chunk.lane, f"image {image} goes to lane {lane}, and the chunk's is {chunk.lane}"
            block = self._blocks[image] = chunk.begin // PAGE_TOKENS
        return block

    # --- states ---------------------------------------------------------------------------------------------------

    def capture(self, lane: int, image: int, block: int) -> None:
        """Queue the storing of a lane's state, which is that of `block`."""
        assert block > 0, f"lane {lane} has no state to capture"
        self._blocks[image] = block
        target = self._images.data[image]
        gathered = target if self._scratch is None else self._scratch[: self.image_bytes]
        for part, stacked in self._parts(gathered, lane):
            part.copy_(stacked)
        if gathered is not target:
            target.copy_(gathered, non_blocking=True)

    def _restore(self, image: int, lane: int) -> None:
        assert image in self._blocks, f"image {image} was never stored"
        source = self._images.data[image]
        scattered = source
        if self._scratch is not None:
            scattered = self._scratch[: self.image_bytes]
            scattered.copy_(source, non_blocking=True)
        for part, stacked in self._parts(scattered, lane):
            stacked.copy_(part)

    def _parts(self, image: Tensor, lane: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts of an image with what of the lane they hold, in equal shapes."""
        begin = 0
        for stacked in (self._carried.entry[:, lane], self._carried.states[:, lane]):
            end = begin + stacked.numel() * stacked.itemsize
            yield image[begin:end].view(stacked.dtype).view(stacked.shape), stacked
            begin = end

    def read_image(self, image: int) -> memoryview:
        """[image_bytes], not a copy."""
        assert image in self._blocks, f"image {image} was never stored"
        self._wait()
        return self._images.data[image].numpy().data

    def write_image(self, image: int, data: memoryview) -> None:
        """Fill an image; its block is that of the chunk that restores it."""
        self._wait()
        self._images.data[image].numpy()[:] = np.frombuffer(data, np.uint8)
        self._blocks[image] = None

    # --- pages ----------------------------------------------------------------------------------------------------

    def _park(self, pages: Sequence[int], places: Sequence[int]) -> None:
        assert len(pages) == len(places)
        for piece in _pieces(len(pages), self._rows.shape[0]):
            rows = _bytes(self._gathered(pages[piece]))
            for first, place, count in _runs(places[piece]):
                self._places.data[place : place + count].copy_(rows[first : first + count], non_blocking=True)

    def _load(self, places: Sequence[int], pages: Sequence[int]) -> None:
        assert len(pages) == len(places)
        for piece in _pieces(len(pages), self._rows.shape[0]):
            rows = _bytes(self._rows)
            for first, place, count in _runs(places[piece]):
                rows[first : first + count].copy_(self._places.data[place : place + count], non_blocking=True)
            self._scatter(pages[piece])

    def _gathered(self, pages: Sequence[int]) -> Tensor:
        """[n, words] in scratch."""
        index, rows, at = self._index(pages), self._rows[: len(pages)], 0
        for plane in self._carried.planes:
            end = at + plane.shape[1]
            torch.index_select(plane, 0, index, out=rows[:, at:end])
            at = end
        return rows

    def _scatter(self, pages: Sequence[int]) -> None:
        """The first rows of scratch to the pool."""
        index, rows, at = self._index(pages), self._rows[: len(pages)], 0
        for plane in self._carried.planes:
            end = at + plane.shape[1]
            plane.index_copy_(0, index, rows[:, at:end])
            at = end

    def _index(self, pages: Sequence[int]) -> Tensor:
        index = torch.tensor(pages, dtype=torch.int64)
        return index.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else index

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        """[n page_bytes] copies of pages."""
        copies = np.empty((len(pages), self.page_bytes), np.uint8)
        window = self._window.data
        for piece in _pieces(len(pages), min(window.shape[0], self._rows.shape[0])):
            rows = _bytes(self._gathered(pages[piece]))
            window[: rows.shape[0]].copy_(rows, non_blocking=True)
            self._wait()
            copies[piece] = window[: rows.shape[0]].numpy()
        return copies.reshape(-1).data

    def write_pages(self, pages: Sequence[int], data: memoryview) -> None:
        """Fill pages from [n page_bytes]."""
        copies = np.frombuffer(data, np.uint8).reshape(len(pages), self.page_bytes)
        window = self._window.data
        for piece in _pieces(len(pages), min(window.shape[0], self._rows.shape[0])):
            chosen = pages[piece]
            self._wait()  # for what the window held before
            window[: len(chosen)].numpy()[:] = copies[piece]
            _bytes(self._rows)[: len(chosen)].copy_(window[: len(chosen)], non_blocking=True)
            self._scatter(chosen)

    def read_places(self, places: Sequence[int]) -> memoryview:
        """[n page_bytes] copies of pages in host memory."""
        self._wait()
        return self._places.data[list(places)].view(-1).numpy().data

    # --- all ------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def warm_up(self) -> None:
        """Run everything once, with whatever lane 0 and page 0 hold; nothing is stored yet."""
        self.write_pages((0,), self.read_pages((0,)))
        self._carried.keep_entry(0)
        self._carried.go_back(0)
        if self._images.data.shape[0]:
            self.capture(0, 0, 1)
            self._restore(0, 0)
            self._blocks.clear()


def scratch_bytes(carried: Carried) -> int:
    """Least size of the scratch."""
    return max(carried.state_bytes, carried.page_bytes)


def _bytes(words: Tensor) -> Tensor:
    return words.view(torch.uint8)


def _pieces(count: int, size: int) -> Iterator[slice]:
    """Consecutive pieces of `count` things, of at most `size` each."""
    for begin in range(0, count, size):
        yield slice(begin, min(count, begin + size))


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of consecutive places, each as its index, its first place, and its length."""
    first = 0
    for at in range(1, len(places) + 1):
        if at == len(places) or places[at] != places[at - 1] + 1:
            yield first, places[first], at - first
            first = at
