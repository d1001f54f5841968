"""Compile-time values and launch options of the Triton route, in one place for launches and for the compile matrix."""

from __future__ import annotations

from ninfer.kernels.low_bit_linear.buffers import NORM_ROWS
from ninfer.kernels.low_bit_linear.packing import TILE_ROWS

# One-warp programs share the 65,536 registers of a multiprocessor. Their number fixes the order of sums.
PROGRAMS_PER_MULTIPROCESSOR = 16
REGISTERS = 128
FINISH_TILES = NORM_ROWS // TILE_ROWS  # a finishing program writes one sum of squares
FINISH_WARPS = 8
NORM_PADDED = 64  # blocks of buffers.NORM_ROWS rows that a norm may have, a power of two
HEAD_TILES = 16
HEAD_WARPS = 8
HEAD_KEEP = 32
MERGE_KEYS = 1024
DEQUANTISE_STEPS = 4  # quanta of a program
