"""Compile-time values and launch options of the Triton routes, in one place for launches and for the compile matrix."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_WIDTH = 256  # the only width of the Triton routes
WARPS = 4
MAX_LANES = 32

# Decode: programs share a multiprocessor's registers; 168 a thread is what three of four warps may have.
ROUND_PROGRAMS = 3
ROUND_REGISTERS = 168


@dataclass(frozen=True, slots=True)
class Tile:
    """How the queries of a lane and key head are cut: `blocks` passes over the keys with `rows` queries each.

    kept  whether a pass keeps its queries in registers
    """

    rows: int
    blocks: int
    kept: bool

    @property
    def padded(self) -> int:
        return self.rows * self.blocks


def round_tile(queries: int, int8: bool) -> Tile:
    """For so many queries, group times columns. Rows of bf16 fill twice the registers, so tiles are half as large."""
    largest = 32 if int8 else 16
    rows = next((rows for rows in (8, 16, 32) if queries <= rows), 32)
    rows = min(rows, largest)
    return Tile(rows, -(-queries // rows), rows <= 16)
