"""Host side of the Triton routes: grids, compile-time values and launch options.

The same functions run on host tensors under Triton's interpreter, where launch options mean nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.kv_codec.pool import Pool
from ninfer.kernels.low_bit_linear.buffers import Columns
from ninfer.kernels.paged_attention import variants
from ninfer.kernels.paged_attention.scratch import RoundScratch
from ninfer.kernels.paged_attention.triton_round import attention_round as round_kernel

MIN_DEPENDENT_CAPABILITY = (9, 0)


def dependent(device: torch.device) -> bool:
    """Whether kernels of a device are launched before their predecessor has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= MIN_DEPENDENT_CAPABILITY


def default_programs(device: torch.device) -> int:
    """Programs of a round that fit on the device at once."""
    return torch.cuda.get_device_properties(device).multi_processor_count * variants.ROUND_PROGRAMS


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
    round_kernel[(scratch.programs,)](
        first, second, query_norm, key_norm, cos, sin, pool.keys, pool.values,
        pool.keys if pool.key_scales is None else pool.key_scales,
        pool.values if pool.value_scales is None else pool.value_scales,
        tables, lanes, positions, out.storage, scratch.codes, scratch.scales, scratch.acc, scratch.ml,
        scratch.group_acc, scratch.group_ml, scratch.counters,
        lanes.shape[0], tables.stride(0), first.stride(0), second.stride(0), out.storage.shape[1], scratch.units,
        scratch.groups, eps,
        L=columns, GROUP=group, HKV=kv_heads, HALF=cos.shape[1], R=tile.rows, BLOCKS=tile.blocks,
        LANES=variants.MAX_LANES, COLUMNS=out.width, KEEP=tile.kept, INT8=pool.int8, DEPENDENT=early,
        num_warps=variants.WARPS, maxnreg=variants.ROUND_REGISTERS, launch_pdl=early,
    )  # fmt: skip
