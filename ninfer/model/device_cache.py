"""What sequences own on a GPU: attention pages in the cache's codec, recurrent slots, and what drawing needs per lane.

Nothing here is cleared between sequences but the token counts: who reads knows which positions exist.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.artifact.config import LINEAR_ATTENTION, TextConfig
from ninfer.kernels.gdn.slots import KEY_ROWS, RING, RING_ROWS, ROWS, TAPS, GdnSlots
from ninfer.kernels.kv_codec.pool import SCALE_GROUP, Pool
from ninfer.kernels.sampler.lanes import LAW_FIELDS, MAX_STOP_IDS, LaneTables
from ninfer.kernels.sampler.masks import mask_words
from ninfer.model.arena import Arena, TensorSpec
from ninfer.model.cache import attention_names, layers_of, stacked
from ninfer.model.carried import Carried, planes_of
from ninfer.step import PAGE_TOKENS

KV_DTYPES = ("bf16", "int8")


@dataclass(frozen=True, slots=True)
class DeviceCache:
    """Tensors of every lane; a tuple has one entry per layer of its kind, in layer order.

    pools     attention pages
    slots     state and open rows of the recurrent layers
    tables    [C, L] int32: physical page of each block
    drawing   laws, stop ids, counts, anchors, masks and what halts a round
    pending   [C, 1 + K, H] bf16, or None without a drafter: hidden states behind the last step of a lane
    carried   what moves between lanes and host memory
    """

    pools: tuple[Pool, ...]
    slots: tuple[GdnSlots, ...]
    tables: Tensor
    drawing: LaneTables
    pending: Tensor | None
    carried: Carried


def kv_specs(config: TextConfig, pages: int, dtype: str, *, drafter: bool = False) -> tuple[TensorSpec, ...]:
    """Planes of the page pool (kv-and-state spec 8.3); those of a drafter's layer are the last."""
    shape = (pages, config.kv_heads, PAGE_TOKENS)
    specs = []
    for layer in attention_names(config, drafter=drafter):
        for plane in ("keys", "values"):
            specs.append(TensorSpec(f"{plane}/{layer}", (*shape, config.head_dim), dtype))
            if dtype == "int8":
                specs.append(TensorSpec(f"{plane}_scales/{layer}", (*shape, config.head_dim // SCALE_GROUP), "fp16"))
    return tuple(specs)


def state_specs(config: TextConfig, lanes: int) -> tuple[TensorSpec, ...]:
    """Entry states, and the newest convolution inputs with the entry columns behind them."""
    assert config.conv_kernel == TAPS
    state = (lanes, config.gdn_value_heads, config.gdn_value_dim, config.gdn_key_dim)
    return tuple(
        spec
        for layer in layers_of(config, LINEAR_ATTENTION)
        for spec in (
            TensorSpec(f"s/{layer}", state, "fp32"),
            TensorSpec(f"ring/{layer}", (lanes, RING_ROWS, config.conv_channels), "bf16"),
        )
    )


def open_row_specs(config: TextConfig, lanes: int) -> tuple[TensorSpec, ...]:
    """Rows of the open blocks (9.4)."""
    keys = (lanes, config.gdn_key_heads, KEY_ROWS, config.gdn_key_dim)
    values = (lanes, config.gdn_value_heads, ROWS, config.gdn_value_dim)
    factors = (lanes, config.gdn_value_heads, 2, ROWS)
    return tuple(
        TensorSpec(f"{name}/{layer}", shape, dtype)
        for layer in layers_of(config, LINEAR_ATTENTION)
        for name, shape, dtype in (("open_k", keys, "bf16"), ("open_u", values, "fp32"), ("open_g", factors, "fp32"))
    )


def lane_specs(config: TextConfig, lanes: int, blocks: int, columns: int = 1) -> tuple[TensorSpec, ...]:
    """Block tables of `blocks` entries, and what drawing reads and writes for up to `columns` columns of a lane."""
    return (
        TensorSpec("tables", (lanes, blocks), "int32"),
        TensorSpec("counts", (lanes, config.vocab_size), "int32"),
        TensorSpec("laws", (lanes, LAW_FIELDS), "fp32"),
        TensorSpec("stops", (lanes, MAX_STOP_IDS), "int32"),
        TensorSpec("anchors", (lanes,), "int32"),
        TensorSpec("masks", (lanes, columns, mask_words(config.vocab_size)), "int32"),
        TensorSpec("halts", (lanes, mask_words(config.vocab_size)), "int32"),
    )


def build_device_cache(
    config: TextConfig, kv: Arena, state: Arena, open_rows: Arena, dtype: str, *, drafter: bool = False
) -> DeviceCache:
    """Give tensors their meaning; `state` was made from :func:`state_specs`, with a drafter `pending_specs`, and
    :func:`lane_specs` together.
    """
    scaled = dtype == "int8"
    linear = layers_of(config, LINEAR_ATTENTION)
    ring = stacked(state, "ring", linear)
    return DeviceCache(
        pools=tuple(
            Pool(
                keys=kv[f"keys/{layer}"],
                values=kv[f"values/{layer}"],
                key_scales=kv[f"keys_scales/{layer}"] if scaled else None,
                value_scales=kv[f"values_scales/{layer}"] if scaled else None,
            )
            for layer in attention_names(config, drafter=drafter)
        ),
        slots=tuple(
            GdnSlots(
                s=state[f"s/{layer}"],
                open_k=open_rows[f"open_k/{layer}"],
                open_u=open_rows[f"open_u/{layer}"],
                open_g=open_rows[f"open_g/{layer}"],
                ring=state[f"ring/{layer}"],
            )
            for layer in linear
        ),
        tables=state["tables"],
        drawing=LaneTables(
            laws=state["laws"],
            stops=state["stops"],
            counts=state["counts"],
            anchors=state["anchors"],
            masks=state["masks"],
            halts=state["halts"],
        ),
        pending=state["pending"] if drafter else None,
        carried=Carried(
            states=stacked(state, "s", linear),
            entry=ring[:, :, RING:],
            recent=ring[:, :, RING - TAPS + 1 : RING],
            planes=planes_of(kv),
        ),
    )


def fill_lane(cache: DeviceCache, lane: int, pages: Tensor) -> None:
    """Put small random numbers where a lane has its state, and in its pages [n] int64, for measurements: zeros would be
    multiplied with less power, and leftovers may not be finite.
    """
    for pool in cache.pools:
        for plane in (pool.keys, pool.values):
            values = torch.randn(len(pages), *plane.shape[1:], dtype=torch.bfloat16, device=plane.device)
            plane[pages] = (40 * values).clamp_(-127, 127).to(plane.dtype) if pool.int8 else values
        for scales in (pool.key_scales, pool.value_scales):
            if scales is not None:
                scales[pages] = 1 / 40
    for slot in cache.slots:
        slot.s[lane].normal_(std=0.1)
        slot.ring[lane].normal_()
