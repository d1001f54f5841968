"""Compile-time values and launch options of the Triton route, in one place for launches and for the compile matrix."""

from __future__ import annotations

from dataclasses import dataclass

# One-warp programs share the 65,536 registers of a multiprocessor. Their number fixes the order of sums.
PROGRAMS_PER_MULTIPROCESSOR = 16
REGISTERS = 128
FIRST_ROWS = 2048  # of the residual that `first_norm` takes at once
FIRST_WARPS = 8
HEAD_WARPS = 8
HEAD_KEEP = 32
HEAD_KEYS = 1024  # candidates that one program looks at
DEQUANTISE_STEPS = 4  # quanta of a program

# Tokens of a program that multiplies a short chunk; the last serve more with several programs.
CHUNK_TOKENS = (16, 32, 64, 128)
# Chips that multiply in groups of four warps, which takes 64 tokens or more and operands in shared memory.
_WARPGROUPS = (90, 100)
_WIDE_TILES = 8  # row tiles of a program where there are enough of them


@dataclass(frozen=True, slots=True)
class ChunkTile:
    """What a program of a short chunk's product takes at a time: row tiles, tokens, columns; steps in flight; warps.

    Any choice gives the same bits."""

    tiles: int
    tokens: int
    step: int
    stages: int
    warps: int


def chunk_tile(capability: int, multiprocessors: int, row_tiles: int, columns: int, tokens: int) -> ChunkTile:
    """The tile for a matrix on a chip.

    capability  compute capability times ten
    row_tiles   of the matrix
    columns     of the matrix, a multiple of 64
    tokens      of the chunk
    """
    few = -(-row_tiles // _WIDE_TILES) < multiprocessors
    tiles = _WIDE_TILES // 2 if few else _WIDE_TILES
    if capability not in _WARPGROUPS:
        taken = next((count for count in CHUNK_TOKENS[:2] if tokens <= count), CHUNK_TOKENS[2])
        return ChunkTile(tiles, taken, 64, 3, 4)
    taken = CHUNK_TOKENS[2] if tokens <= CHUNK_TOKENS[2] else CHUNK_TOKENS[3]
    # Few rows leave room for more columns at a time, which are fewer waits in a row.
    step = 128 if few and columns % 128 == 0 else 64
    return ChunkTile(tiles, taken, step, 3, 4 if taken == CHUNK_TOKENS[2] else 8)
