"""Memory that the attention of a round and of a chunk works in. Allocated once, shared by all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.kv_codec.pool import PAGE, SCALE_GROUP, Codec
from ninfer.kernels.paged_attention import variants
from ninfer.kernels.paged_attention.units import MERGED_UNITS, units_of


@dataclass(frozen=True, slots=True, eq=False)
class RoundScratch:
    """Prepared queries of each program, partial results of each unit and of each sixteen units.

    codes, scales         [programs, rows, D] int8 or bf16, [programs, rows, D / 64] fp32
    acc, ml               [lanes * HKV * blocks * units * rows * D], [.. * rows * 2] fp32, ml of (maximum, sum)
    group_acc, group_ml   the same for groups of units
    counters              [lanes * HKV * blocks, groups + 1] int32, zero between launches
    """

    codes: Tensor
    scales: Tensor
    acc: Tensor
    ml: Tensor
    group_acc: Tensor
    group_ml: Tensor
    counters: Tensor
    lanes: int
    queries: int
    units: int

    @property
    def programs(self) -> int:
        return self.codes.shape[0]

    @property
    def groups(self) -> int:
        return -(-self.units // MERGED_UNITS)

    @property
    def nbytes(self) -> int:
        parts = (self.codes, self.scales, self.acc, self.ml, self.group_acc, self.group_ml, self.counters)
        return sum(part.nbytes for part in parts)


def round_scratch(
    lanes: int,
    columns: int,
    heads: int,
    kv_heads: int,
    width: int,
    max_tokens: int,
    codec: Codec,
    programs: int,
    device: torch.device | str,
) -> RoundScratch:
    """For up to `lanes` lanes of up to `columns` columns each, whose positions stay below `max_tokens`.

    programs  how many share the work; no bit of a result depends on it
    """
    group = heads // kv_heads
    queries = columns * group
    tiles = [variants.round_tile(count * group, codec == "int8") for count in range(1, columns + 1)]
    rows, blocks = max(tile.rows for tile in tiles), max(tile.blocks for tile in tiles)
    places, padded = max(programs, blocks), max(tile.rows * tile.blocks for tile in tiles)
    units = units_of(-(-max_tokens // PAGE))
    groups = -(-units // MERGED_UNITS)
    pairs = lanes * kv_heads

    def floats(count: int) -> Tensor:
        return torch.empty(count, dtype=torch.float32, device=device)

    code = torch.int8 if codec == "int8" else torch.bfloat16
    return RoundScratch(
        codes=torch.empty(places, rows, width, dtype=code, device=device),
        scales=floats(places * rows * (width // SCALE_GROUP)).view(places, rows, -1),
        acc=floats(pairs * units * padded * width),
        ml=floats(pairs * units * padded * 2),
        group_acc=floats(pairs * groups * padded * width),
        group_ml=floats(pairs * groups * padded * 2),
        counters=torch.zeros(pairs * blocks, groups + 1, dtype=torch.int32, device=device),
        lanes=lanes,
        queries=queries,
        units=units,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ChunkScratch:
    """The history of one lane as contiguous rows, and sums of units of keys.

    keys, values  [HKV, capacity, D], fp16 of int8 rows, bf16 of bf16
    partial       fp32, flat: what one chunk needs, see :func:`partial_bytes`, or more; with more, short chunks are
                  spread over more programs
    """

    keys: Tensor
    values: Tensor
    partial: Tensor

    @property
    def capacity(self) -> int:
        return self.keys.shape[1]

    @property
    def spare(self) -> int:
        """Values that `partial` holds."""
        return self.partial.numel()


def chunk_scratch_bytes(kv_heads: int, width: int, max_tokens: int) -> int:
    """What the rows of :func:`chunk_scratch` need for prompts of up to `max_tokens`."""
    return 2 * kv_heads * _whole_pages(max_tokens) * width * 2


def partial_bytes(tokens: int, queries: int, max_tokens: int) -> int:
    """What the sums of :func:`chunk_scratch` need at least for chunks of `tokens` tokens of H * D `queries` in prompts
    of up to `max_tokens`: values of each token, if there is more than one unit."""
    return 4 * tokens * queries if max_tokens > variants.UNIT_KEYS else 0


def split_floats(units: int, values: int, width: int) -> int:
    """fp32 values that units in programs of their own leave for a chunk of so many output values: each with a maximum
    and a sum per `width`."""
    return units * (values + 2 * (values // width))


def chunk_scratch(
    storage: Tensor, partial: Tensor, kv_heads: int, width: int, max_tokens: int, codec: Codec
) -> ChunkScratch:
    """Rows in `storage`, uint8 of at least :func:`chunk_scratch_bytes`, and sums in `partial`, uint8 of at least
    :func:`partial_bytes`; both start at a multiple of 256 bytes."""
    used = storage[: chunk_scratch_bytes(kv_heads, width, max_tokens)]
    rows = used.view(torch.float16 if codec == "int8" else torch.bfloat16)
    keys, values = rows.view(2, kv_heads, _whole_pages(max_tokens), width)
    sums = partial[: partial.numel() // 4 * 4].view(torch.float32)
    return ChunkScratch(keys, values, sums)


def _whole_pages(tokens: int) -> int:
    return -(-tokens // PAGE) * PAGE
