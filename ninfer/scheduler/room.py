"""Room in the pool: pages that are promised need not be free, only to be had when they are needed.

A request is promised every page of its longest possible life, and most end long before that. So a promise displaces
nothing: blocks that nobody uses stay, and one after the other is given up as pages are really taken, full ones first,
of these the one used longest ago. What holds at all times is

    free + spare >= promised

where spare are pages of blocks that nobody uses. Who reads a session for a file uses its blocks meanwhile, and what was
promised may be among them: then whoever needs more pages than are to be had waits until it has been read.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.errors import IllegalTransition
from ninfer.scheduler.images import ImageStore
from ninfer.scheduler.open_blocks import OpenBlock
from ninfer.scheduler.pages import PagePool
from ninfer.scheduler.prefixes import PrefixTree
from ninfer.scheduler.reuse import Session
from ninfer.step import ParkPages, Transfer


class Room:
    """Who may have how many pages; `pending` gets the copies that giving blocks up takes.

    sessions   of all lanes: they lose the blocks that they have begun when no full block is left to go
    saves      whether sessions go to files before they lose full blocks
    dropped    states that went with their blocks
    """

    def __init__(
        self,
        tree: PrefixTree,
        images: ImageStore,
        sessions: Sequence[Session | None],
        pending: list[Transfer],
        *,
        saves: bool,
    ) -> None:
        self._tree, self._images, self._sessions, self._pending = tree, images, sessions, pending
        self._saves = saves
        self.pages = PagePool(0)
        self.dropped = 0

    def spare(self, kept: OpenBlock | None = None) -> int:
        """Pages of blocks that nobody uses, full ones and open ones but for `kept`."""
        return self._tree.evictable + len(self.pages.left) - (kept is not None)

    @property
    def to_be_had(self) -> int:
        """Pages that can be taken at this moment."""
        return self.pages.free + self.spare()

    def to_promise(self, kept: OpenBlock | None = None) -> int:
        """Pages that may be promised yet; negative while promised ones are being read for a file."""
        return self.pages.free + self.spare(kept) - self.pages.promised

    def to_give_up(self, needed: int) -> int:
        """Pages of blocks that will go, if all that are promised and so many more are taken; none if not positive."""
        return needed + self.pages.promised - self.pages.free

    def promise(self, owner: int, count: int) -> None:
        """Promise pages to an owner who has nothing yet."""
        self.pages.reserve(owner, count, self.spare())
        if self._saves:
            # Full blocks that are left later, and are in no file yet, would go before the open ones.
            self._drop_open_blocks(self.to_give_up(0) - self._tree.evictable)

    def take(self, owner: int, count: int, ahead: int = 0) -> tuple[int, ...]:
        """Pages that the owner was promised.

        Where blocks have to go for them, pages of `ahead` more are made free along with them, if so many are promised:
        copies to host memory are few then.
        """
        short = count - self.pages.free
        if short > 0:
            wanted = min(count + ahead, self.pages.promised)
            self._give_up(min(wanted - self.pages.free, self.spare()))
        return self.pages.take(owner, count)

    def hand_out(self, owner: int, count: int) -> tuple[int, ...]:
        """Promise pages to an owner, and give him all of them."""
        self.promise(owner, count)
        return self.take(owner, count)

    def _give_up(self, count: int) -> None:
        """Make so many pages free: full blocks go first, and where these do not suffice open ones.

        There are no more open ones than lanes, and most of the full ones nobody comes back to: in a pool that has been
        full once, sessions that take turns would never find their open blocks if these went first.
        """
        full = min(count, self._tree.evictable)
        pages, parked, images = self._tree.evict(full)
        self.pages.let_go(pages)
        for image in images:
            self._images.drop(image)
        self.dropped += len(images)
        if parked:
            self._pending.append(ParkPages(tuple(parked.values()), tuple(parked)))
        self._drop_open_blocks(count - full)

    def _drop_open_blocks(self, count: int) -> None:
        """Those of the sessions that were left longest ago."""
        with_open = [session for session in self._sessions if session is not None and session.open is not None]
        for session in sorted(with_open, key=lambda session: session.retained)[: max(0, count)]:
            self.drop_open(session)

    def drop_open(self, session: Session | None) -> None:
        """Nobody goes on in the block that a session has begun."""
        if session is not None and session.open is not None:
            self.pages.drop(session.open.page)
            session.open = None

    def audit(self, read: int) -> None:
        """Raise unless promises can be kept, once `read` pages are not read for files any more."""
        self.pages.audit()
        if self.to_promise() + read < 0:
            raise IllegalTransition(f"{-self.to_promise() - read} pages are promised that nobody could have")
