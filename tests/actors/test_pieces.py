"""Sessions that are read and written a piece at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ninfer.actors import pieces
from ninfer.actors.pieces import read_session, write_pages
from tests.support.engines import FakeEngine
from tests.support.system import echo

pytestmark = pytest.mark.asyncio


class Device:
    """Counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def run(self, work: Callable[[], None]) -> None:
        self.asked += 1
        work()


@pytest.mark.parametrize(("most", "copied", "asked"), [(0, 1, 7), (3, 64, 3), (100, 1000, 2)])
async def test_pages_pass_in_pieces_of_at_most_so_many_and_in_order(
    most: int, copied: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(echo)
    size = engine.page_bytes
    monkeypatch.setattr(pieces, "PIECE_BYTES", most * size + 1)
    monkeypatch.setattr(pieces, "COPY_BYTES", copied)
    contents = {page: bytes([page]) * size for page in (9, 4, 7, 1, 30, 2)}
    engine._pages.update({page: contents[page] for page in (9, 4, 7, 1, 2)})
    engine._places.update({5: contents[2], 30: contents[30]})
    device = Device()
    read = await read_session(engine, (9, 4, 7, 1, 2), (30, 5), device.run)
    assert bytes(read) == b"".join(contents[page] for page in (9, 4, 7, 1, 2, 30, 2))
    assert device.asked == asked
    other = FakeEngine(echo)
    await write_pages(other, (3, 8, 1), read[size : 4 * size], device.run)
    assert {page: other._pages[page] for page in (3, 8, 1)} == {3: contents[4], 8: contents[7], 1: contents[1]}


async def test_nothing_is_nothing() -> None:
    device = Device()
    assert len(await read_session(FakeEngine(echo), (), (), device.run)) == 0
    await write_pages(FakeEngine(echo), (), memoryview(b""), device.run)
    assert device.asked == 0
