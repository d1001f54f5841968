"""The text decoder (model spec, section 6): one function for a prefill chunk and for a decode batch.

Each row of a batch is one token. Row-wise operations see all rows at once; attention sees them as runs, that is
consecutive tokens of one lane inside one block; the recurrence sees either one lane's chunk or one token of each lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.artifact.config import TextConfig
from ninfer.kernels.causal_conv.op import causal_conv
from ninfer.kernels.embedding.op import embedding
from ninfer.kernels.gated_norm.op import gated_norm
from ninfer.kernels.gdn.op import BLOCK, GdnRows, GdnState, gdn_decode, gdn_gates, gdn_prefill
from ninfer.kernels.kv_append.op import kv_append
from ninfer.kernels.linear.op import linear
from ninfer.kernels.paged_attention.op import output_gate, paged_attention
from ninfer.kernels.rmsnorm.op import offset_rmsnorm
from ninfer.kernels.rotary.op import rotary_frequencies, rotary_tables, rotate
from ninfer.kernels.silu_mul.op import silu_mul
from ninfer.model.cache import Cache
from ninfer.model.weights import AttentionWeights, GdnWeights, LayerWeights, TextWeights


@dataclass(frozen=True, slots=True)
class Run:
    """Rows [begin, end) of a batch: consecutive tokens of one lane from `position` on, all in one block.

    pages  [n] int64, the lane's pages up to and including that block
    """

    begin: int
    end: int
    position: int
    pages: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's tokens.

    ids             [T] int64
    coordinates     [3, T] int64, rotary positions on the axes time, height, width
    pages, offsets  [T] int64, where each token's key and value go; offset is the position modulo 64
    lanes           [T] int64 for a decode batch; [1] for a prefill chunk
    runs            cover all rows in order
    chunk           True for a prefill chunk: consecutive tokens of one lane, behind the open rows that it has if the
                    first is not a block's first
    columns         of a decode batch in which lanes have several tokens: rows of the first token of each lane, of the
                    second, and so on, each [n] int64; None if every lane has one
    """

    ids: Tensor
    coordinates: Tensor
    pages: Tensor
    offsets: Tensor
    lanes: Tensor
    runs: tuple[Run, ...]
    chunk: bool
    columns: tuple[Tensor, ...] | None = None


@dataclass(frozen=True, slots=True)
class Angles:
    """Rotary tables of a batch's positions, [T, R / 2] fp32 each."""

    cos: Tensor
    sin: Tensor


def forward(config: TextConfig, weights: TextWeights, cache: Cache, batch: Batch) -> Tensor:
    """Run the decoder over a batch.

    returns  [T, H] compute dtype: the residual stream before the final norm
    effects  keys, values and recurrent state of the batch's lanes move past its tokens
    """
    x = embedding(batch.ids, weights.embedding)
    angles = _angles(config, batch)
    attention = recurrent = 0
    for layer in weights.layers:
        if isinstance(layer.mixer, AttentionWeights):
            assert angles is not None
            x = attention_layer(config, layer, x, angles, batch, cache.keys[attention], cache.values[attention])
            attention += 1
            continue
        n = offset_rmsnorm(x, layer.input_norm, config.rms_norm_eps)
        state, history, entry = cache.recurrent[recurrent], cache.history[recurrent], cache.entry[recurrent]
        x = _added(x, _gdn(config, layer.mixer, n, batch, state, history, entry))
        recurrent += 1
        x = _added(x, _feed_forward(config, layer, x))
    return x


