"""Every binary of rounds and chunks that a registered model uses on a chip, for the compile matrix.

All members of the family have key and value heads of 128; the numbers of heads are run-time values.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ninfer.kernels.compile_matrix.chips import Chip
from ninfer.kernels.compile_matrix.variant import Variant
from ninfer.kernels.gdn import variants
from ninfer.kernels.gdn.gluon_round import gdn_round
from ninfer.kernels.gdn.slots import KEY_ROWS, RING, ROWS
from ninfer.kernels.gdn.triton_chunk import convolve_blocks, finish_rows, prepare_blocks, scan_blocks

WIDTH = 128
HIDDEN = (5120, 2048)
APART = 16  # divides the rows of every input product

_INPUTS = {"first": "bf16", "second": "bf16", "ab": "bf16", "ring": "bf16", "open_k": "bf16", "open_g": "fp32"}
_INPUTS |= {"taps": "fp32", "decay_rate": "fp32", "dt_bias": "fp32"}
_SCRATCH = {"queries": "bf16", "keys": "bf16", "values": "bf16", "inverses": "bf16", "inside": "bf16"}
_SCRATCH |= {"factors": "fp32"}
_NUMBERS = {"lanes": "i32", "positions": "i32", "state_blocks": "i32"}


def matrix(chip: Chip) -> Iterator[Variant]:
    """All variants for a chip."""
    widths: dict[str, object] = {"DK": WIDTH, "DV": WIDTH}
    for hidden, group in product(HIDDEN, (1, variants.ROUND_GROUP)):
        yield Variant(
            f"round of {group}, {hidden} wide",
            gdn_round,
            _INPUTS | _NUMBERS
            | {"x": "bf16", "squares": "i64", "norm": "fp32", "s": "fp32", "open_u": "fp32"}
            | {"out": "bf16"},
            widths
            | {"KEY_ROWS": KEY_ROWS, "ROWS": ROWS, "RING": RING, "GROUP": group}
            | {"STEPS": -(-hidden // variants.HIDDEN_STEP), "STEP": variants.HIDDEN_STEP}
            | {"EXACT": hidden % variants.HIDDEN_STEP == 0}
            | {"DEPENDENT": chip.dependent_launch},
            warps=variants.ROUND_WARPS,
            dependent=chip.dependent_launch,
            floats=frozenset({"x_eps", "eps", "scale"}),
            stack_bytes=variants.ROUND_STACK_BYTES,
        )  # fmt: skip
    rows = {"open_k": "bf16", "open_u": "fp32", "open_g": "fp32"}
    yield Variant(
        "convolve",
        convolve_blocks,
        {"first": "bf16", "second": "bf16", "taps": "fp32", "ring": "bf16"}
        | {"queries": "bf16", "keys": "bf16", "values": "bf16"},
        widths | {"RING": RING, "APART": APART},
        warps=variants.CONVOLVE_WARPS,
        registers=variants.CONVOLVE_REGISTERS,
        dependent=False,
        stack_bytes=variants.CONVOLVE_STACK_BYTES,
    )
    yield Variant(
        "prepare",
        prepare_blocks,
        {"ab": "bf16", "decay_rate": "fp32", "dt_bias": "fp32", "queries": "bf16", "keys": "bf16"}
        | {"inverses": "bf16", "inside": "bf16", "factors": "fp32"},
        {"DK": WIDTH},
        warps=variants.PREPARE_WARPS,
        registers=variants.prepare_registers(chip.shared_bytes),
        dependent=False,
        floats=frozenset({"scale"}),
        stack_bytes=variants.PREPARE_STACK_BYTES,
    )
    yield Variant(
        "scan",
        scan_blocks,
        _SCRATCH | {"s": "fp32", "mixed": "fp32"} | rows,
        widths
        | {"SLICE": variants.SCAN_VALUES, "KEY_ROWS": KEY_ROWS, "ROWS": ROWS}
        | {"STAGES": variants.scan_stages(chip.shared_bytes)},
        warps=variants.SCAN_WARPS,
        dependent=False,
        stack_bytes=variants.SCAN_STACK_BYTES,
    )
    yield Variant(
        "finish",
        finish_rows,
        {"mixed": "fp32", "first": "bf16", "second": "bf16", "norm": "fp32", "keys": "bf16", "factors": "fp32"}
        | {"ring": "bf16", "open_k": "bf16", "open_g": "fp32", "out": "bf16"},
        widths | {"KEY_ROWS": KEY_ROWS, "ROWS": ROWS, "RING": RING, "APART": APART},
        warps=variants.FINISH_WARPS,
        dependent=False,
        floats=frozenset({"eps"}),
    )
