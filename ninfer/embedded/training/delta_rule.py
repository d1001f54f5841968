"""The gated delta rule over rows of packed documents (model spec 6.4 step 6, 6.5), in two routes.

A document starts from an empty state although it shares its row with others: at its first token the decay is RESET,
which leaves less than 1e-13 of what was before.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

CHUNK = 64
RESET = -30.0


class DeltaRule(Protocol):
    """q, k, v [B, T, H, D], keys of unit length, queries scaled; g, beta [B, T, H] fp32; returns [B, T, H, D].

    T is a multiple of 64.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor: ...


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Plain torch in float32: the whole chunk-local part in batched products, then one step per chunk."""
    dtype = v.dtype
    q, k, v, g, beta = (_chunks(x.float()) for x in (q, k, v, g, beta))
    decay = g.cumsum(-1)
    gamma = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp().tril()
    mixed = -(beta.unsqueeze(-1) * (k @ k.transpose(-1, -2)) * gamma).tril(-1)
    inverse = _unit_lower_inverse(mixed)
    u = inverse @ (beta.unsqueeze(-1) * v)
    w = inverse @ ((beta * decay.exp()).unsqueeze(-1) * k)
    last = decay[..., -1:]
    carried = (last - decay).exp().unsqueeze(-1) * k
    read = decay.exp().unsqueeze(-1) * q
    state = torch.zeros_like(k[:, :, 0].transpose(-1, -2) @ v[:, :, 0])
    news, states = [], []
    for n in range(q.shape[2]):
        new = u[:, :, n] - w[:, :, n] @ state
        news.append(new)
        states.append(state)
        state = last[:, :, n].exp().unsqueeze(-1) * state + carried[:, :, n].transpose(-1, -2) @ new
    written = torch.stack(news, 2)
    out = read @ torch.stack(states, 2) + (q @ k.transpose(-1, -2) * gamma) @ written
    batch, heads, chunks, _, width = out.shape
    return out.reshape(batch, heads, chunks * CHUNK, width).transpose(1, 2).to(dtype)


def _chunks(x: Tensor) -> Tensor:
    """[B, T, H, ...] to [B, H, T/64, 64, ...]."""
    x = x.transpose(1, 2)
    return x.reshape(*x.shape[:2], x.shape[2] // CHUNK, CHUNK, *x.shape[3:])


def _unit_lower_inverse(a: Tensor) -> Tensor:
    """(I - a)^-1 of strictly lower a [.., 64, 64]: the product of (I + a^(2^i)), since a^64 is zero."""
    identity = torch.eye(CHUNK, dtype=a.dtype, device=a.device)
    inverse = identity + a
    for _ in range(5):
        a = a @ a
        inverse = inverse + inverse @ a
    return inverse


def fla_kernels(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The Triton kernels of the package fla-core, which is needed on the training machine alone."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    out: Tensor = chunk_gated_delta_rule(q, k, v, g, beta, scale=1.0)[0]
    return out


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Token by token, the definition."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    out = []
    for t in range(q.shape[1]):
        state = g[:, t, :, None, None].exp() * state
        error = v[:, t] - (state * k[:, t].unsqueeze(-1)).sum(-2)
        state = state + k[:, t].unsqueeze(-1) * (beta[:, t].unsqueeze(-1) * error).unsqueeze(-2)
        out.append((state * q[:, t].unsqueeze(-1)).sum(-2))
    return torch.stack(out, 1)


DELTA_RULES: dict[str, DeltaRule] = {"torch": chunked, "fla": fla_kernels}
