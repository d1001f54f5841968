"""The page pool: promises, mapping, and that no page is lost or owned twice."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler.pages import PagePool
from ninfer.step import PageMapping, pages_for


def test_pages_are_promised_mapped_lowest_first_and_returned() -> None:
    pool = PagePool(6)
    pool.reserve(1, 3)
    assert pool.available == 3
    assert pool.map(1, 2) == PageMapping(0, (0, 1))
    assert pool.map(1, 2) == PageMapping(2, ())
    pool.reserve(2, 3)
    assert pool.available == 0
    assert pool.map(2, 1) == PageMapping(0, (2,))
    assert pool.map(1, 3) == PageMapping(2, (3,))
    assert pool.owners() == (1, 2)
    pool.release(1)
    assert pool.available == 3
    assert pool.map(2, 3) == PageMapping(1, (0, 1))
    pool.audit()


def test_nobody_gets_what_was_promised_to_another() -> None:
    pool = PagePool(4)
    pool.reserve(1, 3)
    with pytest.raises(IllegalTransition, match="cannot reserve 2"):
        pool.reserve(2, 2)
    with pytest.raises(IllegalTransition, match="cannot reserve 1"):
        pool.reserve(1, 1)
    with pytest.raises(IllegalTransition, match="entitled to 3"):
        pool.map(1, 4)
    pool.audit()


def test_an_audit_finds_lost_and_doubled_pages() -> None:
    pool = PagePool(2)
    pool.reserve(1, 1)
    pool.map(1, 1)
    pool._free.clear()
    with pytest.raises(IllegalTransition, match="lost"):
        pool.audit()
    pool._free.append(1)
    pool._promised[1] = 5
    with pytest.raises(IllegalTransition, match="more pages are promised"):
        pool.audit()


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (262_144, 4096)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages
