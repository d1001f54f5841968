"""Muon for the matrices, AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from ninfer.embedded.training.network import Network

MATRIX_RATE, MATRIX_DECAY, MOMENTUM = 0.015, 0.05, 0.95
TABLE_RATE, VECTOR_RATE = 2e-3, 2e-3

# Coefficients of the quintic iteration that pulls all singular values towards one (K. Jordan, Muon, 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalised(updates: Tensor) -> Tensor:
    """[n, rows, columns] matrices with their singular values pulled to about one."""
    x: Tensor = updates.bfloat16() if updates.is_cuda else updates
    wide = x.shape[-2] > x.shape[-1]
    x = x.mT if wide else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        product = x @ x.mT
        x = _A * x + (_B * product + _C * product @ product) @ x
    return (x.mT if wide else x).to(updates.dtype)


class Optimiser:
    """Both methods behind one step; rates are scaled by the schedule."""

    def __init__(self, network: Network) -> None:
        matrices: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        tables, vectors = [], []
        for name, parameter in network.named_parameters():
            if name.endswith("embed_tokens.weight"):
                tables.append(parameter)
            elif parameter.ndim == 2 and "in_proj_a" not in name and "in_proj_b" not in name:
                matrices[parameter.shape].append(parameter)
            else:
                vectors.append(parameter)
        self._groups = list(matrices.values())
        self._momenta = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self._groups]
        self._adam = torch.optim.AdamW(
            [{"params": tables, "lr": TABLE_RATE}, {"params": vectors, "lr": VECTOR_RATE}],
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=tables[0].is_cuda,
        )

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Apply the gradients at `scale` times the rates, and clear them."""
        for group, rate in zip(self._adam.param_groups, (TABLE_RATE, VECTOR_RATE), strict=True):
            group["lr"] = rate * scale
        self._adam.step()
        for parameters, momentum in zip(self._groups, self._momenta, strict=True):
            gradients = torch.stack([p.grad for p in parameters if p.grad is not None])
            momentum.lerp_(gradients, 1 - MOMENTUM)
            update = orthogonalised(gradients.lerp(momentum, MOMENTUM))
            rows, columns = parameters[0].shape
            rate = MATRIX_RATE * scale
            update *= -rate * max(1.0, rows / columns) ** 0.5
            for parameter, change in zip(parameters, update.unbind(), strict=True):
                parameter.mul_(1 - rate * MATRIX_DECAY).add_(change)
        for group in self._adam.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for parameters in self._groups:
            for parameter in parameters:
                parameter.grad = None

    def state(self) -> dict[str, object]:
        return {"adam": self._adam.state_dict(), "momenta": self._momenta}

    def load(self, state: dict[str, object]) -> None:
        adam, momenta = state["adam"], state["momenta"]
        assert isinstance(adam, dict)
        assert isinstance(momenta, list)
        self._adam.load_state_dict(adam)
        for mine, saved in zip(self._momenta, momenta, strict=True):
            mine.copy_(saved)
