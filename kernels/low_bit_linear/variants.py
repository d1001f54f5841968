"""Compile-time values and launch options of the Triton route, in one place for launches and for the compile matrix."""

from __future__ import annotations

# One-warp programs share the 65,536 registers of a multiprocessor. Their number fixes the order of sums.
PROGRAMS_PER_MULTIPROCESSOR = 16
REGISTERS = 128
FIRST_ROWS = 2048  # of the residual that `first_norm` takes at once
FIRST_WARPS = 8
HEAD_WARPS = 8
HEAD_KEEP = 32
HEAD_KEYS = 1024  # candidates that one program looks at
DEQUANTISE_STEPS = 4  # quanta of a program
