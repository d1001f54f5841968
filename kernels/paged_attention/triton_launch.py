"""Host side of the Triton routes: grids, compile-time values and launch options.

The same functions run on host tensors under Triton's interpreter, where launch options mean nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ninfer.kernels.kv_codec.pool import PAGE, Pool
from ninfer.kernels.low_bit_linear.buffers import Columns
from ninfer.kernels.low_bit_linear.triton_launch import dependent
from ninfer.kernels.paged_attention import variants
from ninfer.kernels.paged_attention.scratch import ChunkScratch, RoundScratch, split_floats
from ninfer.kernels.paged_attention.triton_chunk import attend_chunk, merge_chunk, prepare_chunk, spread_history
from ninfer.kernels.paged_attention.triton_round import attention_round as round_kernel

CHUNK_KERNELS = (prepare_chunk, spread_history, attend_chunk, merge_chunk)


def default_programs(device: torch.device) -> int:
    """Programs of a round that fit on the device at once; where they need more registers, fewer are launched."""
    return torch.cuda.get_device_properties(device).multi_processor_count * variants.ROUND_PROGRAMS


def _pieces(rows: Tensor) -> int:
    """Distance of rows in pieces of eight elements."""
    assert rows.stride(1) == 1
    assert rows.stride(0) % 8 == 0
    return rows.stride(0) // 8


def attention_round(
    first: Tensor,
    second: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    pool: Pool,
    tables: Tensor,
    lanes: Tensor,
    positions: Tensor,
    columns: int,
    scratch: RoundScratch,
    out: Columns,
) -> None:
    early = dependent(first.device)
    kv_heads = pool.kv_heads
    group = out.columns // pool.width // kv_heads
    tile = variants.round_tile(columns * group, pool.int8)
    share = scratch.programs * tile.programs // variants.ROUND_PROGRAMS // tile.blocks
    programs = max(1, share) * tile.blocks
    round_kernel[(programs,)](
        first, second, query_norm, key_norm, cos, sin, pool.keys, pool.values,
        pool.keys if pool.key_scales is None else pool.key_scales,
        pool.values if pool.value_scales is None else pool.value_scales,
        tables, lanes, positions, out.storage, scratch.codes, scratch.scales, scratch.acc, scratch.ml,
        scratch.group_acc, scratch.group_ml, scratch.counters,
        lanes.shape[0], tables.stride(0), _pieces(first), _pieces(second), out.storage.shape[1],
        out.width.bit_length() - 1, scratch.units, scratch.groups, kv_heads, columns, eps,
        GROUP=group, HALF=cos.shape[1], R=tile.rows, LANES=variants.MAX_LANES, KEEP=tile.kept, INT8=pool.int8,
        DEPENDENT=early,
        num_warps=variants.WARPS, maxnreg=tile.registers, launch_pdl=early,
    )  # fmt: skip


def device_tile(device: torch.device) -> variants.ChunkTile:
    major, minor = torch.cuda.get_device_capability(device)
    return variants.chunk_tile(10 * major + minor)


def append_chunk(
    key: Tensor,
    value: Tensor,
    key_norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    pool: Pool,
    table: Tensor,
    begin: int,
) -> None:
    tokens = key.shape[0]
    key_scales = pool.keys if pool.key_scales is None else pool.key_scales
    value_scales = pool.values if pool.value_scales is None else pool.value_scales
    # Without query heads; their norm and their place are not looked at.
    prepare_chunk[(-(-tokens // variants.PREPARED_TOKENS), pool.kv_heads)](
        key, value, key_norm, key_norm, cos, sin, value, pool.keys, pool.values, key_scales, value_scales, table,
        begin, tokens, _pieces(key), _pieces(value), eps,
        H=0, HKV=pool.kv_heads, HALF=cos.shape[1], INT8=pool.int8, num_warps=variants.WARPS,
    )  # fmt: skip


def default_split(device: torch.device) -> int:
    """Programs of a chunk below which units of keys are spread over programs."""
    return torch.cuda.get_device_properties(device).multi_processor_count * variants.SPLIT_BELOW


def attention_chunk(
    first: Tensor,
    second: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    pool: Pool,
    table: Tensor,
    begin: int,
    scratch: ChunkScratch,
    out: Tensor,
    tile: variants.ChunkTile,
    split_below: int,
) -> None:
    tokens, kv_heads = out.shape[0], pool.kv_heads
    heads = out.shape[1] // pool.width
    end = begin + tokens
    queries = out.view(scratch.keys.dtype)  # each program reads its queries where it will write their results
    key_scales = pool.keys if pool.key_scales is None else pool.key_scales
    value_scales = pool.values if pool.value_scales is None else pool.value_scales
    prepare_chunk[(-(-tokens // variants.PREPARED_TOKENS), heads + kv_heads)](
        first, second, query_norm, key_norm, cos, sin, queries, pool.keys, pool.values, key_scales, value_scales, table,
        begin, tokens, _pieces(first), _pieces(second), eps,
        H=heads, HKV=kv_heads, HALF=cos.shape[1], INT8=pool.int8, num_warps=variants.WARPS,
    )  # fmt: skip
    spread_history[(-(-end // PAGE), kv_heads)](
        pool.keys, pool.values, key_scales, value_scales, table, scratch.keys, scratch.values, end, scratch.capacity,
        HKV=kv_heads, INT8=pool.int8, num_warps=variants.WARPS,
    )  # fmt: skip
    programs, units = -(-tokens // tile.tokens) * heads, -(-end // tile.unit)
    split = units > 1 and programs < split_below and split_floats(units, out.numel(), pool.width) <= scratch.spare
    assert split or units == 1 or out.numel() <= scratch.spare
    sums = scratch.partial[units * out.numel() :] if split else scratch.partial
    keys, values = (rows.view(-1, pool.width) for rows in (scratch.keys, scratch.values))
    attend_chunk[(programs, units if split else 1)](
        queries,
        TensorDescriptor.from_tensor(keys, [tile.keys, pool.width]) if tile.described else keys,
        TensorDescriptor.from_tensor(values, [tile.keys, pool.width]) if tile.described else values,
        second, out, scratch.partial, sums, begin, tokens, _pieces(second), scratch.capacity,
        H=heads, GROUP=heads // kv_heads, M=tile.tokens, N=tile.keys, UNIT=tile.unit, STAGES=tile.stages,
        DESCRIBED=tile.described, num_warps=tile.warps,
    )  # fmt: skip
    if split:
        merge_chunk[(-(-tokens // variants.MERGED_TOKENS), heads)](
            second, out, scratch.partial, sums, begin, tokens, _pieces(second),
            H=heads, M=tile.tokens, R=variants.MERGED_TOKENS, UNIT=tile.unit, num_warps=variants.WARPS,
        )  # fmt: skip
