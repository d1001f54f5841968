"""Rows of the cache to codes and back, on any device, in plain torch. Kernels that fuse this give the same bytes."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.kv_codec import torch_rows
from ninfer.kernels.kv_codec.pool import Pool


def hadamard(x: Tensor) -> Tensor:
    """y = x @ H / sqrt(D) with H[i, j] = (-1) ** popcount(i & j), its own inverse (kv-and-state spec 3.1).

    x        [..., D] fp32 or bf16, D a power of four
    returns  [..., D] fp32; sums in the order of strides 1, 2, 4, .., D / 2
    """
    return torch_rows.hadamard(x)


def int8_codes(x: Tensor, narrow: bool) -> tuple[Tensor, Tensor]:
    """Symmetric codes of groups of 64 columns (kv-and-state spec 3.2).

    scale = max |x| / 127, rounded to fp16 if `narrow`; code = round half to even of x * (1 / scale), in [-127, 127]

    x        [..., D] fp32, D a multiple of 64
    returns  codes [..., D] int8, scales [..., D / 64] fp16 or fp32
    """
    return torch_rows.int8_codes(x, narrow)


def decoded(codes: Tensor, scales: Tensor) -> Tensor:
    """code * scale, [..., D] fp32."""
    return torch_rows.decoded(codes, scales)


def store(k: Tensor, v: Tensor, pages: Tensor, offsets: Tensor, pool: Pool) -> None:
    """Encode and store each token's key and value rows at its place (kv-and-state spec 4.1, 4.2, 8.3).

    k, v            [T, HKV, D]  K after norm and rotary positions, V plain
    pages, offsets  [T]          int64; the pairs are distinct
    effects         writes T rows per head of the pool, with their scales, nothing else
    """
    torch_rows.store(k, v, pages, offsets, pool)


def decoded_pages(pool: Pool, pages: Tensor) -> tuple[Tensor, Tensor]:
    """Keys, still rotated, and values of some pages: two of [n, HKV, 64, D] fp32."""
    return torch_rows.decoded_pages(pool, pages)
