"""Float64 oracle, from codes and scales as they are stored."""

from __future__ import annotations

import torch
from torch import Tensor


def weight_ref(codes: Tensor, scales: Tensor, group: int) -> Tensor:
    """codes [N, K] integers, scales [N, ceil(K / group)]: the matrix [N, K]."""
    wide = scales.double().repeat_interleave(group, dim=1)[:, : codes.shape[1]]
    return codes.double() * wide


def product_ref(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().t()


def norm_factor_ref(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean of squares + eps) of each row, [T, 1]."""
    return 1.0 / torch.sqrt(x.double().square().mean(-1, keepdim=True) + eps)


def silu_mul_ref(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def candidates_ref(logits: Tensor, legal: int, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` largest of the first `legal` logits of each row, lowest index first among equals."""
    order = torch.sort(logits[:, :legal], dim=-1, descending=True, stable=True)
    return order.values[:, :keep], order.indices[:, :keep]
