"""Float64 oracle: the probability of every token under a law."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.types import Sampling


def law_ref(logits: Tensor, counts: Tensor, law: Sampling) -> Tensor:
    """[V] float64 probabilities; one-hot for temperature 0."""
    x = logits.double() - law.presence_penalty * (counts > 0) - law.frequency_penalty * counts
    order = sorted(range(len(x)), key=lambda i: (-float(x[i]), i))
    out = torch.zeros(len(x), dtype=torch.float64)
    if law.temperature == 0:
        out[order[0]] = 1.0
        return out
    order = order[: law.top_k if 1 <= law.top_k <= 19 else 20]
    weights = torch.exp((x[order] - x[order[0]]) / law.temperature)
    shares = weights / weights.sum()
    size = len(order)
    if law.top_p < 1:
        size = int((shares.cumsum(0) >= law.top_p).nonzero()[0]) + 1
    if law.min_p > 0:
        size = min(size, max(1, int((weights >= law.min_p * weights[0]).sum())))
    out[order[:size]] = weights[:size] / weights[:size].sum()
    return out
