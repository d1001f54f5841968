"""The network of the family (model spec 6 and 9) in plain torch for training; parameters carry the checkpoint's names.

Tokens of all rows lie behind each other: hidden states are [N, hidden]. Only the delta rule and attention see rows and
documents; everything else is per token, so that one compiled graph serves every row length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu, softplus

from ninfer.embedded.training.delta_rule import RESET, DeltaRule
from ninfer.embedded.training.dimensions import Dimensions
from ninfer.embedded.training.packed_attention import Attention, Documents
from ninfer.embedded.training.rounding import Q4, Q5, Q8, rounded

Format = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Routes:
    """Which implementations of the two sequence operations are used."""

    delta_rule: DeltaRule
    attention: Attention


def offset_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm with factor 1 + weight, in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (1 + weight.float())).to(x.dtype)


class Weight(nn.Module):
    """One parameter called `weight`."""

    def __init__(self, *shape: int, fill: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, fill))


class Matrix(nn.Module):
    """A projection without bias whose rows will be stored in the given formats, in runs (rows, format)."""

    qmax: Tensor
    amount: Tensor

    def __init__(self, columns: int, runs: Sequence[tuple[int, Format]], std: float) -> None:
        super().__init__()
        (self.group,) = {group for _, (_, group) in runs}
        limits = torch.cat([torch.full((rows, 1), float(qmax)) for rows, (qmax, _) in runs])
        self.weight = nn.Parameter(torch.randn(len(limits), columns) * std)
        self.register_buffer("qmax", limits, persistent=False)
        # A tensor, so that turning rounding on compiles nothing anew.
        self.register_buffer("amount", torch.zeros(()), persistent=False)

    def rounded(self) -> Tensor:
        return rounded(self.weight, self.qmax, self.group, self.amount)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.rounded().to(x.dtype))


class Feed(nn.Module):
    def __init__(self, d: Dimensions, formats: tuple[Format, Format]) -> None:
        super().__init__()
        std = 0.5 / math.sqrt(d.hidden)
        self.gate_proj = Matrix(d.hidden, [(d.intermediate, formats[0])], std)
        self.up_proj = Matrix(d.hidden, [(d.intermediate, formats[0])], std)
        self.down_proj = Matrix(d.intermediate, [(d.hidden, formats[1])], 0.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class GatedDeltaNet(nn.Module):
    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self._d = d
        std = 0.5 / math.sqrt(d.hidden)
        keys, values = d.key_heads * d.gdn_dim, d.value_heads * d.gdn_dim
        self.in_proj_qkv = Matrix(d.hidden, [(2 * keys, Q4), (values, Q5)], std)
        self.in_proj_z = Matrix(d.hidden, [(values, Q5)], std)
        self.in_proj_a = Weight(d.value_heads, d.hidden)
        self.in_proj_b = Weight(d.value_heads, d.hidden)
        self.conv1d = Weight(d.conv_channels, 1, d.taps)
        nn.init.uniform_(self.conv1d.weight, -0.5, 0.5)
        self.A_log = nn.Parameter(torch.empty(d.value_heads).uniform_(1, 16).log())
        step = torch.empty(d.value_heads).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = Weight(d.gdn_dim, fill=1.0)
        self.out_proj = Matrix(values, [(d.hidden, Q5)], 0.0)

    def inputs(self, n: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v [N, H, D], g and beta [N, H] fp32, z [N, H, D]."""
        d = self._d
        p = self.in_proj_qkv(n)
        taps = self.conv1d.weight[:, 0].to(p.dtype)
        c = p * taps[:, -1]
        for back in range(1, d.taps):
            before = torch.cat([p.new_zeros(back, p.shape[1]), p[:-back]])
            c = c + torch.where((positions >= back).unsqueeze(-1), before * taps[:, d.taps - 1 - back], 0.0)
        keys = d.key_heads * d.gdn_dim
        q, k, v = silu(c).tensor_split((keys, 2 * keys), -1)
        q, k = (_unit(x.reshape(-1, d.key_heads, d.gdn_dim)) for x in (q, k))
        group = d.value_heads // d.key_heads
        q, k = (x.repeat_interleave(group, 1) if group > 1 else x for x in (q * d.gdn_dim**-0.5, k))
        v = v.reshape(-1, d.value_heads, d.gdn_dim)
        a, b = (linear(n, m.weight.to(n.dtype)).float() for m in (self.in_proj_a, self.in_proj_b))
        g = -self.A_log.float().exp() * softplus(a + self.dt_bias.float())
        g = torch.where((positions == 0).unsqueeze(-1), RESET, g)
        z = self.in_proj_z(n).view(-1, d.value_heads, d.gdn_dim)
        return q.contiguous(), k.contiguous(), v.contiguous(), g, b.sigmoid(), z

    def outputs(self, o: Tensor, z: Tensor) -> Tensor:
        wide = o.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._d.eps)
        o = (self.norm.weight * wide * silu(z.float())).to(z.dtype)
        out: Tensor = self.out_proj(o.flatten(1))
        return out


