"""Plain-torch route: candidates by one top-k, then at most twenty numbers on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer.types import Sampling

MAX_CANDIDATES = 20  # speculation spec 2.1: a hard cap of the sampler


def sample(logits: Tensor, counts: Tensor, laws: Sequence[Sampling], uniforms: Sequence[float]) -> Tensor:
    drawn = [_draw(logits[row], counts[row], laws[row], uniforms[row]) for row in range(len(laws))]
    return torch.tensor(drawn, dtype=torch.int64, device=logits.device)


def _draw(logits: Tensor, counts: Tensor, law: Sampling, uniform: float) -> int:
    x = logits
    if law.presence_penalty or law.frequency_penalty:
        x = x - law.presence_penalty * (counts > 0).float() - law.frequency_penalty * counts.float()
    if law.temperature <= 0:
        return int((x == x.max()).nonzero()[0])
    ids, values = _candidates(x, law.top_k if 1 <= law.top_k < MAX_CANDIDATES else MAX_CANDIDATES)
    weights = torch.exp(values / law.temperature - values[0] / law.temperature).tolist()
    total = math.fsum(weights)
    kept: list[float] = []
    running = 0.0
    for weight in weights:
        if kept and law.min_p > 0 and weight < law.min_p * weights[0]:
            break
        kept.append(weight)
        running += weight
        if law.top_p < 1 and running >= law.top_p * total:
            break
    threshold = uniform * running
    cumulative = 0.0
    for rank, weight in enumerate(kept):
        cumulative += weight
        if threshold < cumulative:
            return int(ids[rank])
    return int(ids[len(kept) - 1])


def _candidates(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The `most` largest values with their ids, in descending order, equal values by ascending id."""
    most = min(most, x.shape[0])
    smallest = torch.topk(x, most).values[-1]
    ids = ((x >= smallest) & (x > -math.inf)).nonzero().squeeze(-1)
    order = torch.argsort(x[ids], descending=True, stable=True)[:most]
    return ids[order], x[ids[order]]
