"""The loss of packed rows: next token from the decoder, the token after it from the MTP layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear


@dataclass(frozen=True, slots=True)
class Targets:
    """What columns of packed rows have to predict, [N] each: id, and the weight of its loss (0 across documents)."""

    ids: Tensor
    weights: Tensor

    @classmethod
    def ahead(cls, ids: Tensor, positions: Tensor, weights: Tensor, by: int) -> Targets:
        """The tokens `by` columns on, where these still belong to the column's document."""
        reach = torch.roll(positions, -by) == positions + by
        reach[-by:] = False
        return cls(torch.roll(ids, -by), torch.roll(weights, -by) * reach)


def token_losses(hidden: Tensor, table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy [N] fp32 of `ids`, and the most likely ids [N]; hidden [N, D], table [V, D] of its dtype."""
    logits = linear(hidden, table).float()
    return cross_entropy(logits, ids, reduction="none"), logits.argmax(-1)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    return (losses * weights).sum() / weights.sum().clamp_min(1e-6)
