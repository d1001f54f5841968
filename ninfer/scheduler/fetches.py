"""Bringing what the head of the queue needs back from the disk cache, before it is admitted.

A file is read and checked without anything of the device; only then pages and a place for the state are taken, filled,
and become a part of the tree like any other that was read. A file that cannot be used is a miss: the prompt is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler.events import DiskDone, DiskRead
from ninfer.scheduler.holdings import Holdings
from ninfer.scheduler.images import Image, ImageKind
from ninfer.scheduler.prefixes import Node
from ninfer.scheduler.requests import Request
from ninfer.scheduler.transitions import LaneState
from ninfer.step import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class _Filling:
    """Pages and an image that are being filled: what is in use by that until it is done."""

    node: Node
    image: Image
    pages: tuple[int, ...]
    faults: int


@dataclass(slots=True)
class _Fetch:
    """One file on its way to the request; `blocks` of it are wanted. `filling` once it has been read."""

    ticket: int
    request: Request
    file: str
    blocks: tuple[str, ...]
    filling: _Filling | None = None


class Fetches:
    """One file at a time; `say` gives a command, `waits` tells whether a request is still in the queue of a server
    that serves.

    hits, misses   requests that found their beginning on disk, and those that did not
    failures       files that could not be read
    """

    def __init__(
        self,
        holdings: Holdings,
        lanes: list[LaneState],
        waits: Callable[[Request], bool],
        say: Callable[[cmd.Command], None],
    ) -> None:
        self._holdings, self._lanes, self._waits, self._say = holdings, lanes, waits, say
        # Who pages are promised to meanwhile: requests have positive numbers, slot actions those of `Slots.owner`.
        self.owner = -1 - len(lanes)
        self._fetch: _Fetch | None = None
        self._ticket = 0
        self.hits = 0
        self.misses = 0
        self.failures = 0

    def owners(self) -> set[int]:
        """Everybody of the kind who has pages now."""
        return {self.owner} if self._fetch is not None and self._fetch.filling is not None else set()

    def holds_up(self, request: Request, idle: Sequence[int]) -> bool:
        """Whether the head of the queue, which could be admitted, waits for a file. It asks for one once."""
        holdings, disk = self._holdings, self._holdings.disk
        if self._fetch is not None and self._fetch.request is request:
            return True
        if not disk.capacity or not holdings.images.capacity or not holdings.trusted or request.sought:
            return False
        last = (request.prompt - 1) // PAGE_TOKENS
        least = holdings.reusable(request, idle) + max(1, disk.least // PAGE_TOKENS)
        found = disk.deepest(request.blocks, least, last)
        if found is None:
            request.sought = True
            self.misses += last >= least
            return False
        if self._fetch is not None:
            return True
        request.sought = True
        entry, depth = found
        disk.touch(entry.file)
        self._ticket += 1
        self._fetch = _Fetch(self._ticket, request, entry.file, entry.blocks[:depth])
        self._say(cmd.ReadDisk(self._ticket, entry.file, depth, entry.blocks[depth - 1]))
        return True

    def read(self, event: DiskRead) -> None:
        """The file is in memory and right, or it never will be."""
        fetch = self._expected(event.ticket, filling=False)
        if not event.ok:
            self._fetch = None
            if self._holdings.disk.drop(fetch.file):
                self.failures += 1
                self._say(cmd.DropFile(fetch.file))
            return
        order = self._fill(fetch) if self._waits(fetch.request) and self._holdings.trusted else None
        if order is None:
            self._fetch = None
            self.misses += 1
        self._say(order if order is not None else cmd.DropRead(fetch.ticket))

    def _expected(self, ticket: int, *, filling: bool) -> _Fetch:
        fetch = self._fetch
        if fetch is None or fetch.ticket != ticket or (fetch.filling is not None) != filling:
            raise IllegalTransition(f"news of a file that nobody waits for: ticket {ticket}")
        return fetch

    def _fill(self, fetch: _Fetch) -> cmd.WriteDisk | None:
        """Take pages and an image; None if there is no room now, or what they would hold has come meanwhile."""
        holdings, tree = self._holdings, self._holdings.tree
        path = tree.match(fetch.blocks, len(fetch.blocks))
        if len(path) == len(fetch.blocks) and path[-1].image is not None:
            return None
        path = [node for node in path if node.page is not None]
        node = path[-1] if path else tree.root
        missing = len(fetch.blocks) - len(path)
        short = holdings.room.to_give_up(missing)
        if short > 0 and LaneState.SAVING in self._lanes:
            return None  # that session could be given up before others, once it has been read
        if holdings.endangered(short, path, range(len(self._lanes))) is not None:
            return None
        tree.use(node)
        fits = missing <= holdings.room.to_promise()
        image = holdings.images.take(ImageKind.FRONTIER, None) if fits else None
        if image is None:
            tree.leave(node)
            return None
        image.users += 1
        pages = holdings.room.hand_out(self.owner, missing)
        fetch.filling = _Filling(node, image, pages, holdings.faults)
        return cmd.WriteDisk(fetch.ticket, len(path), pages, image.id, holdings.transfers())

    def done(self, event: DiskDone) -> None:
        """Pages and image hold what was read, or they do not."""
        fetch = self._expected(event.ticket, filling=True)
        holdings, filling = self._holdings, fetch.filling
        assert filling is not None
        image = filling.image
        image.users -= 1
        if event.ok and filling.faults == holdings.faults:
            path = holdings.plant(self.owner, filling.node, fetch.blocks, filling.pages)
            holdings.images.attach(image, path[-1])
            fetch.request.fetched = len(fetch.blocks) * PAGE_TOKENS
            self.hits += 1
        else:
            holdings.images.drop(image)
            holdings.abandon(filling.node)
            self.misses += 1
        holdings.pages.release(self.owner)
        self._fetch = None
