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
    """(I - a)^-1 of strictly lower a [.., 64, 64], from inverses of diagonal blocks of 1, 2, 4, .. rows.

    As stable as forward substitution. The product of (I + a^(2^i)) is not: keys that repeat make its terms grow like
    binomial coefficients, which then have to cancel.
    """
    inverse = torch.ones_like(a[..., :1]).unsqueeze(-1)  # [.., 64 blocks, 1, 1]
    size = 1
    while size < CHUNK:
        count = CHUNK // (2 * size)
        blocks = a.view(*a.shape[:-2], count, 2 * size, count, 2 * size)
        below = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., size:, :size]
        upper, lower = inverse.view(*a.shape[:-2], count, 2, size, size).unbind(-3)
        corner = lower @ below @ upper
        top = torch.cat([upper, torch.zeros_like(upper)], -1)
        inverse = torch.cat([top, torch.cat([corner, lower], -1)], -2)
        size *= 2
    return inverse.squeeze(-3)


def fla_kernels(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The Triton kernels of the package fla-core, which is needed on the training machine alone."""
    from fla.ops.gated_delta_rule import chunk, chunk_gated_delta_rule

    # The package refuses its own kernel for this step on Hopper with triton 3.4 to 3.7.0, which compile it wrongly
    # (flash-linear-attention issue 640). From triton 3.7.1 on this line can go.
    chunk.chunk_bwd_dqkwg = chunk_gradients
    out: Tensor = chunk_gated_delta_rule(q, k, v, g, beta, scale=1.0)[0]
    return out


def chunk_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    h: Tensor,
    dh: Tensor,
    w: Tensor,
    g: Tensor,
    dv: Tensor,
    scale: float,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_size: int = CHUNK,
    chunk_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The chunk-local part of the backward pass, as fla-core wants it from `chunk_bwd_dqkwg`; returns dq, dk, dw, dg.

    q, k, w [B, T, H, K]; v (the written values), do, dv [B, T, H, V]; h (state at each chunk's start), dh (gradient of
    the state at its end) [B, T/64, H, K, V]; g [B, T, H] is the sum of log2 decays within the chunk
    """
    assert not state_v_first
    assert cu_seqlens is None
    assert chunk_indices is None
    shape = q.shape

    def chunks(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1, chunk_size, *x.shape[2:]).transpose(2, 3)

    q, k, v, do, dv = (chunks(x) for x in (q, k, v, do, dv))
    g = chunks(g).unsqueeze(-1).float()
    narrow = v.dtype
    back, forth = h.to(narrow).transpose(-1, -2), dh.to(narrow).transpose(-1, -2)
    last = g[..., -1:, :]
    dw = -(dv.to(narrow) @ back)
    dq = (do @ back).float() * (g.exp2() * scale)
    dk = (v @ forth).float() * (last - g).exp2()
    kept = (h.float() * dh.float()).sum((-1, -2)).unsqueeze(-1) * last.squeeze(-1).exp2()
    kept = kept + (dk * k).sum((-1, -2)).unsqueeze(-1)
    gamma = (g - g.transpose(-1, -2)).tril().exp2().tril() * scale
    ds = ((do @ v.transpose(-1, -2)).float() * gamma).to(narrow)
    dq = dq + (ds @ k).float()
    dk = dk + (ds.transpose(-1, -2) @ q).float()
    dg = (dq * q).sum(-1) - (dk * k).sum(-1)
    dg = torch.cat([dg[..., :-1], dg[..., -1:] + kept], -1)

    def whole(x: Tensor) -> Tensor:
        return x.transpose(2, 3).reshape(*shape[:3], *x.shape[4:])

    return whole(dq).to(q.dtype), whole(dk).to(k.dtype), whole(dw).to(w.dtype), whole(dg.unsqueeze(-1)).squeeze(-1)


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
