"""Causal attention over a paged cache: of a run of queries, of a round of decoding, of a chunk of a prompt."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.kv_codec.pool import PAGE, Pool
from ninfer.kernels.low_bit_linear.buffers import Columns, to_columns
from ninfer.kernels.paged_attention import torch_lanes, torch_pages, variants
from ninfer.kernels.paged_attention.scratch import ChunkScratch, RoundScratch


def paged_attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, pages: Tensor, begin: int) -> Tensor:
    """Softmax attention with grouped heads (model spec 6.3), without the output gate.

    s[t, h, j] = (q[t, h] . K[j, m]) / sqrt(D)            m = h // (H / HKV), j <= begin + t
    o[t, h]    = sum_j softmax_j(s[t, h, :]) * V[j, m]
    where row j of the sequence is K[j, m] = k_pool[pages[j // 64], m, j % 64]

    q               [T, H, D]        bf16 or fp32; its positions are [begin, begin + T), inside one block of 64
    k_pool, v_pool  [P, HKV, 64, D]  bf16 or fp32; rows past begin + T may hold anything, NaN too
    pages           [n]              int64, n = ceil((begin + T) / 64)
    returns         [T, H, D]        dtype of q, rounded once from fp32
    effects         none; a query's bits depend on it and on the rows it may see, never on T
    """
    assert begin // PAGE == (begin + q.shape[0] - 1) // PAGE
    assert pages.shape[0] == begin // PAGE + 1
    return torch_pages.paged_attention(q, k_pool, v_pool, pages, begin)


def output_gate(o: Tensor, gate: Tensor) -> Tensor:
    """o * sigmoid(gate), both [T, H, D] of one dtype, rounded once from fp32 (model spec 6.3)."""
    assert o.shape == gate.shape
    return torch_pages.output_gate(o, gate)


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
    """The attention of one layer for L consecutive tokens of each of B lanes, T = B * L (model spec 6.3).

    q, k = rotary(norm(query)), rotary(norm(key)), each rounded to bf16; k and v are stored in the pool, then
    out[t, h] = sigmoid(gate[t, h]) * sum_j softmax_j(q[t, h] . K[j, m] / sqrt(D)) V[j, m]     m = h // (H / HKV)
    over the keys j in [0, p] as the pool holds them, p = positions[b] + l, t = b * L + l; norm is that of
    `offset_rmsnorm`. int8: q is rotated and coded like k, with fp32 scales (kv-and-state spec 5.1).

    first                 [T, H * D + HKV * D] bf16, query | key; rows contiguous
    second                [T, H * D + HKV * D] bf16, gate | value
    query_norm, key_norm  [D]       fp32, zero-centred
    cos, sin              [T, R/2]  fp32, contiguous
    tables                [C, n]    int32, page of each block of a slot
    lanes                 [B]       int32, distinct slots
    positions             [B]       int32, of each lane's first column
    out                   columns of H * D values, without a norm
    effects  writes the pool's rows of the T tokens, the first T tokens of `out`, scratch. A token's bits depend on its
             own rows and on the keys it sees, never on other lanes, on L or on the number of programs
    """
    tokens = lanes.shape[0] * columns
    assert first.shape[0] == second.shape[0] == cos.shape[0] == sin.shape[0] == tokens
    assert first.shape[1] == second.shape[1] == out.columns + pool.kv_heads * pool.width
    assert out.capacity >= tokens
    assert out.norm is None
    assert lanes.shape[0] <= min(scratch.lanes, variants.MAX_LANES)
    assert columns * (out.columns // pool.width // pool.kv_heads) <= scratch.queries
    arguments = (first, second, query_norm, key_norm, eps, cos, sin, pool, tables, lanes, positions, columns)
    if first.is_cuda:
        from ninfer.kernels.paged_attention import triton_launch

        triton_launch.attention_round(*arguments, scratch, out)
    else:
        to_columns(torch_lanes.attention_round(*arguments, out.columns), out)


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
    """Store keys and values of T consecutive tokens of one lane, positions [begin, begin + T), as
    :func:`attention_chunk` does, for a layer of which nothing else is wanted.

    key, value  [T, HKV * D] bf16, rows contiguous, as they come from their products
    effects     writes the pool's rows of the T tokens
    """
    assert key.shape == value.shape == (cos.shape[0], pool.kv_heads * pool.width)
    assert table.shape[0] * PAGE >= begin + key.shape[0]
    if key.is_cuda:
        from ninfer.kernels.paged_attention import triton_launch

        triton_launch.append_chunk(key, value, key_norm, eps, cos, sin, pool, table, begin)
    else:
        torch_lanes.append_chunk(key, value, key_norm, eps, cos, sin, pool, table, begin)


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
) -> None:
    """The attention of one layer for T consecutive tokens of one lane, positions [begin, begin + T).

    As :func:`attention_round`, except that queries of an int8 cache are rotated and not coded (kv-and-state spec 5.1).

    first, second  [T, H * D + HKV * D] bf16, rows contiguous; other operands as there
    table          [n]         int32, page of each block of the lane, n >= ceil((begin + T) / 64)
    scratch        capacity >= begin + T, and sums of T tokens; on a device only
    out            [T, H * D]  bf16, contiguous
    effects  writes the pool's rows of the T tokens, scratch, out. A token's bits do not depend on how the tokens before
             and behind it were cut into chunks
    """
    tokens = out.shape[0]
    assert first.shape[0] == second.shape[0] == cos.shape[0] == sin.shape[0] == tokens
    assert first.shape[1] == second.shape[1] == out.shape[1] + pool.kv_heads * pool.width
    assert out.is_contiguous()
    assert table.shape[0] * PAGE >= begin + tokens
    arguments = (first, second, query_norm, key_norm, eps, cos, sin, pool, table, begin)
    if first.is_cuda:
        from ninfer.kernels.paged_attention import triton_launch

        assert scratch.capacity >= begin + tokens
        tile, split_below = triton_launch.device_tile(first.device), triton_launch.default_split(first.device)
        triton_launch.attention_chunk(*arguments, scratch, out, tile, split_below)
    else:
        out.copy_(torch_lanes.attention_chunk(*arguments, out.shape[1]))