def _unit(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


class GatedAttention(nn.Module):
    def __init__(self, d: Dimensions, formats: tuple[Format, Format]) -> None:
        super().__init__()
        self._d = d
        low, high = formats
        std = 0.5 / math.sqrt(d.hidden)
        self.q_proj = Matrix(d.hidden, [(d.head_dim, low), (d.head_dim, high)] * d.heads, std)
        self.k_proj = Matrix(d.hidden, [(d.kv_heads * d.head_dim, low)], std)
        self.v_proj = Matrix(d.hidden, [(d.kv_heads * d.head_dim, high)], std)
        self.o_proj = Matrix(d.heads * d.head_dim, [(d.hidden, high)], 0.0)
        self.q_norm = Weight(d.head_dim)
        self.k_norm = Weight(d.head_dim)

    def inputs(self, n: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q [N, H, D], k and v [N, HKV, D], gate [N, H, D]."""
        d = self._d
        q, gate = self.q_proj(n).view(-1, d.heads, 2 * d.head_dim).chunk(2, -1)
        k = self.k_proj(n).view(-1, d.kv_heads, d.head_dim)
        v = self.v_proj(n).view(-1, d.kv_heads, d.head_dim)
        pairs = torch.arange(0, d.rotary, 2, dtype=torch.float32, device=n.device)
        angles = positions.float().unsqueeze(-1) * d.rope_theta ** (-pairs / d.rotary)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        q = _rotate(offset_norm(q, self.q_norm.weight, d.eps), cos, sin)
        k = _rotate(offset_norm(k, self.k_norm.weight, d.eps), cos, sin)
        return q.contiguous(), k.contiguous(), v.contiguous(), gate

    def outputs(self, o: Tensor, gate: Tensor) -> Tensor:
        out: Tensor = self.o_proj((o * gate.sigmoid()).flatten(1))
        return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    left, right, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    turned = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
    return torch.cat([turned.to(x.dtype), rest], -1)


class Layer(nn.Module):
    """A decoder layer; `before` and `after` are the per-token halves on both sides of the sequence operation."""

    def __init__(self, d: Dimensions, *, attention: bool, formats: tuple[Format, Format]) -> None:
        super().__init__()
        self._d = d
        self.input_layernorm = Weight(d.hidden)
        self.post_attention_layernorm = Weight(d.hidden)
        self.self_attn: GatedAttention | None = None
        self.linear_attn: GatedDeltaNet | None = None
        if attention:
            self.self_attn = GatedAttention(d, formats)
        else:
            self.linear_attn = GatedDeltaNet(d)
        self.mlp = Feed(d, formats)

    def before(self, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        n = offset_norm(x, self.input_layernorm.weight, self._d.eps)
        if self.linear_attn is not None:
            return self.linear_attn.inputs(n, positions)
        assert self.self_attn is not None
        return self.self_attn.inputs(n, positions)

    def after(self, x: Tensor, o: Tensor, gate: Tensor) -> Tensor:
        mixer = self.self_attn if self.linear_attn is None else self.linear_attn
        assert mixer is not None
        x = x + mixer.outputs(o, gate)
        out: Tensor = x + self.mlp(offset_norm(x, self.post_attention_layernorm.weight, self._d.eps))
        return out

    def forward(self, x: Tensor, documents: Documents, routes: Routes) -> Tensor:
        *inputs, gate = self.before(x, documents.positions)
        if self.linear_attn is not None:
            q, k, v, g, beta = (y.view(documents.rows, -1, *y.shape[1:]) for y in inputs)
            return self.after(x, routes.delta_rule(q, k, v, g, beta).reshape(gate.shape), gate)
        q, k, v = inputs
        return self.after(x, routes.attention(q, k, v, documents), gate)


class Decoder(nn.Module):
    """Names below `model.`"""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.embed_tokens = Matrix(d.hidden, [(d.vocabulary, Q8)], 0.05)
        self.layers = nn.ModuleList(Layer(d, attention=d.is_attention(i), formats=(Q4, Q5)) for i in range(d.layers))
        self.norm = Weight(d.hidden)


class Predictor(nn.Module):
    """Names below `mtp.` (model spec 9.1)."""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self._eps = d.eps
        self.pre_fc_norm_embedding = Weight(d.hidden)
        self.pre_fc_norm_hidden = Weight(d.hidden)
        self.fc = Matrix(2 * d.hidden, [(d.hidden, Q8)], 0.5 / math.sqrt(d.hidden))
        self.layers = nn.ModuleList([Layer(d, attention=True, formats=(Q8, Q8))])
        self.norm = Weight(d.hidden)

    def join(self, e: Tensor, h: Tensor) -> Tensor:
        e = offset_norm(e, self.pre_fc_norm_embedding.weight, self._eps)
        h = offset_norm(h, self.pre_fc_norm_hidden.weight, self._eps)
        out: Tensor = self.fc(torch.cat([e, h], -1))
        return out


class Network(nn.Module):
    """The decoder with its MTP layer; the head is the embedding."""

    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.dimensions = d
        self.model = Decoder(d)
        self.mtp = Predictor(d)

    def round_weights(self, amount: float) -> None:
        """From now on use weights moved by `amount`, in [0, 1], towards their stored values."""
        for module in self.modules():
            if isinstance(module, Matrix):
                module.amount.fill_(amount)

    def head(self) -> Tensor:
        return self.model.embed_tokens.rounded()

    def forward(self, ids: Tensor, documents: Documents, routes: Routes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """ids [N] int64; returns final hidden h and the MTP layer's m, [N, hidden] each.

        h[t] predicts ids[t+1], m[t] predicts ids[t+2]; the last column of each document means nothing.
        """
        table = self.head().to(dtype)
        embedded = embedding(ids, table)
        x = embedded
        for layer in self.model.layers:
            x = layer(x, documents, routes)
        h = offset_norm(x, self.model.norm.weight, self.dimensions.eps)
        u = self.mtp.join(torch.cat([embedded[1:], embedded[:1]]), h)
        u = self.mtp.layers[0](u, documents, routes)
        return h, offset_norm(u, self.mtp.norm.weight, self.dimensions.eps)
