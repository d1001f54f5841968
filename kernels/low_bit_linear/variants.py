"""Compile-time values and launch options of the Triton route, in one place for launches and for the compile matrix."""

from __future__ import annotations

FINISH_TILES = 8  # 128 rows, buffers.NORM_ROWS
FINISH_WARPS = 4
HEAD_TILES = 32
HEAD_WARPS = 8
HEAD_KEEP = 32
MERGE_KEYS = 4096


def programs_per_multiprocessor(*bits: int) -> int:
    """One-warp programs that share a multiprocessor's 65,536 registers; the same for all widths, for it fixes the sums.

    Sixteen at 128 registers. Two operands of six bits a weight need 144 with 16 columns: fourteen.
    """
    return 14 if 6 in bits else 16


def registers(width: int, *bits: int) -> int:
    """Registers per thread that the compiler may use.

    32 columns take all there are; half of the programs then wait for the other half, which changes no sum.
    """
    if width == 32:
        return 255
    return 144 if 6 in bits and width == 16 else 128
