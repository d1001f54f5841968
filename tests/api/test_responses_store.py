"""The store of responses: its bounds, what histories share, what references find."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.api.responses_items import Item, item_of, new_id
from ninfer.api.responses_store import Record, ResponseNotFound, ResponseStore, StoreTooSmall

Items = tuple[Item, ...]
NOTHING: tuple[Items, Items, Items] = ((), (), ())


def item(text: str = "x") -> Item:
    return item_of({"id": new_id("message"), "type": "message", "role": "user", "content": text})


def record(name: str, body: bytes = b"", items: tuple[Items, Items, Items] = NOTHING) -> Record:
    return Record(name, body, *items, preserve=None)


def test_the_longest_unused_leaves_first() -> None:
    store = ResponseStore(2, 1 << 20)
    store.put(record("a"))
    store.put(record("b"))
    store.get("a")
    store.put(record("c"))
    assert len(store) == 2
    assert store.get("a").id == "a"
    with pytest.raises(ResponseNotFound):
        store.get("b")


def test_bytes_are_bounded() -> None:
    store = ResponseStore(100, 10_000)
    for name in "abcd":
        store.put(record(name, b"x" * 3000))
    assert len(store) == 2
    assert store.bytes <= 10_000


def test_a_record_that_does_not_fit_alone_is_refused_and_leaves_nothing() -> None:
    store = ResponseStore(100, 10_000)
    kept = item()
    with pytest.raises(StoreTooSmall) as caught:
        store.put(record("a", b"x" * 9_999, ((), (), (kept,))))
    assert (caught.value.http_status, caught.value.code) == (507, "response_store_capacity_exceeded")
    assert (len(store), store.bytes, store.find_item(kept.id)) == (0, 0, None)


def test_shared_items_count_once_and_outlive_a_parent() -> None:
    store = ResponseStore(10, 1 << 20)
    question, answer, more = item("q" * 5000), item("a" * 5000), item("m")
    store.put(record("parent", items=((question,), (question,), (answer,))))
    before = store.bytes
    store.put(record("child", items=((more,), (question, answer, more), ())))
    assert store.bytes - before < 2000
    assert store.find_item(answer.id) is answer
    assert store.find_item(question.id) is None  # only answers may be referred to
    store.delete("parent")
    assert store.find_item(answer.id) is None
    assert store.get("child").context[1] is answer
    assert store.bytes > 10_000
    store.delete("child")
    assert store.bytes == 0
    with pytest.raises(ResponseNotFound):
        store.delete("child")


@given(st.lists(st.tuples(st.sampled_from("pdg"), st.integers(0, 7), st.integers(0, 3000))))
def test_nothing_is_lost_or_counted_twice(steps: list[tuple[str, int, int]]) -> None:
    store = ResponseStore(4, 9_000)
    items = [item("x" * 100 * n) for n in range(8)]
    kept: dict[str, Record] = {}
    for n, (what, which, size) in enumerate(steps):
        names = sorted(kept)
        name = names[which % len(names)] if names else "none"
        if what == "p":
            shared = tuple(items[: which + 1])
            new = record(f"r{n}", b"x" * size, (shared[:1], shared, (item("y" * which),)))
            kept[new.id] = new
            store.put(new)
        elif name in kept and what == "d":
            store.delete(name)
            del kept[name]
        elif name in kept:
            store.get(name)
        kept = {name: old for name, old in kept.items() if _holds(store, name)}
        distinct = {id(held): held.size for old in kept.values() for held in old.items()}
        expected = sum(distinct.values()) + sum(1024 + len(old.body) for old in kept.values())
        assert store.bytes == expected <= 9_000
        assert len(store) == len(kept) <= 4


def _holds(store: ResponseStore, name: str) -> bool:
    return name in store._records  # `get` would count as use


def test_many_threads_may_use_it() -> None:
    store = ResponseStore(5, 1 << 20)

    def work(name: str) -> None:
        for n in range(200):
            store.put(record(f"{name}{n}", b"x", ((), (), (item(),))))
            with_luck = store.find_item("nothing")
            assert with_luck is None

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store) == 5
