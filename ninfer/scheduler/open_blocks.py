"""The block that a lane has begun when its request ends: whose history goes on gets it as it is (serving spec, 14.2).

The page of such a block belongs to one session, unlike those of full blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.scheduler.prefixes import Node
from ninfer.scheduler.requests import Request
from ninfer.step import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """owner      the request that has left it, whose history it ends
    executed   positions in the cache, the last of them in this block
    page       of the block
    """

    owner: int
    executed: int
    page: int

    @property
    def depth(self) -> int:
        """Full blocks before it."""
        return self.executed // PAGE_TOKENS


def may_go_on(request: Request, path: Sequence[Node], block: OpenBlock, resident: Node | None) -> bool:
    """Whether a prompt that begins with the blocks of `path` goes on behind everything that a lane has in its cache,
    whose state is that behind `resident`.
    """
    if block.executed > min(request.follows.get(block.owner, 0), request.prompt - 1):
        return False
    return not block.depth or (block.depth <= len(path) and path[block.depth - 1] is resident)
