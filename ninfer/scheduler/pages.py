"""The pool of cache pages as numbers: who is entitled to how many, who has which, and which hold what was read.

capacity = free + owned + kept + left. A reservation is a promise out of the free pages that nobody else can spend;
taking turns promised pages into owned ones, keeping turns an owned one into a page of the tree of prefixes, which
stays. Left is the page of a block that a session in an idle lane has begun: whoever goes on with it picks it up.
The lowest free id goes first, so a run is reproducible.
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
    def available(self) -> int:
        """Pages that are neither owned, kept, left nor promised."""
        return len(self._free) - self._promised_total

    @property
    def kept(self) -> frozenset[int]:
        """Pages of the tree."""
        return frozenset(self._kept)

    @property
    def left(self) -> frozenset[int]:
        """Pages of blocks that idle lanes have begun."""
        return frozenset(self._left)

    def reserve(self, owner: int, count: int) -> None:
        """Promise `count` pages to `owner`, who has nothing yet."""
        if owner in self._promised or count > self.available:
            raise IllegalTransition(f"cannot reserve {count} pages for {owner}: {self.available} available")
        self._promised[owner] = count
        self._owned[owner] = set()
        self._promised_total += count

    def take(self, owner: int, count: int) -> tuple[int, ...]:
        """Pages out of what the owner was promised."""
        if count > self._promised[owner]:
            raise IllegalTransition(f"owner {owner} wants {count} pages and is entitled to {self._promised[owner]}")
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

    def free(self, page: int) -> None:
        """A page of the tree holds nothing any more."""
        self._kept.remove(page)
        heapq.heappush(self._free, page)

    def free_all(self, pages: Collection[int]) -> None:
        """The same of many pages at once."""
        if not self._kept.issuperset(pages):
            raise IllegalTransition("pages are freed that are not the tree's")
        self._kept.difference_update(pages)
        self._free.extend(pages)
        heapq.heapify(self._free)

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
        if self._promised_total != sum(self._promised.values()) or self.available < 0:
            raise IllegalTransition("more pages are promised than exist")