def attention_layer(
    config: TextConfig,
    layer: LayerWeights,
    x: Tensor,
    angles: Angles,
    batch: Batch,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """One layer of full attention and its feed-forward: [T, H] to [T, H]; the batch's keys and values are stored."""
    assert isinstance(layer.mixer, AttentionWeights)
    n = offset_rmsnorm(x, layer.input_norm, config.rms_norm_eps)
    x = _added(x, _attention(config, layer.mixer, n, angles, batch, keys, values))
    return _added(x, _feed_forward(config, layer, x))


def final_hidden(config: TextConfig, weights: TextWeights, x: Tensor) -> Tensor:
    """Input of the head for chosen rows of :func:`forward`'s result."""
    return offset_rmsnorm(x, weights.final_norm, config.rms_norm_eps)


def token_logits(weights: TextWeights, hidden: Tensor, public_ids: int) -> Tensor:
    """[T, public_ids] fp32: the head's rows beyond the tokenizer's ids are reserved and never seen."""
    return linear(hidden, weights.head)[:, :public_ids].float().contiguous()


def _added(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is torch.float32:
        return x + y
    return (x.float() + y.float()).to(x.dtype)


def _angles(config: TextConfig, batch: Batch) -> Angles | None:
    return rotary_angles(config, batch) if config.heads else None


def rotary_angles(config: TextConfig, batch: Batch) -> Angles:
    """Rotary tables of a batch, for a model with attention."""
    frequencies = rotary_frequencies(config.rope_theta, config.rotary_dim, batch.ids.device)
    time, height, width = config.mrope_section
    return Angles(*rotary_tables(batch.coordinates, frequencies, (time, height, width)))


def _attention(
    config: TextConfig,
    weights: AttentionWeights,
    n: Tensor,
    angles: Angles,
    batch: Batch,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    tokens, dim = n.shape[0], config.head_dim
    query, kv = config.query_width, config.kv_width
    q, gate, k, v = linear(n, weights.into).split_with_sizes([query, query, kv, kv], dim=-1)
    q = offset_rmsnorm(q.reshape(tokens, config.heads, dim), weights.query_norm, config.rms_norm_eps)
    k = offset_rmsnorm(k.reshape(tokens, config.kv_heads, dim), weights.key_norm, config.rms_norm_eps)
    q, k = rotate(q, angles.cos, angles.sin), rotate(k, angles.cos, angles.sin)
    kv_append(k, v.reshape(tokens, config.kv_heads, dim), batch.pages, batch.offsets, keys, values)
    mixed = torch.cat(
        [paged_attention(q[run.begin : run.end], keys, values, run.pages, run.position) for run in batch.runs]
    )
    gated = output_gate(mixed, gate.reshape(tokens, config.heads, dim))
    return linear(gated.view(tokens, query), weights.out)


def _gdn(
    config: TextConfig,
    weights: GdnWeights,
    n: Tensor,
    batch: Batch,
    state: GdnState,
    history: Tensor,
    entry: Tensor,
) -> Tensor:
    tokens, heads = n.shape[0], config.gdn_value_heads
    channels, width = config.conv_channels, config.gdn_value_width
    p, z, a, b = linear(n, weights.into).split_with_sizes([channels, width, heads, heads], dim=-1)
    mixed = (_chunk_inputs if batch.chunk else _round_inputs)(p, weights.taps, batch, history, entry)
    key = config.gdn_key_width
    q, k, v = mixed.split_with_sizes([key, key, width], dim=-1)
    g, beta = gdn_gates(a, b, weights.decay_rate, weights.dt_bias)
    rows = GdnRows(
        q=q.reshape(tokens, config.gdn_key_heads, config.gdn_key_dim),
        k=k.reshape(tokens, config.gdn_key_heads, config.gdn_key_dim),
        v=v.reshape(tokens, heads, config.gdn_value_dim),
        g=g,
        beta=beta,
    )
    if batch.chunk:
        o = gdn_prefill(rows, state, int(batch.lanes[0]), int(batch.offsets[0]))
    elif batch.columns is None:
        o = gdn_decode(rows, state, batch.lanes, batch.offsets)
    else:
        o = torch.empty_like(rows.v)
        for at in batch.columns:  # a lane's tokens one after the other: each needs the row of the one before
            o[at] = gdn_decode(_rows_at(rows, at), state, batch.lanes[at], batch.offsets[at])
    y = gated_norm(o, z.reshape(tokens, heads, config.gdn_value_dim), weights.norm, config.rms_norm_eps)
    return linear(y.view(tokens, width), weights.out)


def _rows_at(rows: GdnRows, at: Tensor) -> GdnRows:
    return GdnRows(rows.q[at], rows.k[at], rows.v[at], rows.g[at], rows.beta[at])


def _chunk_inputs(p: Tensor, taps: Tensor, batch: Batch, history: Tensor, entry: Tensor) -> Tensor:
    """Convolved inputs [T, C] of a chunk; history and entry columns move on."""
    before, tokens = entry.shape[1], p.shape[0]
    lane = int(batch.lanes[0])
    columns = torch.cat([history[lane, -before:], p])
    history[lane, -before:] = columns[tokens:]
    offset = int(batch.offsets[0])
    if full := (offset + tokens) // BLOCK * BLOCK:  # with a block the state moves on, and what was read in front of it
        entry[lane] = columns[full - offset : full - offset + before]
    return causal_conv(columns.unsqueeze(0), taps)[0]


def _round_inputs(p: Tensor, taps: Tensor, batch: Batch, history: Tensor, entry: Tensor) -> Tensor:
    """Convolved inputs [T, C] of a decode batch; history and entry columns move on."""
    if batch.columns is None:
        return _column_inputs(p, taps, batch.lanes, batch.offsets, history, entry)
    mixed = torch.empty_like(p)
    for at in batch.columns:
        mixed[at] = _column_inputs(p[at], taps, batch.lanes[at], batch.offsets[at], history, entry)
    return mixed


def _column_inputs(p: Tensor, taps: Tensor, lanes: Tensor, offsets: Tensor, history: Tensor, entry: Tensor) -> Tensor:
    before = entry.shape[1]
    columns = torch.cat([history.index_select(0, lanes), p.unsqueeze(1)], dim=1)
    history[lanes] = columns[:, 1:]
    ended = lanes[offsets == BLOCK - 1]
    entry[ended] = history[ended, -before:]
    return causal_conv(columns[:, -before - 1 :].contiguous(), taps).squeeze(1)


def _feed_forward(config: TextConfig, layer: LayerWeights, x: Tensor) -> Tensor:
    n = offset_rmsnorm(x, layer.post_norm, config.rms_norm_eps)
    return linear(silu_mul(linear(n, layer.gate_up)), layer.down)
