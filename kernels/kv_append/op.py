"""Writing rows of the attention cache."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.kv_append import torch_index


def kv_append(k: Tensor, v: Tensor, pages: Tensor, offsets: Tensor, k_pool: Tensor, v_pool: Tensor) -> None:
    """Store each token's key and value rows at its place in the paged cache (kv-and-state spec 8.3).

    k_pool[pages[t], h, offsets[t], :] = k[t, h, :]     and likewise v

    k, v            [T, HKV, D]     bf16 or fp32: K after norm and rotation, V plain
    pages, offsets  [T]             int64; the pairs are distinct
    k_pool, v_pool  [P, HKV, 64, D] bf16 or fp32; values are rounded to its dtype
    effects         writes T rows per head of both pools, nothing else
    """
    assert k.shape == v.shape
    assert k_pool.shape == v_pool.shape
    torch_index.kv_append(k, v, pages, offsets, k_pool, v_pool)
