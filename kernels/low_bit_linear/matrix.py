"""Every binary of this op that a registered model uses on a chip, for the compile matrix.

qwen3_6_27b: 4 and 5 bits together (attention, GDN), 4 (gate_up, draft head), 5 (output, down), 6 (head), 8 (MTP);
qwen3_8_27b: the same with an 8-bit head; qwen3_6_35b_a3b: 8 (all but the routed experts), 6 (head), 4 (draft head).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ninfer.kernels.compile_matrix.chips import Chip
from ninfer.kernels.compile_matrix.variant import Variant
from ninfer.kernels.low_bit_linear import triton_products, triton_separate, variants
from ninfer.kernels.low_bit_linear.buffers import WIDTHS
from ninfer.kernels.low_bit_linear.packing import PACKINGS, tiles
from ninfer.kernels.low_bit_linear.schedule import deal, slots_for
from ninfer.kernels.low_bit_linear.triton_chunk import product_chunk
from ninfer.kernels.low_bit_linear.triton_dequantise import dequantise
from ninfer.kernels.low_bit_linear.triton_head import block_keys, merge_keys

Launch = tuple[tuple[int, int, int], ...]

# Launches by what they do with their sums: matrices (N, K, bits) that share the launch.
ROWS: tuple[Launch, ...] = (
    ((4096, 5120, 4), (12288, 5120, 5)), ((7168, 5120, 4), (7168, 5120, 5)), ((14336, 5120, 8),),
    ((7168, 5120, 8), (7168, 5120, 8)),
    ((248320, 5120, 6),), ((248320, 5120, 8),), ((131072, 5120, 4),),
    ((9216, 2048, 8),), ((12288, 2048, 8),), ((248320, 2048, 6),), ((131072, 2048, 4),),
)  # fmt: skip
HEADS = (248320, 131072)  # rows whose products are written in fp32
RESIDUAL: tuple[Launch, ...] = (
    ((5120, 6144, 5),), ((5120, 17408, 5),), ((5120, 6144, 8),), ((5120, 17408, 8),), ((5120, 10240, 8),),
    ((2048, 4096, 8),), ((2048, 512, 8),),
)  # fmt: skip
GATE: tuple[Launch, ...] = (((34816, 5120, 4),), ((34816, 5120, 8),), ((1024, 2048, 8),))

# Sixteen columns: some of a loop's 350 to 430 instructions spill and restore: cheaper than fewer programs with more
# registers. Six bits a weight: an invariant of the loop does not fit.
STACK_BYTES = {16: 96}
STACK_BYTES_SIX = 16
# Shuffles and narrow loads behind the loop: sums of squares, the residual, weights, for the tiles at both ends of a run
# and for those between, which are finished by code of their own.
AFTER = {"rows": (0, 16), "gate": (0, 8), "residual": (18, 18)}


@cache
def slots_of(launch: Launch, chip: Chip) -> int:
    """Slots of the tiles of a launch on a chip."""
    programs = chip.multiprocessors * variants.PROGRAMS_PER_MULTIPROCESSOR
    shapes = [(tiles(rows), PACKINGS[bits].quanta(columns)) for rows, columns, bits in launch]
    return max(slots_for(schedule.slots) for schedule in deal(shapes, programs))


def matrix(chip: Chip) -> Iterator[Variant]:
    """All variants for a chip."""
    seen = set()
    for variant in _products(chip):
        # Both sizes of model use some of them.
        key = (variant.kernel, tuple(sorted(variant.constants.items())), variant.pointers["out"])
        if key not in seen:
            seen.add(key)
            yield variant
    yield from _others(chip)
    yield from _chunks(chip)


def reference(chip: Chip) -> Iterator[Variant]:
    """What only the benchmark launches: one of each, for the kernels share their functions with `matrix`."""
    dependent = chip.dependent_launch
    pointers = {"x": "bf16", "words": "i32", "part": "fp32"}
    constants: dict[str, object] = {"BITS": 4, "WIDTH": 8, "SLOTS": 4, "DEPENDENT": dependent}
    yield _streaming("product", triton_separate.stream_one, pointers, constants)
    pointers = pointers | {"words2": "i32", "part2": "fp32"}
    yield _streaming("two products", triton_separate.stream_two, pointers, constants | {"BITS2": 5})
    kept = {"residual": "bf16", "weight": "fp32", "squares": "i64", "cleared": "i64"}
    slots: dict[str, object] = {"SLOTS": 2, "DEPENDENT": dependent}
    finishing: tuple[tuple[str, object, dict[str, object], dict[str, str]], ...] = (
        ("rows", triton_separate.finish_rows, {"NORMED": True, "WIDTH": 8}, {"squares": "i64"}),
        ("gate", triton_separate.finish_silu_mul, {"NORMED": True, "WIDTH": 8}, {"squares": "i64"}),
        ("residual", triton_separate.finish_residual, {"WIDTH": 8}, kept),
    )
    for name, kernel, some, pointers in finishing:
        yield Variant(
            name, kernel, {"part": "fp32", "out": "bf16"} | pointers, slots | some,
            warps=1, dependent=dependent, floats=frozenset({"eps"}) if "NORMED" in some else frozenset(),
        )  # fmt: skip


def _products(chip: Chip) -> Iterator[Variant]:
    for width in WIDTHS:
        common: dict[str, object] = {"WIDTH": width, "DEPENDENT": chip.dependent_launch}
        base = {"x": "bf16", "words": "i32", "part": "fp32", "counters": "i32", "squares": "i64"}
        for launch in ROWS:
            slots = slots_of(launch, chip)
            pointers = base | {"out": "fp32" if launch[0][0] in HEADS else "bf16"}
            constants = common | {"BITS": launch[0][2], "SLOTS": slots, "NORMED": True}
            kernel = triton_products.product_rows_one
            if len(launch) == 2:
                kernel = triton_products.product_rows_two
                constants["BITS2"] = launch[1][2]
                pointers |= {"words2": "i32", "part2": "fp32", "counters2": "i32", "out2": pointers["out"]}
            yield _streaming("rows", kernel, pointers, constants, frozenset({"eps"}))
        for launch in GATE:
            slots = slots_of(launch, chip)
            constants = common | {"BITS": launch[0][2], "SLOTS": slots, "NORMED": True}
            kernel = triton_products.product_silu_mul
            yield _streaming("gate", kernel, base | {"out": "bf16"}, constants, frozenset({"eps"}))
        for launch in RESIDUAL:
            slots = slots_of(launch, chip)
            constants = common | {"BITS": launch[0][2], "SLOTS": slots}
            pointers = base | {"out": "bf16", "residual": "bf16", "weight": "fp32", "cleared": "i64"}
            yield _streaming("residual", triton_products.product_residual, pointers, constants)


def _streaming(
    name: str, kernel: object, pointers: dict[str, str], constants: dict[str, object],
    floats: frozenset[str] = frozenset(),
) -> Variant:  # fmt: skip
    parts = [f"{key.lower()} {value}" for key, value in sorted(constants.items()) if key != "DEPENDENT"]
    spilt = STACK_BYTES.get(int(str(constants["WIDTH"])), STACK_BYTES_SIX if constants["BITS"] == 6 else 0)
    return Variant(
        ", ".join([name, *parts, *([pointers["out"]] if "out" in pointers else [])]), kernel, pointers, constants,
        warps=1, dependent=bool(constants["DEPENDENT"]), floats=floats, registers=variants.REGISTERS, streams=True,
        after_stream=AFTER.get(name, (0, 0)), stack_bytes=spilt,
    )  # fmt: skip


def _chunks(chip: Chip) -> Iterator[Variant]:
    """Products of short chunks: matrices of many rows and of few, every number of tokens."""
    pointers = {"x": "bf16", "words": "i32", "out": "bf16"}
    taken = [
        variants.chunk_tile(chip.capability, chip.multiprocessors, row_tiles, 5120, tokens)
        for row_tiles in (tiles(34816), tiles(1024))
        for tokens in variants.CHUNK_TOKENS
    ]
    for bits in PACKINGS:
        for tile in dict.fromkeys(taken):
            constants: dict[str, object] = {
                "BITS": bits, "TILES": tile.tiles, "TOKENS": tile.tokens, "STEP": tile.step, "STAGES": tile.stages,
            }  # fmt: skip
            parts = [f"{key.lower()} {value}" for key, value in constants.items()]
            name = ", ".join(["chunk", *parts])
            yield Variant(name, product_chunk, pointers, constants, warps=tile.warps, dependent=False)


def _others(chip: Chip) -> Iterator[Variant]:
    dependent = chip.dependent_launch
    for width in WIDTHS:
        constants: dict[str, object] = {"BLOCK": variants.FIRST_ROWS, "WIDTH": width, "DEPENDENT": dependent}
        pointers = {"residual": "bf16", "weight": "fp32", "out": "bf16", "squares": "i64", "cleared": "i64"}
        yield Variant(
            f"first norm, {width} columns", triton_separate.first_norm, pointers, constants,
            warps=variants.FIRST_WARPS, dependent=dependent,
        )  # fmt: skip
    for keep in (1, variants.HEAD_KEEP):
        for name, kernel, kept in (
            ("candidates", block_keys, {"logits": "fp32", "keys": "i64"}),
            ("merge", merge_keys, {"keys": "i64", "merged": "i64"}),
        ):
            constants = {"PADDED": variants.HEAD_KEYS, "KEEP": keep, "DEPENDENT": dependent}
            yield Variant(f"{name}, {keep}", kernel, kept, constants, warps=variants.HEAD_WARPS, dependent=dependent)
    for bits in PACKINGS:
        constants = {"BITS": bits, "STEPS": variants.DEQUANTISE_STEPS}
        pointers = {"words": "i32", "out": "bf16"}
        yield Variant(f"dequantise, {bits} bits", dequantise, pointers, constants, warps=1, dependent=False)
