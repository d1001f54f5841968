"""Float64 oracle: the step form (model spec 6.4), which equals the block form in real arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor


def gdn_ref(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [T, HV, DV] and final state [HV, DV, DK] of T tokens from state `s`."""
    q, k, v, g, beta, s = (x.double() for x in (q, k, v, g, beta, s))
    s = s.clone()
    out = torch.empty_like(v)
    share = v.shape[1] // k.shape[1]
    for t in range(v.shape[0]):
        for head in range(v.shape[1]):
            kn, qn = k[t, head // share], q[t, head // share]
            kn = kn / torch.sqrt((kn * kn).sum() + 1e-6)
            qn = qn / torch.sqrt((qn * qn).sum() + 1e-6)
            state = torch.exp(g[t, head]) * s[head]
            u = beta[t, head] * (v[t, head] - state @ kn)
            s[head] = state + torch.outer(u, kn)
            out[t, head] = s[head] @ qn / k.shape[-1] ** 0.5
    return out, s


def gdn_gates_ref(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    decay = -torch.exp(a_log.double()) * torch.nn.functional.softplus(a.double() + dt_bias.double())
    return decay, torch.sigmoid(b.double())
