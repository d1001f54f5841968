"""Every binary of these ops that a registered model uses on a chip, for the compile matrix.

qwen3_6_27b, qwen3_8_27b: 24 query and 4 key heads; qwen3_6_35b_a3b: 16 and 2. Rounds of one column, of a few and
of many; both codecs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.kernels.compile_matrix.chips import Chip
from ninfer.kernels.compile_matrix.variant import Variant
from ninfer.kernels.kv_codec.pool import Codec
from ninfer.kernels.paged_attention import variants
from ninfer.kernels.paged_attention.triton_chunk import attend_chunk, merge_chunk, prepare_chunk, spread_history
from ninfer.kernels.paged_attention.triton_round import attention_round

HEADS = ((24, 4), (16, 2))
COLUMNS = (1, 4, 16)  # other numbers share the binaries of these
CODECS: tuple[Codec, ...] = ("int8", "bf16")
ROTARY_HALF = 32

# What spills is set up once per program or unit, or read once per page, from the first cache: cheaper than a program
# less on a multiprocessor.
STACK_BYTES = {"round": 192, "chunk": 1024}

_FLOATS = frozenset({"eps"})


def matrix(chip: Chip) -> Iterator[Variant]:
    """All variants for a chip."""
    for codec in CODECS:
        for heads, kv_heads in HEADS:
            for columns in COLUMNS:
                yield round_variant(chip, codec, heads, kv_heads, columns)
            yield from chunk_variants(chip, codec, heads, kv_heads)


def _pool(codec: Codec) -> dict[str, str]:
    codes, scales = ("i8", "fp16") if codec == "int8" else ("bf16", "bf16")
    return {"keys": codes, "values": codes, "key_scales": scales, "value_scales": scales}


def _rows() -> dict[str, str]:
    return {"first": "bf16", "second": "bf16"} | dict.fromkeys(("query_norm", "key_norm", "cos", "sin"), "fp32")


def round_variant(chip: Chip, codec: Codec, heads: int, kv_heads: int, columns: int) -> Variant:
    group = heads // kv_heads
    tile = variants.round_tile(columns * group, codec == "int8")
    work = dict.fromkeys(("scales", "acc", "ml", "group_acc", "group_ml"), "fp32")
    inputs = dict.fromkeys(("tables", "lanes", "positions", "counters"), "i32")
    return Variant(
        f"round, {codec}, groups of {group}, {columns} columns",
        attention_round,
        _rows() | _pool(codec) | work | inputs | {"out": "bf16", "codes": "i8" if codec == "int8" else "bf16"},
        {
            "GROUP": group, "HALF": ROTARY_HALF, "R": tile.rows, "LANES": variants.MAX_LANES, "KEEP": tile.kept,
            "INT8": codec == "int8", "DEPENDENT": chip.dependent_launch,
        } | ({"L": 1} if columns == 1 else {}),
        warps=variants.WARPS,
        dependent=chip.dependent_launch,
        floats=_FLOATS,
        registers=tile.registers,
        stack_bytes=STACK_BYTES["round"],
    )  # fmt: skip


def chunk_variants(chip: Chip, codec: Codec, heads: int, kv_heads: int) -> Iterator[Variant]:
    tile = variants.chunk_tile(chip.capability)
    wide = "fp16" if codec == "int8" else "bf16"
    named = f"{codec}, {heads} and {kv_heads} heads"
    yield Variant(
        f"prepare, {named}",
        prepare_chunk,
        _rows() | _pool(codec) | {"queries": wide, "table": "i32"},
        {"H": heads, "HKV": kv_heads, "HALF": ROTARY_HALF, "INT8": codec == "int8"},
        warps=variants.WARPS,
        dependent=False,
        floats=_FLOATS,
    )
    yield Variant(
        f"append, {named}",
        prepare_chunk,
        _rows() | _pool(codec) | {"queries": "bf16", "table": "i32"},
        {"H": 0, "HKV": kv_heads, "HALF": ROTARY_HALF, "INT8": codec == "int8"},
        warps=variants.WARPS,
        dependent=False,
        floats=_FLOATS,
    )
    yield Variant(
        f"history, {named}",
        spread_history,
        _pool(codec) | {"table": "i32", "key_rows": wide, "value_rows": wide},
        {"HKV": kv_heads, "INT8": codec == "int8"},
        warps=variants.WARPS,
        dependent=False,
    )
    block = f"{wide}[{tile.keys}, {variants.HEAD_WIDTH}]"
    yield Variant(
        f"chunk, {named}",
        attend_chunk,
        {"queries": wide, "second": "bf16", "out": "bf16", "partial": "fp32", "partial_ml": "fp32"}
        | ({} if tile.described else {"keys": wide, "values": wide}),
        {
            "H": heads, "GROUP": heads // kv_heads, "M": tile.tokens, "N": tile.keys, "UNIT": tile.unit,
            "STAGES": tile.stages, "DESCRIBED": tile.described,
        },
        warps=tile.warps,
        dependent=False,
        descriptors={"keys": block, "values": block} if tile.described else {},
        stack_bytes=STACK_BYTES["chunk"],
    )  # fmt: skip
    yield Variant(
        f"merge, {named}",
        merge_chunk,
        {"second": "bf16", "out": "bf16", "partial": "fp32", "partial_ml": "fp32"},
        {"H": heads, "M": tile.tokens, "R": variants.MERGED_TOKENS, "UNIT": tile.unit},
        warps=variants.WARPS,
        dependent=False,
    )
