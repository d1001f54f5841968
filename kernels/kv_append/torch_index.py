"""Plain-torch route."""

from __future__ import annotations

from torch import Tensor


def kv_append(k: Tensor, v: Tensor, pages: Tensor, offsets: Tensor, k_pool: Tensor, v_pool: Tensor) -> None:
    k_pool[pages, :, offsets] = k.to(k_pool.dtype)
    v_pool[pages, :, offsets] = v.to(v_pool.dtype)
