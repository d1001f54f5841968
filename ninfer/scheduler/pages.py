"""The pool of cache pages as numbers: who is entitled to how many, and which are mapped.

capacity = free + mapped. A reservation is a promise out of the free pages that nobody else can spend; mapping turns a
promised page into an owned one. The lowest free id goes first, so a run is reproducible.
"""

from __future__ import annotations

import heapq

from ninfer.errors import IllegalTransition
from ninfer.step import PageMapping


class PagePool:
    """`capacity` pages with ids ``[0, capacity)``, shared by all lanes (kv-and-state spec, 8.4)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity))
        self._promised: dict[int, int] = {}
        self._mapped: dict[int, list[int]] = {}
        self._promised_total = 0

    @property
    def available(self) -> int:
        """Pages that are neither mapped nor promised."""
        return len(self._free) - self._promised_total

    def reserve(self, owner: int, count: int) -> None:
        """Promise `count` pages to `owner`, who has nothing yet."""
        if owner in self._promised or count > self.available:
            raise IllegalTransition(f"cannot reserve {count} pages for {owner}: {self.available} available")
        self._promised[owner] = count
        self._mapped[owner] = []
        self._promised_total += count

    def map(self, owner: int, total: int) -> PageMapping:
        """Have at least `total` pages mapped; returns what that adds to the owner's block table."""
        mapped = self._mapped[owner]
        first = len(mapped)
        missing = total - first
        if missing <= 0:
            return PageMapping(first, ())
        if missing > self._promised[owner]:
            raise IllegalTransition(f"owner {owner} wants {missing} pages and is entitled to {self._promised[owner]}")
        new = tuple(heapq.heappop(self._free) for _ in range(missing))
        mapped.extend(new)
        self._promised[owner] -= missing
        self._promised_total -= missing
        return PageMapping(first, new)

    def release(self, owner: int) -> None:
        """Take back everything the owner has or was promised."""
        self._promised_total -= self._promised.pop(owner)
        for page in self._mapped.pop(owner):
            heapq.heappush(self._free, page)

    def owners(self) -> tuple[int, ...]:
        """Everybody who has or was promised a page."""
        return tuple(self._promised)

    def audit(self) -> None:
        """Raise unless every page is accounted for exactly once."""
        pages = [page for pages in self._mapped.values() for page in pages] + self._free
        if len(pages) != self.capacity or set(pages) != set(range(self.capacity)):
            raise IllegalTransition("a page is lost or owned twice")
        if self._promised_total != sum(self._promised.values()) or self.available < 0:
            raise IllegalTransition("more pages are promised than exist")
