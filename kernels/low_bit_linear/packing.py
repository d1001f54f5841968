"""The order of packed weights, bit by bit. Every other file of this op follows these tables.

One warp multiplies 16 rows at a time with ``mma.sync.m16n8k16``. Weights lie in memory as *quanta*: 16 rows times four
groups of columns, codes first, then scales, in the order in which that warp's lanes load them and feed them on. Row
tiles of 16 rows follow each other, and within a tile its quanta: a program reads one contiguous stream.

Lane ``4 g + t`` (g 0..7, t 0..3) holds rows ``8 r + g`` of the tile and, in group i (0..3), the columns
``32 h + 8 t + 4 u + 2 v + e`` of the group (r, u, v, e bits; h a bit for groups of 64, always 0 for groups of 32).
Columns e = 0, 1 form pair ``p = 8 h + 4 u + 2 v + r``; the code of e = 0 lies in the low half of a word and that of
e = 1 at the same bits of the high half. The lane has `lane_words` words per group; word ``n = lane_words * i + k`` of
its quantum is stored at ``128 * (n // 4) + 4 * lane + n % 4``, so that loads are 16 bytes per lane, lanes adjoining.
Scales ``[g][i][r]`` fp16 follow: 16 bytes per g, shared by its four lanes.

Codes of 4 to 6 bits are stored as ``code + 2**(bits - 1)``: or-ed into the mantissa of 128.0 they give a bfloat16 from
which one exact fused multiply-add takes the offset. Eight bits do not fit beside the seven of a mantissa: there the
low seven go into 128.0 and the sign bit turns the addend -128.0 into -256.0, which is one more logic operation, and
less per byte than 4 bits need. A quantum has four groups in any format; with groups of 32 it is half as wide, which
makes a quantum of 8 bits as large as one of 4 and lets one loader, one number of registers and one schedule serve both.
"""

from __future__ import annotations

from dataclasses import dataclass

TILE_ROWS = 16
PAIR_ROWS = TILE_ROWS // 2  # rows of each half of a paired matrix in a tile
GROUPS = 4  # groups of columns in a quantum
SCALE_WORDS = 32  # 16 rows x 4 groups x 2 bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """`width` bits of the code of a pair: bits [low, low + width) of the code, bits [shift, ...) of a half word."""

    pair: int
    low: int
    width: int
    word: int
    shift: int


@dataclass(frozen=True, slots=True)
class Packing:
    """One format.

    bits        width of a code
    group       columns that share a scale
    lane_words  32-bit words of one lane in one group
    offset      what is added to a code before it is stored, modulo 2**bits
    pieces      where the bits of every pair are
    """

    bits: int
    group: int
    lane_words: int
    offset: int
    pieces: tuple[Piece, ...]

    @property
    def pairs(self) -> int:
        """Pairs of codes that a lane holds in one group."""
        return self.group // 4

    @property
    def columns(self) -> int:
        """Columns of a quantum."""
        return GROUPS * self.group

    @property
    def words(self) -> int:
        """32-bit words of a quantum."""
        return 32 * GROUPS * self.lane_words + SCALE_WORDS

    def quanta(self, columns: int) -> int:
        """Quanta of one row tile of a matrix with `columns` columns; the last one is filled up with zeros."""
        return -(-columns // self.columns)


def tiles(rows: int) -> int:
    """Row tiles of a matrix; the last one is filled up with zero rows."""
    return -(-rows // TILE_ROWS)


def _five() -> tuple[Piece, ...]:
    whole = tuple(Piece(p, 0, 5, p // 3, 5 * (p % 3)) for p in range(15))
    return whole + tuple(Piece(15, bit, 1, bit, 15) for bit in range(5))


def _six() -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for triple in (0, 1):
        pair, word = 8 * triple, 3 * triple
        pieces += [Piece(pair + p, 0, 6, word + p // 2, 6 * (p % 2)) for p in range(6)]
        pieces += [Piece(pair + 6, 0, 4, word, 12), Piece(pair + 6, 4, 2, word + 1, 12)]
        pieces += [Piece(pair + 7, 0, 4, word + 2, 12), Piece(pair + 7, 4, 2, word + 1, 14)]
    return tuple(pieces)


PACKINGS: dict[int, Packing] = {
    4: Packing(4, 64, 4, 8, tuple(Piece(p, 0, 4, p // 4, 4 * (p % 4)) for p in range(16))),
    5: Packing(5, 64, 5, 16, _five()),
    6: Packing(6, 64, 6, 32, _six()),
    8: Packing(8, 32, 4, 0, tuple(Piece(p, 0, 8, p // 2, 8 * (p % 2)) for p in range(8))),
}
