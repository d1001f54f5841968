"""Stored states: who makes room for whom, and which turn checkpoints stay."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler.images import Image, ImageKind, ImageStore, folded
from ninfer.scheduler.prefixes import Node


def stored(store: ImageStore, kind: ImageKind = ImageKind.TURN) -> tuple[Image, Node]:
    image, node = store.take(kind, None), Node("", None, 1)
    assert image is not None
    assert store.attach(image, node)
    return image, node


def test_the_image_used_longest_ago_makes_room() -> None:
    store = ImageStore(2)
    (first, first_node), (second, second_node) = stored(store), stored(store)
    store.touch(first)
    third, _node = stored(store)
    assert third.id == second.id
    assert (first_node.image, second_node.image, second.node) == (first, None, None)
    store.audit()


def test_nobody_makes_room_who_is_promised_or_on_his_way() -> None:
    store = ImageStore(2)
    promised, _node = stored(store)
    promised.users = 1
    on_its_way = store.take(ImageKind.SHARED, None)
    assert on_its_way is not None
    assert store.take(ImageKind.TURN, 1) is None
    assert ImageStore(0).take(ImageKind.TURN, 1) is None
    promised.users = 0
    assert store.take(ImageKind.TURN, 1) is not None


def test_a_newer_image_of_the_same_state_takes_the_place_of_one_that_is_not_promised() -> None:
    store = ImageStore(2)
    old, node = stored(store)
    new = store.take(ImageKind.ANCHOR, 1)
    assert new is not None
    assert store.attach(new, node)
    assert store.stored == (new,)
    new.users = 1
    newest = store.take(ImageKind.TURN, 1)
    assert newest is not None
    assert not store.attach(newest, node)
    assert store.stored == (new,)
    assert node.image is new
    store.audit()
    assert old.node is None


def test_clearing_spares_what_somebody_is_writing() -> None:
    store = ImageStore(3)
    _attached, node = stored(store)
    written, idle = store.take(ImageKind.FRONTIER, 1), store.take(ImageKind.TURN, 1)
    assert written is not None
    assert idle is not None
    written.users = 1
    store.clear()
    assert store.stored == (written,)
    assert node.image is None
    store.audit()


def test_what_breaks_a_rule_raises() -> None:
    store = ImageStore(2)
    image, node = stored(store)
    store.drop(image)
    with pytest.raises(IllegalTransition, match="image 0 is dropped twice"):
        store.drop(image)
    image, node = stored(store)
    node.image = None
    with pytest.raises(IllegalTransition, match="image 0 belongs to a block that knows nothing of it"):
        store.audit()
    node.image = image
    node.alive = False
    with pytest.raises(IllegalTransition, match="image 0 belongs to a block"):
        store.audit()
    store._free.clear()
    with pytest.raises(IllegalTransition, match="lost or stored twice"):
        store.audit()


def test_the_worked_example_of_the_ring() -> None:
    ring: list[int] = []
    rings = []
    for frontier in (1000, 3000, 9000, 11000, 15200, 20000):
        ring = folded(ring, frontier, 3)
        rings.append(ring)
    assert rings == [
        [1000],
        [1000, 3000],
        [1000, 9000],
        [1000, 9000, 11000],
        [1000, 9000, 15200],
        [9000, 15200, 20000],
    ]


@pytest.mark.parametrize(
    ("ring", "frontier", "size", "expected"),
    [
        ([], 100, 0, []),
        ([100], 100, 3, [100]),
        ([100, 5000], 200, 3, [100, 200]),  # history was rewritten: what lies above goes
        ([100, 4196], 9000, 3, [100, 4196, 9000]),  # exactly the distance
        ([100, 4195], 9000, 3, [100, 9000]),
        ([100, 4196], 9000, 1, [9000]),
    ],
)
def test_folding(ring: list[int], frontier: int, size: int, expected: list[int]) -> None:
    assert folded(ring, frontier, size) == expected


def test_what_a_deeper_state_of_the_same_history_has_surpassed_goes_first() -> None:
    store = ImageStore(2)
    (older, older_node), (newer, newer_node) = stored(store), stored(store)
    newer.surpassed = True
    assert store.take(ImageKind.TURN, 1) is not None
    assert (older_node.image, newer_node.image) == (older, None)
    older.surpassed = True
    store.touch(older)
    assert not older.surpassed
