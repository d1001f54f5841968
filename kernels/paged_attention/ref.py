"""Float64 oracle: gather the sequence, then the textbook formula."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def paged_attention_ref(q: Tensor, k_pool: Tensor, v_pool: Tensor, pages: Tensor, begin: int) -> Tensor:
    tokens, heads, width = q.shape
    kv_heads, page = k_pool.shape[1], k_pool.shape[2]
    out = torch.empty(tokens, heads, width, dtype=torch.float64)
    for t in range(tokens):
        seen = torch.arange(begin + t + 1)
        for h in range(heads):
            head = h // (heads // kv_heads)
            keys = k_pool[pages[seen // page], head, seen % page].double()
            values = v_pool[pages[seen // page], head, seen % page].double()
            weights = torch.softmax(keys @ q[t, h].double() / math.sqrt(width), dim=0)
            out[t, h] = weights @ values
    return out


def output_gate_ref(o: Tensor, gate: Tensor) -> Tensor:
    return o.double() * torch.sigmoid(gate.double())
