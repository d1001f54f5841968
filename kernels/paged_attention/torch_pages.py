"""Plain-torch route: one product per page, pages joined in a fixed order.

Pages are taken in groups of :data:`GROUP_PAGES`, counted from position 0. Inside a group the maximum is exact and the
pages' sums are joined by a tree of adjacent pairs, so that pages a query cannot see (zeros) change nothing; groups are
joined one after the other by rescaling, and a group that a query cannot see multiplies by one and adds zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ninfer.kernels.numerics.activations import sigmoid
from ninfer.kernels.numerics.products import batched_rows, sum_pairs

GROUP_PAGES = 16


def paged_attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, pages: Tensor, begin: int) -> Tensor:
    tokens, heads, width = q.shape
    kv_heads, page = k_pool.shape[1], k_pool.shape[2]
    group = heads // kv_heads
    rows = tokens * group
    scaled = q.float() * (1.0 / math.sqrt(width))
    queries = scaled.view(tokens, kv_heads, group, width).transpose(0, 1).reshape(kv_heads, rows, width)
    end = begin + tokens

    highest = queries.new_full((kv_heads, rows, 1), -math.inf)
    total = queries.new_zeros(kv_heads, rows, 1)
    mixed = queries.new_zeros(kv_heads, rows, width)
    for first in range(0, pages.shape[0], GROUP_PAGES):
        chosen = pages[first : first + GROUP_PAGES]
        count = chosen.shape[0]
        keys = k_pool.index_select(0, chosen).float()
        values = v_pool.index_select(0, chosen).float()
        if first + count == pages.shape[0]:
            values[-1, :, end - (first + count - 1) * page :] = 0.0
        stacked = queries.expand(count, -1, -1, -1).reshape(count * kv_heads, rows, width)
        scores = batched_rows(stacked, keys.view(count * kv_heads, page, width).transpose(1, 2))
        scores = scores.reshape(count, kv_heads, rows, page)
        if first + count == pages.shape[0]:
            scores[-1].masked_fill_(_hidden(tokens, group, page, begin, q.device), -math.inf)
        peak = torch.maximum(highest, scores.amax(dim=(0, 3)).unsqueeze(-1))
        weights = torch.exp(scores - peak)
        keep = torch.exp(highest - peak)
        parts = batched_rows(weights.view(count * kv_heads, rows, page), values.view(count * kv_heads, page, width))
        total = total * keep + sum_pairs(weights.sum(-1, keepdim=True))
        mixed = mixed * keep + sum_pairs(parts.view(count, kv_heads, rows, width))
        highest = peak
    out = (mixed / total).view(kv_heads, tokens, group, width).transpose(0, 1)
    return out.reshape(tokens, heads, width).to(q.dtype).contiguous()


def _hidden(tokens: int, group: int, page: int, begin: int, device: torch.device) -> Tensor:
    """[tokens * group, page]: keys of the last page that stand after the query."""
    offsets = torch.arange(begin % page, begin % page + tokens, device=device).repeat_interleave(group)
    return torch.arange(page, device=device) > offsets.unsqueeze(1)


def output_gate(o: Tensor, gate: Tensor) -> Tensor:
    return (o.float() * sigmoid(gate.float())).to(o.dtype)
