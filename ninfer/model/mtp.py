"""The multi-token prediction layer (model spec 9.1): from a hidden state and the token behind it to the one after."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.artifact.config import TextConfig
from ninfer.kernels.embedding.op import embedding
from ninfer.kernels.linear.op import linear
from ninfer.kernels.rmsnorm.op import offset_rmsnorm
from ninfer.model.cache import Cache
from ninfer.model.forward import Batch, attention_layer, rotary_angles
from ninfer.model.weights import TextWeights


def predict(config: TextConfig, weights: TextWeights, cache: Cache, batch: Batch, hidden: Tensor) -> Tensor:
    """Run the layer over a batch whose ids are the tokens one position behind its own.

    hidden   [T, H] compute dtype: the decoder's final hidden states at the batch's positions, or what this function
             gave for the position before
    returns  [T, H] compute dtype
    effects  keys and values of the drafter's own planes are stored for the batch's positions
    """
    drafter = weights.drafter
    assert drafter is not None
    eps = config.rms_norm_eps
    e = offset_rmsnorm(embedding(batch.ids, weights.embedding), drafter.embedding_norm, eps)
    h = offset_rmsnorm(hidden, drafter.hidden_norm, eps)
    u = linear(torch.cat([e, h], dim=-1), drafter.join)
    u = attention_layer(config, drafter.layer, u, rotary_angles(config, batch), batch, *cache.drafter_planes)
    return offset_rmsnorm(u, drafter.final_norm, eps)


def likeliest(weights: TextWeights, m: Tensor, public_ids: int) -> Tensor:
    """[T] int64: the likeliest token by each row [T, H] of :func:`predict`; the first row of the head on ties."""
    drafter = weights.drafter
    assert drafter is not None
    logits = linear(m, drafter.head)
    if drafter.head_ids is None:
        return logits[:, :public_ids].argmax(dim=-1)
    return drafter.head_ids[logits[:, : len(drafter.head_ids)].argmax(dim=-1)]
