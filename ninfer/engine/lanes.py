"""What an engine remembers of a lane, and the rules of ``ninfer.step`` that a plan has to keep.

A plan that breaks one is a fault of ours: assertions say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.step import PAGE_TOKENS, DecodeRound, DecodeRow, LaneSetup, PageMapping, PrefillChunk, pages_for


@dataclass(frozen=True, slots=True)
class TableLimits:
    """max_tokens: of a sequence; pages: of the pool; room: pages of one lane's table."""

    max_tokens: int
    pages: int
    room: int


@dataclass(slots=True)
class Lane:
    """setup        law and stop ids of the running request
    pages        in the lane's table
    frontier     positions in the cache
    state_block  block whose entry state and columns the lane holds; 0 has none
    is_masked    not every id may be drawn
    mask         that all columns of the lane have, if it is one and the same; a round need not bring it along again
    halts        ids that end a round of the lane
    """

    setup: LaneSetup | None = None
    pages: int = 0
    frontier: int = 0
    state_block: int = 0
    is_masked: bool = False
    mask: bytes | None = None
    halts: bytes | None = None

    def restarted(self, setup: LaneSetup, begin: int) -> Lane:
        """The lane for a request whose first chunk begins at a block start, or where the lane stands; beyond 0 it goes
        on from what it holds.
        """
        block = begin // PAGE_TOKENS
        assert begin == 0 or self.state_block == block, f"chunk at {begin}, state of block {self.state_block}"
        assert not begin % PAGE_TOKENS or self.frontier == begin, f"chunk at {begin}, lane at {self.frontier}"
        return Lane(setup, 0, begin, block)

    def advance(self, end: int) -> None:
        """The lane has read up to `end`, and its state is that of the block in which the next position stands."""
        self.frontier, self.state_block = end, end // PAGE_TOKENS

    def map(self, mapping: PageMapping, end: int, limits: TableLimits) -> slice | None:
        """Count pages that are appended to the lane's table, and see that positions below `end` have one.

        returns  the entries of the table that the pages go to, or None if there are no pages
        """
        assert end <= limits.max_tokens, f"position {end - 1} beyond the longest sequence"
        entries = None
        if mapping.pages:
            last = mapping.first + len(mapping.pages)
            assert mapping.first == self.pages, f"mapping at {mapping.first}, table has {self.pages}"
            assert all(0 <= page < limits.pages for page in mapping.pages), "a page outside the pool"
            assert last <= limits.room, f"a table has room for {limits.room} pages"
            entries, self.pages = slice(mapping.first, last), last
        assert pages_for(end) <= self.pages, f"position {end - 1} has no page"
        return entries

    def check_chunk(self, chunk: PrefillChunk) -> None:
        """The chunk begins where the lane stands, once it has been set up."""
        assert chunk.begin == self.frontier, f"chunk at {chunk.begin}, lane at {self.frontier}"

    def check_row(self, row: DecodeRow) -> None:
        """A row of a round stands where the lane does, behind a prompt."""
        assert row.position == self.frontier > 0, f"row at {row.position}, lane at {self.frontier}"
        assert len(row.copied or ()) <= row.drafts, f"{len(row.copied or ())} guesses where {row.drafts} may be"
        changes = row.mask is not None and row.halts is None
        wanted = len(row.copied) if changes and row.copied is not None else 0
        assert len(row.masks) == wanted, f"{len(row.masks)} masks behind guesses, {wanted} wanted"
        assert not changes or row.copied is not None or not row.drafts, "guesses of the drafter behind a mask"
        assert row.halts is None or row.mask is not None, "what ends the time of a mask, without one"

    @property
    def running(self) -> LaneSetup:
        """The set-up of a lane that has one."""
        assert self.setup is not None, "a lane that was never set up"
        return self.setup


def check_chunk(chunk: PrefillChunk) -> None:
    """What holds for every chunk, before its lane is set up."""
    assert chunk.token_ids, "an empty chunk"
    assert chunk.setup is not None or chunk.begin > 0, "setup comes with a lane's first chunk"
    assert chunk.setup is not None or not chunk.begin % PAGE_TOKENS, "only a first chunk begins inside a block"


def lanes_of(plan: DecodeRound) -> tuple[int, ...]:
    """The lanes of a round, in row order."""
    lanes = tuple(row.lane for row in plan.rows)
    assert lanes, "an empty round"
    assert len(set(lanes)) == len(lanes), "a lane twice in one round"
    return lanes
