"""Which program computes what: contiguous runs of quanta, fixed by the matrix and the number of programs alone.

The quanta of a matrix are numbered row tile by row tile. Of U quanta, each of G programs takes U // G or one more. A
run may begin and end inside a row tile; each program that worked on a tile writes its sum to a slot of its own,
numbered in program order, and whoever reads the sums adds the slots in that order. So the order of every sum is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Small matrices get fewer programs than fit: each part of a row tile costs its reader as much as the tile itself.
PROGRAMS_PER_TILE = 8
INVERSE_BITS = 30


def inverse(divisor: int) -> int:
    """i with n * i >> 30 = n // divisor, or one more, for 0 <= n < 2**30: programs divide by multiplication."""
    return (1 << INVERSE_BITS) // divisor + 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """tiles: row tiles; quanta: of each tile; programs: at most tiles * quanta."""

    tiles: int
    quanta: int
    programs: int

    def __post_init__(self) -> None:
        assert 1 <= self.programs <= self.tiles * self.quanta

    def owner(self, quantum: int) -> int:
        """The program that computes a quantum."""
        base, longer = divmod(self.tiles * self.quanta, self.programs)
        border = longer * (base + 1)
        return quantum // (base + 1) if quantum < border else longer + (quantum - border) // base

    @property
    def slots(self) -> int:
        """Largest number of programs that share a row tile."""
        first = (tile * self.quanta for tile in range(self.tiles))
        return max(self.owner(quantum + self.quanta - 1) - self.owner(quantum) + 1 for quantum in first)


def deal(shapes: Sequence[tuple[int, int]], programs: int) -> tuple[Schedule, ...]:
    """Programs for matrices that share a launch, each (tiles, quanta), in proportion to their quanta.

    By quanta and not by bytes: a step takes nearly the same time for 4 and 5 bits, and the launch ends with its slowest
    program. A matrix gets at least one, never more programs than quanta or than eight per row
    tile.
    """
    assert programs >= len(shapes)
    steps = [tiles * quanta for tiles, quanta in shapes]
    most = [tiles * min(quanta, PROGRAMS_PER_TILE) for tiles, quanta in shapes]
    left, total, dealt = programs, sum(steps), []
    for later, (tiles, quanta), count, limit in zip(reversed(range(len(shapes))), shapes, steps, most, strict=True):
        share = min(limit, left - later, max(1, round(left * count / total)))
        dealt.append(Schedule(tiles, quanta, share))
        left, total = left - share, total - count
    return tuple(dealt)


def slots_for(slots: int) -> int:
    """The slots to allocate and to compile for, for a launch whose tiles have up to `slots`: a power of two, at least
    two. A finisher asks for all at once; those a tile does not have cost an instruction."""
    return max(2, 1 << (slots - 1).bit_length())
