"""Compile-time values and launch options of the Triton routes, in one place for launches and for the compile matrix."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_WIDTH = 256  # the only width of the Triton routes
WARPS = 4
MAX_LANES = 32

SMALL_BLOCKS = 8  # of eight queries each; more are cut into larger blocks
ROUND_PROGRAMS = 3  # of four warps, that share a multiprocessor at 168 registers a thread; two may have 255


@dataclass(frozen=True, slots=True)
class Tile:
    """How the queries of a lane and key head are cut: `blocks` of `rows` queries each, a program for each.

    kept       whether a program keeps its queries in registers
    programs   of a multiprocessor
    registers  of a thread
    """

    rows: int
    blocks: int
    kept: bool
    programs: int
    registers: int


def round_tile(queries: int, int8: bool) -> Tile:
    """For so many queries, group times columns. Programs of neighbouring blocks read the same rows at the same time, so
    small blocks cost no memory as long as they are few, and a program has less to prepare and to merge than one of a
    large block. Rows of bf16 fill twice the registers."""
    rows = 8 if queries <= SMALL_BLOCKS * 8 else 32 if int8 else 16
    blocks = -(-queries // rows)
    if int8 and rows == 8:
        return Tile(rows, blocks, True, ROUND_PROGRAMS, 168)
    return Tile(rows, blocks, rows == 8, 2, 255)


# Prefill: tokens handled together by the kernels that move rows.
PREPARED_TOKENS = 8
MERGED_TOKENS = 4  # by the kernel that joins units

# Keys that are summed before their sums are joined with those before them. Joining passes values through memory once
# per unit; a short chunk behind a long history has as many programs as units.
UNIT_KEYS = 8192
# Programs per multiprocessor up to which a chunk is split: with more, the last ones to run are few among many.
SPLIT_BELOW = 2


@dataclass(frozen=True, slots=True)
class ChunkTile:
    """A program's `tokens` of one head meet `keys` at a time, `unit` keys (whole tiles) between two joins; described:
    rows are fetched by descriptor (9.0 on)."""

    tokens: int
    keys: int
    stages: int
    warps: int
    described: bool
    unit: int = UNIT_KEYS


# By compute capability; the keys of a tile fix the order of sums. Shared memory holds a tile of queries and the stages
# of both rows: 192 KiB, 128 KiB on 8.0, 96 KiB on the chips that have 99.
CHUNK_TILES = {
    80: ChunkTile(128, 32, 2, 8, described=False),
    86: ChunkTile(64, 32, 2, 8, described=False),
    89: ChunkTile(64, 32, 2, 8, described=False),
    90: ChunkTile(128, 64, 2, 8, described=True),
    100: ChunkTile(128, 64, 2, 8, described=True),
    120: ChunkTile(64, 32, 2, 8, described=False),
}


def chunk_tile(capability: int) -> ChunkTile:
    """The tile of a chip; one that is not listed takes that of the newest listed chip before it."""
    return CHUNK_TILES[max(known for known in CHUNK_TILES if known <= capability)]
