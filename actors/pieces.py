"""Sessions on their way between device and files, a piece at a time: whoever streams meanwhile waits for a piece."""

from __future__ import annotations

import mmap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from ninfer.actors.engine import EngineLike
from ninfer.config import MIB
from ninfer.scheduler.commands import WriteDisk, WriteSession

# A piece takes a few milliseconds, and a step of the streams goes between two of them.
PIECE_BYTES = 32 * MIB
# Copying holds the interpreter's lock; the event loop gets it back behind every so many bytes.
COPY_BYTES = 4 * MIB

# Runs work on the device thread, behind the steps that it was given before.
OnDevice = Callable[[Callable[[], None]], Awaitable[None]]


async def read_session(
    engine: EngineLike, pages: Sequence[int], places: Sequence[int], on_device: OnDevice
) -> memoryview:
    """[n page_bytes] copies of device pages, and behind them of pages in host memory."""
    size = engine.page_bytes
    copies = memoryview(mmap.mmap(-1, max(1, (len(pages) + len(places)) * size)))
    begin = 0
    for read, chosen in ((engine.read_pages, pages), (engine.read_places, places)):
        for piece in _pieces(len(chosen), size):
            end = begin + (piece.stop - piece.start) * size
            await on_device(partial(_copy, read, chosen[piece], copies[begin:end]))
            begin = end
    return copies[:begin]


def _copy(read: Callable[[Sequence[int]], memoryview], numbers: Sequence[int], to: memoryview) -> None:
    data = read(numbers)
    for at in range(0, len(data), COPY_BYTES):
        to[at : at + COPY_BYTES] = data[at : at + COPY_BYTES]


async def write_session(
    engine: EngineLike,
    order: WriteSession | WriteDisk,
    pages: memoryview,
    images: Sequence[tuple[int, memoryview]],
    on_device: OnDevice,
) -> None:
    """Fill the pages of an order from those of a file [n page_bytes], and images, behind its transfers."""
    await on_device(partial(engine.transfer, order.before))
    await write_pages(engine, order.pages, pages[order.skipped * engine.page_bytes :], on_device)
    for image, state in images:
        await on_device(partial(engine.write_image, image, state))


async def write_pages(engine: EngineLike, pages: Sequence[int], data: memoryview, on_device: OnDevice) -> None:
    """Fill device pages from the first of [n page_bytes]."""
    size = engine.page_bytes
    for piece in _pieces(len(pages), size):
        await on_device(partial(engine.write_pages, pages[piece], data[piece.start * size : piece.stop * size]))


def _pieces(count: int, size: int) -> Iterator[slice]:
    step = max(1, PIECE_BYTES // max(1, size))
    for begin in range(0, count, step):
        yield slice(begin, min(count, begin + step))
