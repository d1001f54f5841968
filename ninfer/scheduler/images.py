"""Stored states as numbers: which image belongs to which block, and which goes when room is needed (serving spec, 14.4,
14.5, 14.11). An image is about as large as 70 pages of a 27B model, so there are few.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ninfer.errors import IllegalTransition
from ninfer.step import PAGE_TOKENS
from ninfer.types import Marks

if TYPE_CHECKING:
    from ninfer.scheduler.prefixes import Node

# Distance that turn checkpoints keep from the one kept before (14.5).
RING_SPACING_TOKENS = 4096
# A beginning shorter than this is not worth an image (14.11), nor a message's tail (14.4).
SHARED_TOKENS = 256
TAIL_TOKENS = 1024
TAIL_GRID = 256
TAIL_DISTANCE = 64


class ImageKind(Enum):
    """Why a state was stored, and for whom; the value is the name of a reuse from it (14.2)."""

    TURN = "restore_turn_checkpoint"  # a lane's turn checkpoints: the newest and the ring
    ANCHOR = "restore_user_turn_anchor"  # beginning, end and tail of a user message
    SHARED = "fork_shared_prefix"  # a beginning that other conversations have as well
    FRONTIER = "append_frontier"  # where a session ended whose lane was taken


@dataclass(slots=True, eq=False)
class Image:
    """One stored state.

    session    number of the session it belongs to; only its lane goes on from here while that is idle. None: anybody
    users      requests that have been promised it
    surpassed  nobody's any more, and behind it the same history has a deeper one
    """

    id: int
    kind: ImageKind
    session: int | None
    node: Node | None = None
    users: int = 0
    used: int = 0
    surpassed: bool = False


class ImageStore:
    """Room for `capacity` images; the one used longest ago makes room for a new one.

    shared_stored, shared_dropped   how many of beginnings that conversations share came and went
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity))
        self._stored: dict[int, Image] = {}
        self._clock = 0
        self.shared_stored = 0
        self.shared_dropped = 0

    @property
    def shared(self) -> list[Image]:
        """Those of beginnings that conversations share."""
        return [image for image in self._stored.values() if image.kind is ImageKind.SHARED]

    @property
    def stored(self) -> tuple[Image, ...]:
        """All images, in flight or attached."""
        return tuple(self._stored.values())

    def take(self, kind: ImageKind, session: int | None) -> Image | None:
        """A place for a state that is about to be captured, or None if every image is promised to somebody."""
        if not self._free and not self.drop_oldest(self._stored.values()):
            return None
        image = Image(heapq.heappop(self._free), kind, session)
        self._stored[image.id] = image
        self.touch(image)
        return image

    def drop_oldest(self, images: Iterable[Image]) -> bool:
        """Forget the one that was used longest ago; False if every one is promised to somebody or on its way."""
        idle = [image for image in images if not image.users and image.node is not None]
        if idle:
            # A beginning that conversations share serves more of them than anything else, and there are few.
            # Who comes back to a history goes on from its deepest state.
            self.drop(min(idle, key=lambda image: (image.kind is ImageKind.SHARED, not image.surpassed, image.used)))
        return bool(idle)

    def attach(self, image: Image, node: Node) -> bool:
        """The state behind `node` is in the image now; False, and dropped, if one that is promised holds it already."""
        if node.image is not None:
            if node.image.users:
                self.drop(image)
                return False
            self.drop(node.image)
        image.node, node.image = node, image
        self.shared_stored += image.kind is ImageKind.SHARED
        return True

    def touch(self, image: Image) -> None:
        """Note that it was asked for."""
        self._clock += 1
        image.used = self._clock
        image.surpassed = False

    def drop(self, image: Image) -> None:
        """Forget an image."""
        if image.node is not None:
            self.shared_dropped += image.kind is ImageKind.SHARED
            image.node.image = None
            image.node = None
        if self._stored.pop(image.id, None) is None:
            raise IllegalTransition(f"image {image.id} is dropped twice")
        heapq.heappush(self._free, image.id)

    def clear(self) -> None:
        """Forget all of them, but for those that somebody is writing."""
        for image in self.stored:
            if image.node is not None or not image.users:
                self.drop(image)

    def audit(self) -> None:
        """Raise unless each is free or stored, and blocks and images agree."""
        if sorted([*self._free, *self._stored]) != list(range(self.capacity)):
            raise IllegalTransition("an image is lost or stored twice")
        for image in self._stored.values():
            if image.node is not None and (image.node.image is not image or not image.node.alive):
                raise IllegalTransition(f"image {image.id} belongs to a block that knows nothing of it")


def folded(ring: Sequence[int], frontier: int, size: int) -> list[int]:
    """The ring of turn checkpoints after another one: frontiers in tokens, ascending (14.5).

    An equal frontier is replaced; then the oldest is kept, an intermediate one only at a distance of
    :data:`RING_SPACING_TOKENS` from the last kept, and the newest always; then the oldest go while there are too many.
    """
    if size == 0:
        return []
    all_ = [*(other for other in ring if other < frontier), frontier]
    kept: list[int] = []
    for other in all_:
        if not kept or other == frontier or other - kept[-1] >= RING_SPACING_TOKENS:
            kept.append(other)
    return kept[-size:]


def states_on_the_way(marks: Marks, *, shared: bool) -> dict[int, ImageKind]:
    """States of a prompt that are worth storing, by depth in blocks (14.4, 14.11); `shared` whether any may be kept of
    a beginning that is there for everybody.
    """
    wanted = []
    if marks.message_end:
        wanted.append((marks.message_begin, ImageKind.ANCHOR))
        wanted.append((marks.message_end, ImageKind.ANCHOR))
        if marks.message_end - marks.message_begin >= TAIL_TOKENS:
            wanted.append(((marks.message_end - TAIL_DISTANCE) // TAIL_GRID * TAIL_GRID, ImageKind.ANCHOR))
    if marks.preamble >= SHARED_TOKENS and shared:
        wanted.append((marks.preamble, ImageKind.SHARED))
    if marks.turn:
        wanted.append((marks.turn, ImageKind.TURN))
    return {tokens // PAGE_TOKENS: kind for tokens, kind in wanted}
