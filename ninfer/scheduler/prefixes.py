"""What has been read and is still there: a tree of 64-token blocks, each with its page (kv-and-state spec, 11).

A path from the root spells a history; a node is one full block of it, named by the chained digest of all tokens up to
its end. Pages alone cannot be gone on from: that takes an image of the recurrent state, and a node may have one, of the
state behind its block. Histories that begin alike share nodes, which is all there is to a fork.

A node on the path of a running request is in use and stays. Of the others the one used longest ago goes first, from the
ends of paths inwards: its page moves to host memory if there is room, or it is forgotten.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ninfer.errors import IllegalTransition
from ninfer.scheduler.images import Image


@dataclass(slots=True, eq=False)
class Node:
    """One full block of a history; the root stands for no block.

    depth     blocks from the beginning to the end of this one
    page      device page of the block; None if it is only in host memory
    place     host place of the block, of a parked node
    image     the state behind the block, if it is stored
    users     paths in use that lead through here
    used      when it was last on a path that was asked for; larger is later
    """

    digest: str
    parent: Node | None
    depth: int
    page: int | None = None
    place: int | None = None
    image: Image | None = None
    users: int = 0
    used: int = 0
    alive: bool = True
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def is_leaf(self) -> bool:
        """Whether no block behind this one has a device page."""
        return all(child.page is None for child in self.children.values())

    def leads_to(self, other: Node) -> bool:
        """Whether this node lies on the path to `other`, or is it."""
        while other.depth > self.depth:
            assert other.parent is not None
            other = other.parent
        return other is self


class PrefixTree:
    """`places` is how many pages host memory has room for.

    evictions, parks   pages taken from blocks, and how many of them went to host memory
    unparked           those that found no place there because all of them are in use
    loads              pages that came back from there
    host_evictions     blocks forgotten there to make room for others
    """

    def __init__(self, places: int) -> None:
        self.root = Node("", None, 0)
        self.places = places
        self.evictions = 0
        self.parks = 0
        self.unparked = 0
        self.loads = 0
        self.host_evictions = 0
        self._free_places = list(range(places))
        self._clock = 0
        self._heap: list[tuple[int, int, Node]] = []
        self._pushed = 0
        self._evictable = 0
        self._parked: dict[int, Node] = {}
        self._held: Counter[int] = Counter()  # places that somebody reads
        self._left: set[int] = set()  # of them those whose block has gone to the device meanwhile
        self._parked_heap: list[tuple[int, int, int, Node]] = []

    @property
    def evictable(self) -> int:
        """Device pages of nodes that nobody uses."""
        return self._evictable

    @property
    def parked(self) -> int:
        """Pages in host memory."""
        return len(self._parked)

    def match(self, blocks: Sequence[str], limit: int) -> list[Node]:
        """Nodes of the longest known beginning of a history, at most `limit` of them."""
        path: list[Node] = []
        node = self.root
        for digest in blocks[:limit]:
            child = node.children.get(digest)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def touch(self, path: Sequence[Node]) -> None:
        """Note that a history was asked for."""
        self._clock += 1
        for node in path:
            node.used = self._clock

    def use(self, node: Node) -> None:
        """Keep the path to a node until :meth:`leave`."""
        step: Node | None = node
        while step is not None and step.parent is not None:
            self._add_user(step)
            step = step.parent

    def leave(self, node: Node) -> None:
        """Give up a path that was in use."""
        step: Node | None = node
        while step is not None and step.parent is not None:
            step.users -= 1
            if step.users < 0:
                raise IllegalTransition(f"a block at depth {step.depth} is given up by somebody who never had it")
            if step.users == 0:
                self._evictable += step.page is not None
                self._offer(step)
                self._offer_parked(step)
            step = step.parent

    def grow(self, parent: Node, digest: str, page: int) -> Node:
        """A new block behind a path in use by the caller, who uses it from the start."""
        node = Node(digest, parent, parent.depth + 1, page=page, users=1, used=self._clock)
        parent.children[digest] = node
        return node

    def follow(self, child: Node) -> None:
        """The caller's path in use now ends one block later, at a block that was there."""
        self._add_user(child)

    def load(self, node: Node, page: int) -> int:
        """Give a parked node in use a device page; returns the place its bytes lie in, which is free from then on."""
        place = node.place
        if place is None or node.page is not None or node.users == 0:
            raise IllegalTransition("a block that is not parked, or that nobody uses, is loaded")
        self.fill(node, page)
        self.loads += 1
        return place

    def fill(self, node: Node, page: int) -> None:
        """The same with a page that holds the block already."""
        assert node.page is None, "it has one"
        node.page = page
        self._release_place(node)

    def survives(self, node: Node, count: int, path: Sequence[Node]) -> bool:
        """Whether a block that nobody uses is certain to be there still, on the device or in host memory, when so many
        pages have been taken while `path` is in use.
        """
        on_path = {id(step) for step in path}
        older = [n for n in self.nodes() if n.users == 0 and n.used < node.used and id(n) not in on_path]
        parked = sum(n.page is None for n in older)
        # A page needs a place at once, so what is still on the device makes no room for what is in host memory.
        before = parked + (len(older) - parked if node.page is not None else 0)
        return count <= len(self._free_places) + before

    def hold(self, places: Sequence[int]) -> None:
        """Nothing else is written to these places, whose blocks the caller uses, until :meth:`let_go`."""
        self._held.update(places)

    def let_go(self, places: Sequence[int]) -> None:
        """They have been read."""
        for place in places:
            self._held[place] -= 1
            if not self._held[place]:
                del self._held[place]
                if place in self._left:
                    self._left.remove(place)
                    heapq.heappush(self._free_places, place)

    def evict(self, count: int) -> tuple[list[int], dict[int, int], list[Image]]:
        """Take `count` device pages from blocks that nobody uses, the oldest ends first.

        returns  the pages; places in host memory and the pages that have to be copied there before they are written
                 again; and images whose blocks are forgotten
        """
        pages: list[int] = []
        parked: dict[int, int] = {}  # by place: one that is given to a second block is written once
        images: list[Image] = []
        self._make_places(count, images)
        free = self._free_places
        while len(pages) < count:
            node = self._oldest()
            # Up its path without the heap while nothing else was used longer ago: a prompt may take thousands at once,
            # and streams wait meanwhile.
            while True:
                parent, page = node.parent, node.page
                assert parent is not None
                assert page is not None
                pages.append(page)
                self._evictable -= 1
                place = heapq.heappop(free) if free else self._place(images) if self.places else None
                if place is None:
                    self.unparked += self.places > 0
                    self._forget(node, images)
                else:
                    node.page, node.place = None, place
                    self._parked[place] = node
                    self.parks += 1
                    parked[place] = page
                    if not node.children:
                        self._offer_parked(node)
                others = self._heap
                if len(pages) == count or (others and others[0][0] < parent.used) or not self._may_go(parent):
                    self._offer(parent)
                    break
                node = parent
        self.evictions += len(pages)
        return pages, parked, images

    def prune(self, node: Node, keep: Sequence[Node]) -> tuple[list[int], list[Image]]:
        """Forget the blocks of a path that no other history, user or end in `keep` needs; returns pages and images."""
        pages: list[int] = []
        images: list[Image] = []
        step = node
        while step.parent is not None and not step.children and step.users == 0 and step.alive:
            if any(step is end for end in keep):
                break
            if step.page is not None:
                pages.append(step.page)
                self._evictable -= 1
            parent = step.parent
            self._forget(step, images)
            step = parent
        self._offer(step)
        return pages, images

    def clear(self) -> None:
        """Forget everything; nobody may use anything."""
        for node in list(self.nodes()):
            node.alive, node.page, node.place = False, None, None
        self.root.children.clear()
        self._heap.clear()
        self._parked_heap.clear()
        self._parked.clear()
        self._held.clear()
        self._left.clear()
        self._free_places = list(range(self.places))
        self._evictable = 0

    def nodes(self) -> Iterator[Node]:
        """Every block, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _add_user(self, node: Node) -> None:
        if node.users == 0 and node.page is not None:
            self._evictable -= 1
        node.users += 1

    def _offer(self, node: Node | None) -> None:
        """Put a block among those that may go, if it may."""
        if node is None or not self._may_go(node):
            return
        if len(self._heap) > 2 * self._evictable + 64:  # most entries are of blocks that were used again meanwhile
            self._heap = [entry for entry in self._heap if self._may_go(entry[2]) and entry[0] == entry[2].used]
            heapq.heapify(self._heap)
        self._pushed += 1
        heapq.heappush(self._heap, (node.used, self._pushed, node))

    @staticmethod
    def _may_go(node: Node) -> bool:
        has_page = node.page is not None and node.parent is not None and node.alive
        return has_page and node.users == 0 and (not node.children or node.is_leaf)

    def _oldest(self) -> Node:
        while self._heap:
            used, _, node = heapq.heappop(self._heap)
            if node.used != used:
                self._offer(node)
            elif self._may_go(node):
                return node
        raise IllegalTransition("no block is left that may go")

    def _make_places(self, count: int, images: list[Image]) -> None:
        """Forget parked blocks, those used longest ago first, until so many places are free or none may go."""
        heap = self._parked_heap
        while len(self._free_places) < min(count, self.places) and heap:
            used, _, _, node = heapq.heappop(heap)
            if node.used != used:
                self._offer_parked(node)
                continue
            # Up its path as above.
            while self._may_be_forgotten(node):
                parent = node.parent
                assert parent is not None
                self._forget(node, images, offers=False)
                self.host_evictions += 1
                if len(self._free_places) == count or (heap and heap[0][0] < parent.used):
                    self._offer_parked(parent)
                    break
                node = parent

    def _place(self, images: list[Image]) -> int | None:
        """A place in host memory where none is free: that of the parked block used longest ago."""
        while self._parked_heap:
            used, _, _, node = heapq.heappop(self._parked_heap)
            if node.used != used:
                self._offer_parked(node)
            elif self._may_be_forgotten(node):
                self._forget(node, images)
                self.host_evictions += 1
                return heapq.heappop(self._free_places)
        return None

    def _offer_parked(self, node: Node) -> None:
        """Put a block among those whose place may go, if it may."""
        if not self._may_be_forgotten(node):
            return
        if len(self._parked_heap) > 2 * len(self._parked) + 64:
            valid = [entry for entry in self._parked_heap if self._may_be_forgotten(entry[3])]
            self._parked_heap = [entry for entry in valid if entry[0] == entry[3].used]
            heapq.heapify(self._parked_heap)
        self._pushed += 1
        heapq.heappush(self._parked_heap, (node.used, -node.depth, self._pushed, node))

    @staticmethod
    def _may_be_forgotten(node: Node) -> bool:
        return node.place is not None and not node.children and node.users == 0

    def _release_place(self, node: Node) -> None:
        assert node.place is not None
        del self._parked[node.place]
        if node.place in self._held:
            self._left.add(node.place)
        else:
            heapq.heappush(self._free_places, node.place)
        node.place = None

    def _forget(self, node: Node, images: list[Image], *, offers: bool = True) -> None:
        """Cut the end of a path off; `offers` the place of the block before it."""
        assert node.parent is not None
        assert not node.children, "what is parked behind a block is forgotten before it"
        del node.parent.children[node.digest]
        node.alive = False
        if node.place is not None:
            self._release_place(node)
        node.page = None
        if node.image is not None:
            images.append(node.image)
            node.image = None
        if offers and node.parent.place is not None:
            self._offer_parked(node.parent)

    def audit(self) -> None:
        """Raise unless counts agree with the nodes."""
        evictable = parked = 0
        for node in self.nodes():
            if not node.alive or (node.page is None) == (node.place is None):
                raise IllegalTransition("a block without a page, with two, or dead in the tree")
            evictable += node.page is not None and node.users == 0
            parked += node.place is not None
            if node.page is not None and node.parent is not None and node.parent.parent and node.parent.page is None:
                raise IllegalTransition("a block with a page behind one that is parked")
            if node.parent is not None and node.parent.parent is not None and node.parent.users < node.users:
                raise IllegalTransition("a block in use behind one that is not")
        if evictable != self._evictable or parked != len(self._parked):
            raise IllegalTransition(f"{evictable} evictable blocks, counted {self._evictable}; {parked} parked")
        if parked + len(self._left) + len(self._free_places) != self.places:
            raise IllegalTransition("a place in host memory is lost")


def path_to(node: Node) -> list[Node]:
    """Blocks from the first to this one; none for the root."""
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]
