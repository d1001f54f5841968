"""The training network with the weights that an artifact holds, for what the engine does not show: loss and drafts."""

from __future__ import annotations

import numpy as np
import torch

from ninfer.artifact.binder import BoundArtifact
from ninfer.artifact.config import TextConfig
from ninfer.artifact.parameters import logical_parameters
from ninfer.embedded.training.dimensions import Dimensions
from ninfer.embedded.training.network import Network


def dimensions_of(text: TextConfig) -> Dimensions:
    """The dimensions in terms of the training network; ValueError for a member that it cannot express."""
    if text.intermediate_size is None or text.gdn_key_dim != text.gdn_value_dim or not text.tie_word_embeddings:
        raise ValueError("the training network is dense, has one GDN head width and a tied head")
    kinds = list(text.layer_types)
    return Dimensions(
        vocabulary=text.vocab_size,
        hidden=text.hidden_size,
        layers=len(kinds),
        interval=kinds.index("full_attention") + 1,
        intermediate=text.intermediate_size,
        heads=text.heads,
        kv_heads=text.kv_heads,
        head_dim=text.head_dim,
        key_heads=text.gdn_key_heads,
        value_heads=text.gdn_value_heads,
        gdn_dim=text.gdn_key_dim,
        taps=text.conv_kernel,
        rope_theta=text.rope_theta,
        max_positions=text.max_position_embeddings,
        eps=text.rms_norm_eps,
    )


def load_network(bound: BoundArtifact) -> Network:
    """Every parameter of components text and mtp, decoded; `bound` must have both."""
    network = Network(dimensions_of(bound.text))
    tensors = dict(network.named_parameters())
    seen: set[str] = set()
    with torch.no_grad():
        for parameter in logical_parameters(bound.components, "model."):
            source = parameter.source
            if source is None or parameter.role == "output_head":
                continue
            values = torch.from_numpy(np.array(bound.values(parameter.name)))
            target = tensors[source.tensor]
            seen.add(source.tensor)
            if source.taps_first:
                target.copy_(values.T.unsqueeze(1))
            elif source.rows is None:
                target.copy_(values.view_as(target))
            else:
                at = 0
                for run in range(source.rows.count):
                    begin = source.rows.begin + run * source.rows.stride
                    target[begin : begin + source.rows.length] = values[at : at + source.rows.length]
                    at += source.rows.length
    if missing := sorted(tensors.keys() - seen):
        raise ValueError(f"the artifact has no {', '.join(missing)}")
    return network.eval()
