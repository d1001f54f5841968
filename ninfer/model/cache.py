"""What sequences own on the device: attention pages, block tables and recurrent state, as named tensors.

`C` lanes share one pool of `M` pages; each lane has one row of the block table and one slot of every state tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION, TextConfig
from ninfer.kernels.gdn.op import BLOCK, GdnState
from ninfer.model.arena import Arena, TensorSpec
from ninfer.model.carried import Carried, planes_of
from ninfer.step import PAGE_TOKENS

assert BLOCK == PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Cache:
    """Tensors of every lane; a list has one entry per layer of its kind, in layer order.

    keys, values  [M, HKV, 64, D] in the cache's dtype
    recurrent     state and open rows, fp32
    history       [C, W - 1, channels] compute dtype: the newest convolution inputs, oldest first
    entry         [C, W - 1, channels] compute dtype: those in front of the block of the entry state
    tables        [C, L] int32: physical page of each block
    counts        [C, V] int32: generated tokens of the running request
    anchors       [C] int64: the last drawn token
    carried       what moves between lanes and host memory
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    recurrent: tuple[GdnState, ...]
    history: tuple[Tensor, ...]
    entry: tuple[Tensor, ...]
    tables: Tensor
    counts: Tensor
    anchors: Tensor
    carried: Carried

    def clear_lane(self, lane: int) -> None:
        """Bring a lane to the state before position 0; pages and entry columns need no clearing."""
        for state in self.recurrent:
            for tensor in (state.s, state.open_k, state.open_u, state.open_g):
                tensor[lane].zero_()
        for history in self.history:
            history[lane].zero_()
        self.counts[lane].zero_()


def layers_of(config: TextConfig, kind: str) -> list[int]:
    """Numbers of the layers of a kind."""
    return [layer for layer, layer_kind in enumerate(config.layer_types) if layer_kind == kind]


def kv_specs(config: TextConfig, pages: int, dtype: str) -> tuple[TensorSpec, ...]:
    """Planes of the page pool: plane-major, page-major inside a plane (kv-and-state spec 8.3)."""
    shape = (pages, config.kv_heads, PAGE_TOKENS, config.head_dim)
    layers = layers_of(config, FULL_ATTENTION)
    return tuple(TensorSpec(f"{plane}/{layer}", shape, dtype) for layer in layers for plane in ("keys", "values"))


def state_specs(config: TextConfig, lanes: int, dtype: str) -> tuple[TensorSpec, ...]:
    """Entry states with what the convolution read in front of them, and convolution histories (9.1, 9.4)."""
    shape = (lanes, config.gdn_value_heads, config.gdn_value_dim, config.gdn_key_dim)
    history = (lanes, config.conv_kernel - 1, config.conv_channels)
    return tuple(
        spec
        for layer in layers_of(config, LINEAR_ATTENTION)
        for spec in (
            TensorSpec(f"s/{layer}", shape, "fp32"),
            TensorSpec(f"history/{layer}", history, dtype),
            TensorSpec(f"entry/{layer}", history, dtype),
        )
    )


def open_row_specs(config: TextConfig, lanes: int) -> tuple[TensorSpec, ...]:
    """Rows of the open blocks (9.4)."""
    key = (lanes, config.gdn_key_heads, BLOCK, config.gdn_key_dim)
    value = (lanes, config.gdn_value_heads, BLOCK, config.gdn_value_dim)
    return tuple(
        TensorSpec(f"{name}/{layer}", shape, "fp32")
        for layer in layers_of(config, LINEAR_ATTENTION)
        for name, shape in (("open_k", key), ("open_u", value), ("open_g", value[:3]))
    )


def lane_specs(config: TextConfig, lanes: int, blocks: int) -> tuple[TensorSpec, ...]:
    """Small per-lane tensors: block tables of `blocks` entries, token counts, anchors."""
    return (
        TensorSpec("tables", (lanes, blocks), "int32"),
        TensorSpec("counts", (lanes, config.vocab_size), "int32"),
        TensorSpec("anchors", (lanes,), "int64"),
    )


def build_cache(config: TextConfig, kv: Arena, state: Arena, open_rows: Arena) -> Cache:
    """Give tensors their meaning; `state` was made from :func:`state_specs` and :func:`lane_specs` together."""
    attention, linear = layers_of(config, FULL_ATTENTION), layers_of(config, LINEAR_ATTENTION)
    return Cache(
        keys=tuple(kv[f"keys/{layer}"] for layer in attention),
        values=tuple(kv[f"values/{layer}"] for layer in attention),
        recurrent=tuple(
            GdnState(
                s=state[f"s/{layer}"],
                open_k=open_rows[f"open_k/{layer}"],
                open_u=open_rows[f"open_u/{layer}"],
                open_g=open_rows[f"open_g/{layer}"],
            )
            for layer in linear
        ),
        history=tuple(state[f"history/{layer}"] for layer in linear),
        entry=tuple(state[f"entry/{layer}"] for layer in linear),
        tables=state["tables"],
        counts=state["counts"],
        anchors=state["anchors"],
        carried=Carried(
            states=stacked(state, "s", linear),
            entry=stacked(state, "entry", linear),
            recent=stacked(state, "history", linear),
            planes=planes_of(kv),
        ),
    )


def stacked(arena: Arena, name: str, layers: list[int]) -> Tensor:
    """[L, C, n, ...]: tensors `name` of layers as one."""
    if not layers:
        return torch.empty(0, arena["tables"].shape[0], 0, 0, device=arena.device)
    return arena.stacked([f"{name}/{layer}" for layer in layers])
