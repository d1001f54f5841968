"""Causal attention of a run of queries over one sequence's paged cache."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.paged_attention import torch_pages


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
    assert begin // 64 == (begin + q.shape[0] - 1) // 64
    assert pages.shape[0] == begin // 64 + 1
    return torch_pages.paged_attention(q, k_pool, v_pool, pages, begin)


def output_gate(o: Tensor, gate: Tensor) -> Tensor:
    """o * sigmoid(gate), both [T, H, D] of one dtype, rounded once from fp32 (model spec 6.3)."""
    assert o.shape == gate.shape
    return torch_pages.output_gate(o, gate)
