"""Float64 oracle: the step form (model spec 6.4), which equals the block form in real arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor


def gdn_ref(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [T, HV, DV] and final state [HV, DV, DK] of T tokens from state `s`."""
    q, k, v, g, beta, s = (x.double() for x in (q, k, v, g, beta, s))
    share = v.shape[1] // k.shape[1]
    q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(share, dim=1).unsqueeze(-1) for x in (q, k))  # [T, HV, DK, 1]
    out = torch.empty_like(v)
    for t in range(v.shape[0]):
        s = torch.exp(g[t])[:, None, None] * s
        u = beta[t][:, None, None] * (v[t].unsqueeze(-1) - s @ k[t])
        s = s + u @ k[t].transpose(1, 2)
        out[t] = (s @ q[t]).squeeze(-1) / k.shape[2] ** 0.5
    return out, s


def gdn_gates_ref(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    decay = -torch.exp(a_log.double()) * torch.nn.functional.softplus(a.double() + dt_bias.double())
    return decay, torch.sigmoid(b.double())
