"""Plain-torch route of rounds and chunks: one run inside one block of positions after the other, on decoded pages."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.kv_codec import op as kv_codec
from ninfer.kernels.kv_codec.pool import PAGE, Pool
from ninfer.kernels.numerics.activations import sigmoid
from ninfer.kernels.paged_attention import torch_pages
from ninfer.kernels.rmsnorm.op import offset_rmsnorm
from ninfer.kernels.rotary.op import rotate


def prepared(rows: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, width: int) -> Tensor:
    """Norm and rotary positions of rows [T, heads * D]: [T, heads, D], bf16 after each."""
    heads = offset_rmsnorm(rows.reshape(rows.shape[0], -1, width), weight, eps)
    return rotate(heads, cos, sin)


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
    queries: int,
) -> Tensor:
    """[T, H * D] bf16, gated; `queries` is H * D."""
    width = pool.width
    q = prepared(first[:, :queries], query_norm, eps, cos, sin, width)
    k = prepared(first[:, queries:], key_norm, eps, cos, sin, width)
    v = second[:, queries:].reshape(first.shape[0], -1, width)
    if pool.int8:
        wide = kv_codec.decoded(*kv_codec.int8_codes(kv_codec.hadamard(q), narrow=False))
    else:
        wide = q.float()
    parts = []
    for lane, slot in enumerate(lanes.tolist()):
        begin = int(positions[lane])
        at = torch.arange(begin, begin + columns)
        rows = slice(lane * columns, (lane + 1) * columns)
        pages = tables[slot].long()
        kv_codec.store(k[rows], v[rows], pages[at // PAGE], at % PAGE, pool)
        parts += runs(wide[rows], pool, pages, begin)
    mixed = torch.cat(parts).reshape(-1, queries)
    return (mixed * sigmoid(second[:, :queries].float())).to(torch.bfloat16)


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
    k = prepared(key, key_norm, eps, cos, sin, pool.width)
    at = torch.arange(begin, begin + key.shape[0])
    kv_codec.store(k, value.reshape(k.shape), table.long()[at // PAGE], at % PAGE, pool)


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
    queries: int,
) -> Tensor:
    """[T, H * D] bf16, gated; `queries` is H * D."""
    q = prepared(first[:, :queries], query_norm, eps, cos, sin, pool.width)
    append_chunk(first[:, queries:], second[:, queries:], key_norm, eps, cos, sin, pool, table, begin)
    pages = table.long()
    wide = kv_codec.hadamard(q) if pool.int8 else q.float()
    mixed = torch.cat(runs(wide, pool, pages, begin)).reshape(-1, queries)
    return (mixed * sigmoid(second[:, :queries].float())).to(torch.bfloat16)


def runs(q: Tensor, pool: Pool, pages: Tensor, begin: int) -> list[Tensor]:
    """Attention of queries [T, H, D] fp32 from position `begin` on, by blocks of positions: [t, H, D] each."""
    parts = []
    end = begin + q.shape[0]
    while begin < end:
        stop = min(end, begin // PAGE * PAGE + PAGE)
        keys, values = kv_codec.decoded_pages(pool, pages[: begin // PAGE + 1])
        inside = torch.arange(keys.shape[0])
        part = q[q.shape[0] - (end - begin) : q.shape[0] - (end - stop)]
        parts.append(torch_pages.paged_attention(part, keys, values, inside, begin))
        begin = stop
    return parts
