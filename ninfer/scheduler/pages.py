"""The pool of cache pages as numbers: who is entitled to how many, who has which, and which hold what was read.

capacity = free + owned + kept + left. A reservation is a promise that nobody else can spend: out of the free pages, and
of those kept and left that are free when they are needed, which `room` sees to. Taking turns promised pages into owned
ones, keeping turns an owned one into a page of the tree of prefixes, which stays. Left is the page of a block that a
session in an idle lane has begun: whoever goes on with it picks it up. The lowest free id goes first, so a run is
reproducible.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

from ninfer.errors import IllegalTransition


class PagePool:
    """`capacity` pages with ids ``[0, capacity)``, shared by all lanes (kv-and-state spec, 8.4)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity))
        self._promised: dict[int, int] = {}
        self._owned: dict[int, set[int]] = {}
        self._kept: set[int] = set()
        self._left: set[int] = set()
        self._promised_total = 0

    @property
    def free(self) -> int:
        """Pages that are neither owned, kept nor left."""
        return len(self._free)

    @property
    def promised(self) -> int:
        """Pages that owners are entitled to and have not taken."""
        return self._promised_total

    @property
    def available(self) -> int:
        """Free pages that nobody was promised."""
        return max(0, self.free - self._promised_total)

    def promised_to(self, owner: int) -> int:
        """Pages that one is entitled to and has not taken."""
        return self._promised[owner]

    @property
    def kept(self) -> frozenset[int]:
        """Pages of the tree."""
        return frozenset(self._kept)

    @property
    def left(self) -> frozenset[int]:
        """Pages of blocks that idle lanes have begun."""
        return frozenset(self._left)

    def reserve(self, owner: int, count: int, spare: int = 0) -> None:
        """Promise `count` pages to `owner`, who has nothing yet; `spare` kept and left pages can be free in time."""
        left = self.free + spare - self._promised_total
        if owner in self._promised or count > left:
            raise IllegalTransition(f"cannot reserve {count} pages for {owner}: {left} may be promised")
        self._promised[owner] = count
        self._owned[owner] = set()
        self._promised_total += count

    def take(self, owner: int, count: int) -> tuple[int, ...]:
        """Pages out of what the owner was promised."""
        if count > self._promised[owner]:
            raise IllegalTransition(f"owner {owner} wants {count} pages and is entitled to {self._promised[owner]}")
        if count > self.free:
            raise IllegalTransition(f"owner {owner} takes {count} pages, and {self.free} are free")
        new = tuple(heapq.heappop(self._free) for _ in range(count))
        self._owned[owner].update(new)
        self.waive(owner, count)
        return new

    def waive(self, owner: int, count: int) -> None:
        """The owner needs so many pages less than it was promised."""
        if count > self._promised[owner]:
            raise IllegalTransition(f"owner {owner} waives {count} pages of {self._promised[owner]}")
        self._promised[owner] -= count
        self._promised_total -= count

    def keep(self, owner: int, page: int) -> None:
        """An owned page belongs to the tree from now on."""
        self._owned[owner].remove(page)
        self._kept.add(page)

    def leave(self, owner: int, page: int) -> None:
        """An owned page is left for whoever goes on behind what it holds."""
        self._owned[owner].remove(page)
        self._left.add(page)

    def pick_up(self, owner: int, page: int) -> None:
        """A page that was left belongs to the owner, beside what that was promised."""
        self._left.remove(page)
        self._owned[owner].add(page)

    def drop(self, page: int) -> None:
        """Nobody will go on behind what a page holds that was left."""
        self._left.remove(page)
        heapq.heappush(self._free, page)

    def hand_back(self, owner: int, page: int) -> None:
        """The owner is promised a page instead of this one."""
        self._owned[owner].remove(page)
        heapq.heappush(self._free, page)
        self._promised[owner] += 1
        self._promised_total += 1

    def let_go(self, pages: Collection[int]) -> None:
        """Pages of the tree hold nothing any more."""
        if not self._kept.issuperset(pages):
            raise IllegalTransition("pages are freed that are not the tree's")
        self._kept.difference_update(pages)
        for page in pages:
            heapq.heappush(self._free, page)

    def release(self, owner: int) -> None:
        """Take back everything the owner has or was promised."""
        self._promised_total -= self._promised.pop(owner)
        for page in self._owned.pop(owner):
            heapq.heappush(self._free, page)

    def owners(self) -> tuple[int, ...]:
        """Everybody who has or was promised a page."""
        return tuple(self._promised)

    def audit(self) -> None:
        """Raise unless every page is accounted for exactly once."""
        pages = [*(page for owned in self._owned.values() for page in owned), *self._free, *self._kept, *self._left]
        if len(pages) != self.capacity or set(pages) != set(range(self.capacity)):
            raise IllegalTransition("a page is lost or owned twice")
        if self._promised_total != sum(self._promised.values()):
            raise IllegalTransition("the promises of all owners are not what is promised")
