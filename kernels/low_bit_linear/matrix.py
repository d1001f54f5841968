"""Every binary of this op that a registered model uses on a chip, for the compile matrix.

qwen3_6_27b: 4 and 5 bits together (attention, GDN), 4 (gate_up, draft head), 5 (output, down), 6 (head), 8 (MTP);
qwen3_8_27b: the same with an 8-bit head; qwen3_6_35b_a3b: 8 (all but the routed experts), 6 (head), 4 (draft head).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ninfer.kernels.compile_matrix.chips import Chip
from ninfer.kernels.compile_matrix.variant import Variant
from ninfer.kernels.low_bit_linear import variants
from ninfer.kernels.low_bit_linear.buffers import WIDTHS
from ninfer.kernels.low_bit_linear.packing import PACKINGS, tiles
from ninfer.kernels.low_bit_linear.schedule import deal
from ninfer.kernels.low_bit_linear.triton_dequantise import dequantise
from ninfer.kernels.low_bit_linear.triton_finish import finish_residual, finish_rows, finish_silu_mul
from ninfer.kernels.low_bit_linear.triton_head import finish_head, merge_keys
from ninfer.kernels.low_bit_linear.triton_stream import stream_one, stream_two

# Launches by what finishes them: matrices (N, K, bits) that share the launch.
ROWS_27B = (((4096, 5120, 4), (12288, 5120, 5)), ((7168, 5120, 4), (7168, 5120, 5)), ((14336, 5120, 8),))
RESIDUAL_27B = (((5120, 6144, 5),), ((5120, 17408, 5),), ((5120, 6144, 8),), ((5120, 17408, 8),), ((5120, 10240, 8),))
GATE_27B = (((34816, 5120, 4),), ((34816, 5120, 8),))
HEAD_27B = (((248320, 5120, 6),), ((248320, 5120, 8),), ((131072, 5120, 4),))
ROWS_35B = (((9216, 2048, 8),), ((12288, 2048, 8),))
RESIDUAL_35B = (((2048, 4096, 8),), ((2048, 512, 8),))
GATE_35B = (((1024, 2048, 8),),)
HEAD_35B = (((248320, 2048, 6),), ((131072, 2048, 4),))

# Sixteen columns: up to seven of a loop's 350 to 420 instructions spill and restore: cheaper than fewer programs
# with more registers. Six bits a weight: an invariant of the loop does not fit.
STACK_BYTES = {16: 64}
STACK_BYTES_SIX = 16

Launch = tuple[tuple[int, int, int], ...]


@cache
def slots_of(launch: Launch, chip: Chip) -> tuple[int, ...]:
    """Slots of each matrix of a launch on a chip."""
    programs = chip.multiprocessors * variants.PROGRAMS_PER_MULTIPROCESSOR
    shapes = [(tiles(rows), PACKINGS[bits].quanta(columns)) for rows, columns, bits in launch]
    return tuple(schedule.slots for schedule in deal(shapes, programs))


def matrix(chip: Chip) -> Iterator[Variant]:
    """All variants for a chip."""
    for width in WIDTHS:
        yield from _products(width, chip.dependent_launch)
    yield from _finishing(chip)
    for bits in PACKINGS:
        constants: dict[str, object] = {"BITS": bits, "STEPS": variants.DEQUANTISE_STEPS}
        pointers = {"words": "i32", "out": "bf16"}
        yield Variant(f"dequantise, {bits} bits", dequantise, pointers, constants, warps=1, dependent=False)


def _products(width: int, dependent: bool) -> Iterator[Variant]:
    pointers = {"x": "bf16", "words": "i32", "part": "fp32"}
    for bits in PACKINGS:
        yield Variant(
            f"{bits} bits, {width} columns",
            stream_one,
            pointers,
            {"BITS": bits, "WIDTH": width, "DEPENDENT": dependent},
            warps=1,
            dependent=dependent,
            registers=variants.REGISTERS,
            streams=True,
            stack_bytes=STACK_BYTES.get(width, STACK_BYTES_SIX if bits == 6 else 0),
        )
    yield Variant(
        f"4 and 5 bits, {width} columns",
        stream_two,
        pointers | {"words2": "i32", "part2": "fp32"},
        {"BITS": 4, "BITS2": 5, "WIDTH": width, "DEPENDENT": dependent},
        warps=1,
        dependent=dependent,
        registers=variants.REGISTERS,
        streams=True,
        stack_bytes=STACK_BYTES.get(width, 0),
    )


def _finishing(chip: Chip) -> Iterator[Variant]:
    """Each once, though both sizes of model may use it."""
    seen = set()
    for variant in _finishing_by_model(chip):
        key = (variant.kernel, tuple(sorted(variant.constants.items())))
        if key not in seen:
            seen.add(key)
            yield variant


def _finishing_by_model(chip: Chip) -> Iterator[Variant]:
    dependent = chip.dependent_launch
    wide = WIDTHS[-1]  # the widest: the others differ by one constant in an address
    common: dict[str, object] = {"TILES": variants.FINISH_TILES, "DEPENDENT": dependent}
    normed: dict[str, object] = {"NORM_PADDED": variants.NORM_PADDED}
    for hidden, rows, residual, gate, head in (
        (5120, ROWS_27B, RESIDUAL_27B, GATE_27B, HEAD_27B),
        (2048, ROWS_35B, RESIDUAL_35B, GATE_35B, HEAD_35B),
    ):
        for slots in _distinct(rows, chip):
            constants = common | normed | {"SLOTS": slots}
            yield _finish(f"rows of {hidden}, {slots} slots", finish_rows, constants, {"out": "bf16"}, dependent)
        for slots in _distinct(gate, chip):
            constants = common | normed | {"SLOTS": slots, "WIDTH": wide}
            yield _finish(f"gate of {hidden}, {slots} slots", finish_silu_mul, constants, {"out": "bf16"}, dependent)
        for slots in (0, *_distinct(residual, chip)):
            constants = common | {"SLOTS": slots, "WIDTH": wide}
            kept = {"residual": "bf16", "weight": "fp32", "out": "bf16"}
            yield _finish(f"residual of {hidden}, {slots} slots", finish_residual, constants, kept, dependent)
        for slots in _distinct(head, chip):
            for keep in (1, variants.HEAD_KEEP):
                constants = common | normed | {"SLOTS": slots, "KEEP": keep, "LOGITS": keep > 1}
                constants["TILES"] = variants.HEAD_TILES
                pointers = {"logits": "fp32", "keys": "i64"}
                yield _finish(f"head of {hidden}, {slots} slots, {keep}", finish_head, constants, pointers, dependent)
    for keep in (1, variants.HEAD_KEEP):
        constants = {"PADDED": variants.MERGE_KEYS, "KEEP": keep, "DEPENDENT": dependent}
        pointers = {"keys": "i64", "merged": "i64"}
        yield Variant(f"merge, {keep}", merge_keys, pointers, constants, warps=variants.HEAD_WARPS, dependent=dependent)


def _distinct(launches: tuple[Launch, ...], chip: Chip) -> tuple[int, ...]:
    return tuple(sorted({slots for launch in launches for slots in slots_of(launch, chip)}))


def _finish(
    name: str, kernel: object, constants: dict[str, object], pointers: dict[str, str], dependent: bool
) -> Variant:
    normed = "NORM_PADDED" in constants
    warps = variants.HEAD_WARPS if kernel is finish_head else variants.FINISH_WARPS
    return Variant(
        name,
        kernel,
        {"part": "fp32", "squares": "fp32"} | pointers,
        constants,
        warps=warps,
        dependent=dependent,
        floats=frozenset({"eps"}) if normed else frozenset(),
    )
