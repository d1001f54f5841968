"""The tree of blocks: sharing, use, and who goes first when room is needed."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer.errors import IllegalTransition
from ninfer.scheduler.images import ImageKind, ImageStore
from ninfer.scheduler.prefixes import Node, PrefixTree


def grown(tree: PrefixTree, names: str, first_page: int = 0) -> list[Node]:
    """A path of blocks with these names, in use; those that are there are followed."""
    path: list[Node] = []
    node = tree.root
    for at, name in enumerate(names):
        child = node.children.get(name)
        if child is None:
            child = tree.grow(node, name, first_page + at)
        else:
            tree.follow(child)
        path.append(child)
        node = child
    return path


def known(tree: PrefixTree, names: str, first_page: int = 0) -> list[Node]:
    """The same, asked for and given up again."""
    path = grown(tree, names, first_page)
    tree.touch(path)
    tree.leave(path[-1])
    return path


def test_the_longest_known_beginning_is_found() -> None:
    tree = PrefixTree(0)
    path = known(tree, "abc")
    assert tree.match("abcd", 9) == path
    assert tree.match("abcd", 2) == path[:2]
    assert tree.match("abx", 9) == path[:2]
    assert tree.match("xbc", 9) == []
    assert [node.depth for node in path] == [1, 2, 3]
    tree.audit()


def test_histories_that_begin_alike_share_their_blocks() -> None:
    tree = PrefixTree(0)
    first, second = known(tree, "abc"), known(tree, "abd", 10)
    assert first[:2] == second[:2]
    assert [node.page for node in second] == [0, 1, 12]
    assert first[1].leads_to(second[2])
    assert not first[2].leads_to(second[2])
    assert tree.root.leads_to(first[0])
    assert tree.evictable == 4


def test_the_end_used_longest_ago_goes_first_and_then_what_is_before_it() -> None:
    tree = PrefixTree(0)
    known(tree, "abc")
    known(tree, "xy", 10)
    known(tree, "abd", 20)
    pages, parked, images = tree.evict(6)
    assert pages == [2, 11, 10, 22, 1, 0]
    assert (parked, images) == ({}, [])
    assert tree.evictions == 6
    assert not list(tree.nodes())
    with pytest.raises(IllegalTransition, match="no block is left"):
        tree.evict(1)


def test_a_block_that_was_asked_for_again_goes_later() -> None:
    tree = PrefixTree(0)
    first = known(tree, "ab")
    known(tree, "xy", 10)
    tree.touch(first)
    assert tree.evict(2)[0] == [11, 10]


def test_what_is_in_use_stays() -> None:
    tree = PrefixTree(0)
    path = known(tree, "abc")
    tree.use(path[1])
    assert tree.evictable == 1
    assert tree.evict(1)[0] == [2]
    with pytest.raises(IllegalTransition, match="no block is left"):
        tree.evict(1)
    tree.leave(path[1])
    assert tree.evict(2)[0] == [1, 0]
    with pytest.raises(IllegalTransition, match="never had it"):
        tree.leave(path[1])


def test_blocks_move_to_host_memory_and_back() -> None:
    tree = PrefixTree(3)
    path = known(tree, "abc")
    assert tree.evict(2) == ([2, 1], {0: 2, 1: 1}, [])
    assert (tree.parked, tree.parks, tree.evictable) == (2, 2, 1)
    assert tree.match("abc", 9) == path
    tree.audit()
    with pytest.raises(IllegalTransition, match="nobody uses"):
        tree.load(path[1], 7)
    tree.use(path[2])
    assert [tree.load(node, page) for node, page in ((path[1], 7), (path[2], 8))] == [1, 0]
    with pytest.raises(IllegalTransition, match="not parked"):
        tree.load(path[2], 9)
    assert (tree.parked, [node.page for node in path]) == (0, [0, 7, 8])
    tree.leave(path[2])
    tree.audit()


def test_the_parked_end_used_longest_ago_makes_room_for_another() -> None:
    tree = PrefixTree(2)
    first = known(tree, "ab")
    second = known(tree, "xy", 10)
    tree.evict(2)
    assert [node.place for node in first] == [1, 0]
    assert tree.evict(1)[1] == {0: 11}  # the place of the end of the older history
    assert (first[1].alive, first[0].alive) == (False, True)
    assert tree.evict(1)[1] == {1: 10}
    assert [node.place for node in second] == [1, 0]
    assert tree.match("ab", 9) == []
    tree.audit()


def test_a_parked_path_that_is_promised_is_not_forgotten_for_another() -> None:
    tree = PrefixTree(1)
    first = known(tree, "a")
    tree.evict(1)
    tree.use(first[0])
    second = known(tree, "x", 10)
    assert tree.evict(1) == ([10], {}, [])
    assert not second[0].alive
    tree.leave(first[0])
    known(tree, "y", 20)
    assert tree.evict(1)[1] == {0: 20}
    assert not first[0].alive
    tree.audit()


def test_a_parked_end_that_was_asked_for_again_goes_later() -> None:
    tree = PrefixTree(2)
    first, second = known(tree, "a"), known(tree, "x", 10)
    tree.evict(2)
    tree.touch(first)
    known(tree, "y", 20)
    tree.evict(1)
    assert (first[0].alive, second[0].alive) == (True, False)


def test_a_place_that_is_free_again_is_not_sought_where_it_was() -> None:
    tree = PrefixTree(1)
    back = known(tree, "a")
    tree.evict(1)
    known(tree, "x", 10)
    tree.use(back[0])
    tree.load(back[0], 0)
    tree.touch(back)
    tree.leave(back[0])
    known(tree, "y", 20)
    assert tree.evict(2) == ([10, 0], {0: 0}, [])
    assert tree.parked == 1
    tree.audit()


def test_what_is_parked_behind_a_block_is_forgotten_before_it() -> None:
    tree, images = PrefixTree(1), ImageStore(2)
    path = known(tree, "ab")
    image = images.take(ImageKind.TURN, 1)
    assert image is not None
    images.attach(image, path[1])
    assert tree.evict(1) == ([1], {0: 1}, [])
    assert tree.evict(1) == ([0], {0: 0}, [image])
    assert tree.match("ab", 9) == path[:1]
    tree.audit()


def test_pruning_forgets_what_is_only_this_history_s() -> None:
    tree, images = PrefixTree(1), ImageStore(2)
    first, second = known(tree, "abcd"), known(tree, "abx", 10)
    image = images.take(ImageKind.TURN, 1)
    assert image is not None
    images.attach(image, first[2])
    tree.evict(1)  # the end of the first is parked
    assert tree.prune(first[3], ()) == ([2], [image])
    assert tree.match("abcd", 9) == first[:2]
    assert tree.parked == 0
    assert tree.prune(second[2], [second[1]]) == ([12], [])
    assert tree.prune(second[2], []) == ([], [])  # it is gone already
    tree.use(second[1])
    assert tree.prune(second[1], []) == ([], [])
    tree.leave(second[1])
    assert tree.prune(second[1], []) == ([1, 0], [])
    tree.audit()
    assert tree.evictable == 0


def test_a_page_is_taken_over_for_a_block_that_has_none() -> None:
    tree = PrefixTree(1)
    path = known(tree, "a")
    tree.evict(1)
    tree.follow(path[0])
    tree.fill(path[0], 5)
    assert (path[0].page, path[0].place, tree.parked) == (5, None, 0)
    tree.leave(path[0])
    tree.audit()


def test_clearing_forgets_everything() -> None:
    tree = PrefixTree(2)
    path = known(tree, "abc")
    tree.evict(1)
    tree.clear()
    tree.audit()
    assert not any(node.alive for node in path)
    assert (tree.evictable, tree.parked, tree.match("abc", 9)) == (0, 0, [])


def test_the_heaps_hold_no_more_than_is_worth_holding() -> None:
    tree = PrefixTree(1)
    path = known(tree, "ab")
    tree.evict(1)
    for _ in range(500):
        tree.use(path[1])
        tree.touch(path)
        tree.leave(path[1])
    assert len(tree._heap) < 100
    assert len(tree._parked_heap) < 100
    known(tree, "x", 10)
    assert tree.evict(2) == ([0, 10], {0: 10}, [])
    tree.audit()


def broken(damage: str) -> PrefixTree:
    tree = PrefixTree(2)
    path = known(tree, "abc")
    tree.evict(1)
    match damage:
        case "dead":
            path[0].alive = False
        case "page":
            path[0].page = None
        case "users":
            path[1].users = 1
        case "count":
            tree._evictable += 1
        case "place":
            tree._free_places.clear()
    return tree


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("dead", "dead in the tree"),
        ("page", "without a page"),
        ("users", "in use behind one that is not"),
        ("count", "2 evictable blocks, counted 3"),
        ("place", "place in host memory is lost"),
    ],
)
def test_the_audit_finds(damage: str, message: str) -> None:
    with pytest.raises(IllegalTransition, match=message):
        broken(damage).audit()


def test_the_audit_finds_a_page_behind_a_parked_block() -> None:
    tree = PrefixTree(2)
    path = known(tree, "ab")
    path[0].page, path[0].place = None, 0
    with pytest.raises(IllegalTransition, match="behind one that is parked"):
        tree.audit()


class Forest(RuleBasedStateMachine):
    """Random histories over three names are read, gone on from, given up and evicted; pages are never mixed up."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree(3)
        self.held: list[Node] = []
        self.next_page = 0
        self.contents: dict[int, str] = {}

    @rule(names=st.text("abc", min_size=1, max_size=5))
    def read(self, names: str) -> None:
        path = self.tree.match(names, 9)
        node = path[-1] if path else self.tree.root
        self.tree.use(node)
        for step in path:
            if step.page is None:
                self.tree.load(step, self.page(names[: step.depth]))
        for at in range(len(path), len(names)):
            node = self.tree.grow(node, names[at], self.page(names[: at + 1]))
        self.tree.touch(self.tree.match(names, 9))
        self.held.append(node)

    def page(self, history: str) -> int:
        self.next_page += 1
        self.contents[self.next_page] = history
        return self.next_page

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.tree.leave(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.tree.evictable))
        pages, parked, _images = self.tree.evict(count)
        assert len(set(pages)) == count
        assert set(parked.values()) <= set(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_up_and_prune(self, data: st.DataObject) -> None:
        node = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.tree.leave(node)
        self.tree.prune(node, self.held)

    @invariant()
    def everything_is_in_its_place(self) -> None:
        self.tree.audit()
        for node in self.held:
            while node.parent is not None:
                assert node.alive
                assert node.page is not None
                node = node.parent
        for node in self.tree.nodes():
            if node.page is not None:
                history, step = self.contents[node.page], node
                for name in reversed(history):
                    assert step.digest == name
                    assert step.parent is not None
                    step = step.parent
                assert step is self.tree.root


TestForest = Forest.TestCase
TestForest.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
