"""Every Triton kernel of an engine, by the kind of step that launches it."""

from __future__ import annotations

from typing import Any

from ninfer.kernels.embedding.triton_gather import gather_row
from ninfer.kernels.gdn import triton_launch as gdn
from ninfer.kernels.gdn.gluon_round import gdn_round
from ninfer.kernels.low_bit_linear import triton_chunk_launch as low_bit_linear_chunk
from ninfer.kernels.low_bit_linear import triton_launch as low_bit_linear
from ninfer.kernels.paged_attention import triton_launch as paged_attention
from ninfer.kernels.paged_attention.triton_round import attention_round
from ninfer.kernels.rmsnorm.triton_added import add_norm_row
from ninfer.kernels.rmsnorm.triton_joined import joined_norm_row
from ninfer.kernels.rotary.triton_columns import rotary_token
from ninfer.kernels.sampler.triton_draw import accept_columns, choose_candidates, draw_token
from ninfer.kernels.silu_mul.triton_into import silu_mul_piece

ROUND_KERNELS: tuple[Any, ...] = (
    gather_row,
    rotary_token,
    *low_bit_linear.KERNELS,
    gdn_round,
    attention_round,
    choose_candidates,
    draw_token,
    accept_columns,
    joined_norm_row,
    add_norm_row,
)
CHUNK_KERNELS: tuple[Any, ...] = (
    silu_mul_piece,
    *low_bit_linear_chunk.KERNELS,
    *gdn.KERNELS,
    *paged_attention.CHUNK_KERNELS,
)


def settle_cache_keys() -> None:
    """Make the keys of Triton's disk cache the same in every process, whichever kernel is launched first.

    Triton (3.6 to 3.9) hashes a function once, with what it had hashed by then; so kernels that share functions get
    keys that depend on who came first, and a process with another order would compile again. Call before the first
    launch.
    """
    for kernel in (*ROUND_KERNELS, *CHUNK_KERNELS):
        _ = kernel.cache_key
