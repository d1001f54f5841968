"""The page pool: promises, taking, keeping, and that no page is lost or owned twice."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler.pages import PagePool
from ninfer.step import pages_for


def test_pages_are_promised_taken_lowest_first_and_returned() -> None:
    pool = PagePool(6)
    pool.reserve(1, 3)
    assert pool.available == 3
    assert pool.take(1, 2) == (0, 1)
    assert pool.take(1, 0) == ()
    pool.reserve(2, 3)
    assert pool.available == 0
    assert pool.take(2, 1) == (2,)
    assert pool.take(1, 1) == (3,)
    assert pool.owners() == (1, 2)
    pool.release(1)
    assert pool.available == 3
    assert pool.take(2, 2) == (0, 1)
    pool.audit()


def test_pages_of_the_tree_outlive_their_owner_until_they_are_freed() -> None:
    pool = PagePool(4)
    pool.reserve(1, 3)
    assert pool.take(1, 2) == (0, 1)
    pool.keep(1, 0)
    pool.audit()
    pool.release(1)
    assert pool.kept == {0}
    assert pool.available == 3
    pool.let_go([0])
    assert pool.available == 4
    pool.audit()


def test_what_an_owner_waives_is_anybody_s() -> None:
    pool = PagePool(4)
    pool.reserve(1, 4)
    pool.waive(1, 3)
    assert pool.available == 3
    with pytest.raises(IllegalTransition, match="waives 2 pages of 1"):
        pool.waive(1, 2)
    assert pool.take(1, 1) == (0,)
    pool.audit()


def test_nobody_gets_what_was_promised_to_another() -> None:
    pool = PagePool(4)
    pool.reserve(1, 3)
    with pytest.raises(IllegalTransition, match="cannot reserve 2"):
        pool.reserve(2, 2)
    with pytest.raises(IllegalTransition, match="cannot reserve 1"):
        pool.reserve(1, 1)
    with pytest.raises(IllegalTransition, match="entitled to 3"):
        pool.take(1, 4)
    pool.audit()


def test_an_audit_finds_lost_and_doubled_pages() -> None:
    pool = PagePool(2)
    pool.reserve(1, 1)
    pool.take(1, 1)
    pool._free.clear()
    with pytest.raises(IllegalTransition, match="lost"):
        pool.audit()
    pool._free.append(1)
    pool._kept.add(1)
    with pytest.raises(IllegalTransition, match="owned twice"):
        pool.audit()
    pool._kept.clear()
    pool._promised[1] = 5
    with pytest.raises(IllegalTransition, match="the promises of all owners"):
        pool.audit()


def test_pages_that_can_be_free_in_time_are_promised_and_taken_when_they_are() -> None:
    pool = PagePool(3)
    pool.reserve(1, 2)
    for page in pool.take(1, 2):
        pool.keep(1, page)
    pool.release(1)
    with pytest.raises(IllegalTransition, match="2 may be promised"):
        pool.reserve(2, 3, spare=1)
    pool.reserve(2, 3, spare=2)
    assert (pool.free, pool.promised, pool.promised_to(2), pool.available) == (1, 3, 3, 0)
    with pytest.raises(IllegalTransition, match="takes 2 pages, and 1 are free"):
        pool.take(2, 2)
    pool.let_go([1])
    assert pool.take(2, 2) == (1, 2)
    pool.audit()


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (262_144, 4096)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_only_pages_of_the_tree_are_freed_together() -> None:
    pool = PagePool(4)
    pool.reserve(1, 3)
    for page in pool.take(1, 3)[:2]:
        pool.keep(1, page)
    with pytest.raises(IllegalTransition, match="not the tree's"):
        pool.let_go([0, 2])
    assert pool.kept == {0, 1}
    pool.let_go([1, 0])
    assert (pool.kept, pool.available) == (frozenset(), 3)
    pool.audit()
