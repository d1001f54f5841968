"""What is said of reuse: sessions that lanes retain, how a request would begin, and what it holds while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer.scheduler.images import Image, ImageKind
from ninfer.scheduler.open_blocks import OpenBlock
from ninfer.scheduler.prefixes import Node
from ninfer.step import PAGE_TOKENS

# How a request can begin (serving spec, 14.2); the last one is ours.
FULL_RESET = "full_reset"
APPEND = ImageKind.FRONTIER.value
FROM_DISK = "restore_disk"
WAYS = (FULL_RESET, *(kind.value for kind in ImageKind), FROM_DISK)


@dataclass(slots=True, eq=False)
class Session:
    """A finished history that a lane retains.

    tokens     of the ledger: prompt and committed output; `executed` of them are in the cache
    tip        the deepest of its blocks
    resident   the block behind which the lane's own state stands; None if that is of no use
    open       the block that it ends in, if the lane stands there and a prompt may go on from that
    retained   when it was, for the choice of lanes; larger is later
    file       where it was saved to or restored from; empty for nowhere
    changed    whether the file has less of it
    offered    whether it was, as it is, read for the disk cache
    """

    number: int
    tokens: int
    executed: int
    tip: Node
    resident: Node | None
    retained: int
    file: str = ""
    changed: bool = False
    offered: bool = False
    open: OpenBlock | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request would begin in a lane: behind `path`, from the lane's own state (`image` None) or from an image; or
    behind everything that the lane has in its cache, inside the block `open` that follows.
    """

    lane: int
    path: tuple[Node, ...]
    image: Image | None
    open: OpenBlock | None = None

    @property
    def depth(self) -> int:
        """Full blocks that are reused."""
        return len(self.path)

    @property
    def tokens(self) -> int:
        """Positions that are reused."""
        return self.open.executed if self.open is not None else self.depth * PAGE_TOKENS

    def continues(self, session: Session | None) -> bool:
        """Whether what is reused is a beginning of the session's history."""
        if session is None or self.open is not None:
            return session is not None
        return bool(self.path) and self.path[-1].leads_to(session.tip)


@dataclass(frozen=True, slots=True)
class Begun:
    """What a request reuses, now that this is certain; `way` is a name of serving spec 14.2."""

    cached_tokens: int
    way: str
    host_restored: bool


@dataclass(slots=True)
class Hold:
    """What a running request has of the memory.

    path       its blocks in the tree, in use by it
    table      all its pages, in the order of its block table
    open       the block that it goes on in; until it has begun it may turn out to go on from elsewhere
    image      promised to it until its state is restored
    captures   states that its prompt passes and that are to be stored: depth in blocks and kind
    storing    depths of those that a step in flight stores
    file       that the session which it continues belongs to
    """

    session: int = 0
    path: list[Node] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    open: OpenBlock | None = None
    image: Image | None = None
    captures: dict[int, ImageKind] = field(default_factory=dict)
    storing: set[int] = field(default_factory=set)
    begun: bool = False
    needed: int = 0
    file: str = ""

    @property
    def promised(self) -> int:
        """Positions that it will reuse at least."""
        return self.open.executed if self.open is not None else len(self.path) * PAGE_TOKENS

    def owner_of(self, kind: ImageKind) -> int | None:
        """The session that an image of a kind belongs to; None if it is for everybody."""
        return None if kind is ImageKind.SHARED else self.session


def way_of(plan: Plan, *, own: bool) -> str:
    """How a plan reuses what it does; `own` if that is of the session its lane had."""
    if not plan.tokens:
        return FULL_RESET
    if plan.image is None or plan.image.kind is ImageKind.FRONTIER:
        return APPEND
    return plan.image.kind.value if own else ImageKind.SHARED.value
