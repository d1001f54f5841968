"""Plain-torch route of the block recurrence; the theory is in ``op.py``.

Everything that does not depend on earlier u is computed for whole blocks at once. Only the sum over u runs row by row,
as one product of shape [1, 64] x [64, DV] per row and head in prefill and decode alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer.kernels.numerics.activations import narrowed, reciprocal_root, sigmoid, softplus, widened
from ninfer.kernels.numerics.products import batched_rows, minus_single_rows

BLOCK = 64
L2_EPS = 1e-6  # model spec, section 0: inside the root, on the sum


def gdn_gates(a: Tensor, b: Tensor, decay_rate: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    return decay_rate * softplus(widened(a) + dt_bias), sigmoid(widened(b))


def normalised(x: Tensor) -> Tensor:
    wide = widened(x)
    return wide * reciprocal_root((wide * wide).sum(-1, keepdim=True).add_(L2_EPS))


def _per_value_head(x: Tensor, value_heads: int) -> Tensor:
    """[n, HK, ...] with each key head repeated for its value heads: [n, HV, ...]."""
    if x.shape[1] == value_heads:
        return x
    return x.repeat_interleave(value_heads // x.shape[1], dim=1)


def _chosen(pool: Tensor, lanes: Tensor) -> Tensor:
    """Slots of the given lanes; a single one needs no copy."""
    if lanes.shape[0] == 1:
        lane = int(lanes)
        return pool[lane : lane + 1]
    return pool.index_select(0, lanes)


def advanced(s: Tensor, kn: Tensor, u: Tensor, cumulative: Tensor) -> Tensor:
    """State after a full block: s [n, DV, DK], kn [n, 64, DK], u [n, 64, DV], cumulative [n, 64]."""
    last = cumulative[:, -1:]
    faded = (u * torch.exp(last - cumulative).unsqueeze(-1)).transpose(1, 2).contiguous()
    return s * torch.exp(last).unsqueeze(-1) + batched_rows(faded, kn)


def gdn_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    s: Tensor,
    open_k: Tensor,
    open_u: Tensor,
    open_g: Tensor,
    offset: int = 0,
) -> Tensor:
    value_heads, value_width = v.shape[1:]
    key_heads, key_width = k.shape[1:]
    tokens = offset + v.shape[0]  # with the open rows
    blocks = -(-tokens // BLOCK)

    def blocked(x: Tensor) -> Tensor:
        """[T, heads, ...] to [blocks, heads, 64, ...], padded with zero rows in front and behind."""
        padded = pad(x, (0, 0) * (x.dim() - 1) + (offset, blocks * BLOCK - tokens))
        return padded.view(blocks, BLOCK, *x.shape[1:]).transpose(1, 2).contiguous()

    kn, qn = blocked(normalised(k)), blocked(normalised(q))
    values, strength = blocked(v.float()), blocked(beta).unsqueeze(-1)
    cumulative = blocked(g)
    if offset:  # sums go on behind the last of the open rows
        cumulative[0, :, offset - 1] = open_g[:, offset - 1]
    for i in range(1, BLOCK):
        cumulative[:, :, i] += cumulative[:, :, i - 1]
    kn[0, :, :offset], cumulative[0, :, :offset] = open_k[:, :offset], open_g[:, :offset]

    both = torch.cat([kn, qn], dim=2)  # [blocks, HK, 128, DK]
    scores = batched_rows(
        both.view(blocks * key_heads, 2 * BLOCK, key_width),
        kn.view(blocks * key_heads, BLOCK, key_width).transpose(1, 2),
    )
    scores = _per_value_head(scores.view(blocks, key_heads, 2 * BLOCK, BLOCK), value_heads)
    distance = cumulative.unsqueeze(-1) - cumulative.unsqueeze(-2)
    earlier = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=v.device).tril()
    fading = torch.exp(distance.masked_fill(~earlier, -math.inf))
    # Row index first, so that each row of the substitution is one contiguous [HV, 64] matrix.
    before = (scores[:, :, :BLOCK] * fading).tril(-1).permute(0, 2, 1, 3).contiguous()
    upto = scores[:, :, BLOCK:] * fading

    both = _per_value_head(both, value_heads)
    growth = torch.exp(cumulative).unsqueeze(-1)
    out = v.new_empty(blocks, value_heads, BLOCK, value_width, dtype=torch.float32)
    for block in range(blocks):
        rows = min(BLOCK, tokens - block * BLOCK)
        carried = batched_rows(both[block], s.transpose(1, 2))  # [HV, 128, DV]
        rest = values[block] - growth[block] * carried[:, :BLOCK]
        u = torch.zeros_like(rest)
        done = 0 if block else offset
        u[:, :done] = open_u[:, :done]
        for i in range(done, rows):
            row = slice(i, i + 1)
            torch.mul(
                strength[block, :, row],
                minus_single_rows(rest[:, row], before[block, i].unsqueeze(1), u),
                out=u[:, row],
            )
        inside = batched_rows(upto[block], u)
        out[block] = (growth[block] * carried[:, BLOCK:] + inside) / math.sqrt(key_width)
        if rows == BLOCK:
            s.copy_(advanced(s, both[block, :, :BLOCK], u, cumulative[block]))
        else:
            open_k.copy_(kn[block])
            open_u.copy_(u)
            open_g.copy_(cumulative[block])
    rows_first = out.transpose(1, 2).reshape(blocks * BLOCK, value_heads, value_width)
    return rows_first[offset:tokens].to(v.dtype).contiguous()


def gdn_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    s: Tensor,
    open_k: Tensor,
    open_u: Tensor,
    open_g: Tensor,
    lanes: Tensor,
    offsets: Tensor,
) -> Tensor:
    batch, value_heads, value_width = v.shape
    key_heads, key_width = k.shape[1:]
    kn, qn = normalised(k), normalised(q)
    previous = open_g[lanes, :, (offsets - 1).clamp(min=0)]
    # The block's first row starts the sum: no zero is added before it, as in prefill.
    now = torch.where((offsets == 0).unsqueeze(-1), g, previous + g)
    open_k[lanes, :, offsets] = kn
    open_g[lanes, :, offsets] = now

    keys = _chosen(open_k, lanes).view(batch * key_heads, BLOCK, key_width)
    both = torch.stack([kn, qn], dim=2)  # [B, HK, 2, DK]
    scores = batched_rows(both.view(batch * key_heads, 2, key_width), keys.transpose(1, 2))
    scores = _per_value_head(scores.reshape(batch, key_heads, 2, BLOCK), value_heads)
    places = torch.arange(BLOCK, device=v.device)
    seen = (places <= offsets.unsqueeze(-1)).unsqueeze(1)  # [B, 1, 64]
    distance = now.unsqueeze(-1) - _chosen(open_g, lanes)
    fading = torch.exp(distance.masked_fill(~seen, -math.inf))
    own = (places == offsets.unsqueeze(-1)).unsqueeze(1)
    before = (scores[:, :, 0] * fading).masked_fill(own, 0.0)
    upto = scores[:, :, 1] * fading

    entry = _chosen(s, lanes).view(batch * value_heads, value_width, key_width)
    stacked = _per_value_head(both, value_heads).view(batch * value_heads, 2, key_width)
    carried = batched_rows(stacked, entry.transpose(1, 2)).view(batch, value_heads, 2, value_width)
    growth = torch.exp(now).unsqueeze(-1)
    rest = (widened(v) - growth * carried[:, :, 0]).view(batch * value_heads, 1, value_width)
    u = _chosen(open_u, lanes).view(batch * value_heads, BLOCK, value_width)
    rest = minus_single_rows(rest, before.view(batch * value_heads, 1, BLOCK), u)
    open_u[lanes, :, offsets] = beta.unsqueeze(-1) * rest.view(batch, value_heads, value_width)
    u = _chosen(open_u, lanes).view(batch * value_heads, BLOCK, value_width)
    inside = batched_rows(upto.view(batch * value_heads, 1, BLOCK), u).view(batch, value_heads, value_width)
    out = (growth * carried[:, :, 1] + inside) / math.sqrt(key_width)

    full = lanes[offsets == BLOCK - 1]
    if full.numel():
        ended = full.shape[0] * value_heads
        s[full] = advanced(
            s[full].view(ended, value_width, key_width),
            _per_value_head(open_k[full], value_heads).view(ended, BLOCK, key_width),
            open_u[full].view(ended, BLOCK, value_width),
            open_g[full].view(ended, BLOCK),
        ).view(full.shape[0], value_heads, value_width, key_width)
    return narrowed(out, v.dtype)
