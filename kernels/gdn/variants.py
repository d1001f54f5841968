"""Compile-time values and launch options of the Triton routes, in one place for launches and for the compile matrix."""

from __future__ import annotations

ROUND_WARPS = 8
ROUND_GROUP = 4  # columns of a lane that a round of several works on at a time, even; no bit depends on it
HIDDEN_STEP = 1024  # values of x per step of the a and b projections
CONVOLVE_WARPS = 8
CONVOLVE_REGISTERS = 80  # three programs on a multiprocessor, too
PREPARE_WARPS = 4
PREPARE_REGISTERS = 168  # three
SCAN_WARPS = 4
SCAN_VALUES = 64  # value rows of the state per program of the scan
SCAN_STAGES = 3  # blocks of operands in shared memory at a time, where there is room for them; no bit depends on it
SCAN_SHARED_BYTES = 230920
FINISH_WARPS = 8
SUB_BLOCKS = 32  # blocks of 64 tokens that a chunk works on at a time: bounds the scratch

# Local memory per thread that is tolerated, in bytes.
ROUND_STACK_BYTES = 128
CONVOLVE_STACK_BYTES = 32
PREPARE_STACK_BYTES = 256
SCAN_STACK_BYTES = 1024


def round_group(columns: int) -> int:
    """Columns at a time of a round with so many per lane: a round of one is a binary of its own."""
    return 1 if columns == 1 else ROUND_GROUP


def prepare_registers(shared_bytes: int) -> int | None:
    """Limit of the preparation: 9.0 and 10.0, the chips with so much shared memory, multiply out of it; on the others
    the operands lie in registers too and would spill."""
    return PREPARE_REGISTERS if shared_bytes >= SCAN_SHARED_BYTES else None


def scan_stages(shared_bytes: int) -> int:
    """Stages of the scan for a chip with so much shared memory per program."""
    return SCAN_STAGES if shared_bytes >= SCAN_SHARED_BYTES else 1
