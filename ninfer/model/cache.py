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
    history       [C, W - 1 + K, channels] compute dtype: the newest convolution inputs, oldest first; K guessed tokens
                  of a round can be taken back
    entry         [C, W - 1, channels] compute dtype: those in front of the block of the entry state
    tables        [C, L] int32: physical page of each block
    counts        [C, V] int32: generated tokens of the running request
    anchors       [C] int64: the last drawn token
    pending       [C, 1 + K, H] compute dtype, or None without a drafter: see `ninfer.engine.drafter`
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
    pending: Tensor | None
    carried: Carried

    @property
    def drafter_planes(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the drafter's layer, which has pages like the others."""
        return self.keys[-1], self.values[-1]

    def take_back(self, lane: int, tokens: int) -> None:
        """Forget the last `tokens` convolution inputs of a lane: they belong to guesses that were wrong."""
        if tokens:
            for history in self.history:
                history[lane, tokens:] = history[lane, :-tokens].clone()

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


def attention_names(config: TextConfig, *, drafter: bool) -> list[str]:
    """Names of the layers that have pages, in the order of their planes; the drafter's layer is the last."""
    return [*map(str, layers_of(config, FULL_ATTENTION)), *(["mtp"] if drafter else [])]


def kv_specs(config: TextConfig, pages: int, dtype: str, *, drafter: bool = False) -> tuple[TensorSpec, ...]:
    """Planes of the page pool: plane-major, page-major inside a plane (kv-and-state spec 8.3)."""
    shape = (pages, config.kv_heads, PAGE_TOKENS, config.head_dim)
    layers = attention_names(config, drafter=drafter)
    return tuple(TensorSpec(f"{plane}/{layer}", shape, dtype) for layer in layers for plane in ("keys", "values"))


def state_specs(config: TextConfig, lanes: int, dtype: str, drafts: int = 0) -> tuple[TensorSpec, ...]:
    """Entry states with what the convolution read in front of them, and convolution histories (9.1, 9.4).

    drafts   guesses of a round that the histories can take back
    """
    shape = (lanes, config.gdn_value_heads, config.gdn_value_dim, config.gdn_key_dim)
    entry = (lanes, config.conv_kernel - 1, config.conv_channels)
    history = (lanes, config.conv_kernel - 1 + drafts, config.conv_channels)
    return tuple(
        spec
        for layer in layers_of(config, LINEAR_ATTENTION)
        for spec in (
            TensorSpec(f"s/{layer}", shape, "fp32"),
            TensorSpec(f"history/{layer}", history, dtype),
            TensorSpec(f"entry/{layer}", entry, dtype),
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


def pending_specs(config: TextConfig, lanes: int, dtype: str, drafts: int) -> tuple[TensorSpec, ...]:
    """What a drafter has yet to look at, behind a round with up to `drafts` guesses."""
    return (TensorSpec("pending", (lanes, 1 + drafts, config.hidden_size), dtype),)


def lane_specs(config: TextConfig, lanes: int, blocks: int) -> tuple[TensorSpec, ...]:
    """Small per-lane tensors: block tables of `blocks` entries, token counts, anchors."""
    return (
        TensorSpec("tables", (lanes, blocks), "int32"),
        TensorSpec("counts", (lanes, config.vocab_size), "int32"),
        TensorSpec("anchors", (lanes,), "int64"),
    )


def build_cache(config: TextConfig, kv: Arena, state: Arena, open_rows: Arena, *, drafter: bool = False) -> Cache:
    """Give tensors their meaning; `state` was made from :func:`state_specs`, with a drafter :func:`pending_specs`, and
    :func:`lane_specs` together.
    """
    attention, linear = attention_names(config, drafter=drafter), layers_of(config, LINEAR_ATTENTION)
    recent = stacked(state, "history", linear)
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
        pending=state["pending"] if drafter else None,
        carried=Carried(
            states=stacked(state, "s", linear),
            entry=stacked(state, "entry", linear),
            recent=recent[:, :, max(0, recent.shape[2] - config.conv_kernel + 1) :],
            planes=planes_of(kv),
        ),
    )


def stacked(arena: Arena, name: str, layers: list[int]) -> Tensor:
    """[L, C, n, ...]: tensors `name` of layers as one."""
    if not layers:
        return torch.empty(0, arena["tables"].shape[0], 0, 0, device=arena.device)
    return arena.stacked([f"{name}/{layer}" for layer in layers])
