"""One decode round on a GPU: a token of each of B lanes, or L consecutive ones, through the whole decoder.

Five launches per layer: input product, mixer, output product, gate and up, down. Whatever lies between them (norms,
residual sums, activations, codes) is done by the launch that has the numbers at hand. A round reads lanes, positions
and laws from device memory and allocates nothing, so it is captured once per number of lanes and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.artifact.config import TextConfig
from ninfer.kernels.embedding.stored import gather
from ninfer.kernels.gdn.rounds import gdn_round
from ninfer.kernels.gdn.slots import GdnConstants
from ninfer.kernels.kv_codec.pool import Codec
from ninfer.kernels.low_bit_linear.buffers import Columns, PartialSums, columns_buffer, partial_sums
from ninfer.kernels.low_bit_linear.op import Product, first_norm, product_residual, product_rows, product_silu_mul
from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from ninfer.kernels.low_bit_linear.variants import PROGRAMS_PER_MULTIPROCESSOR
from ninfer.kernels.paged_attention.op import attention_round
from ninfer.kernels.paged_attention.scratch import RoundScratch, round_scratch
from ninfer.kernels.paged_attention.variants import ROUND_PROGRAMS
from ninfer.kernels.rotary.columns import rotary_columns
from ninfer.kernels.rotary.op import rotary_frequencies
from ninfer.kernels.sampler.lanes import DrawBuffers, draw, draw_buffers
from ninfer.model.device_cache import DeviceCache
from ninfer.model.low_bit_weights import AttentionMatrices, GdnMatrices, LayerMatrices, TextMatrices
from ninfer.step import PAGE_TOKENS

MAX_ROWS = 8
MAX_TOKENS = 32  # of a round: what the products take at once


@dataclass(frozen=True, slots=True)
class RoundInputs:
    """What the host tells a round, in one piece of device memory that one copy fills.

    storage       [4, 8] int32
    lanes, positions, state_blocks  [8] int32 rows of it; see `gdn_round`
    uniforms      [8] fp32: the fourth row
    """

    storage: Tensor

    @property
    def lanes(self) -> Tensor:
        return self.storage[0]

    @property
    def positions(self) -> Tensor:
        return self.storage[1]

    @property
    def state_blocks(self) -> Tensor:
        return self.storage[2]

    @property
    def uniforms(self) -> Tensor:
        return self.storage[3].view(torch.float32)


@dataclass(frozen=True, slots=True)
class Sums:
    """Partial sums by the shapes that share a launch; launches follow each other, so one set serves all layers."""

    by_shape: dict[tuple[tuple[int, int, int], ...], tuple[PartialSums, ...]]

    def products(self, *weights: LowBitWeight) -> list[Product]:
        sums = self.by_shape[_shapes(weights)]
        return [Product(weight, part) for weight, part in zip(weights, sums, strict=True)]


def _shapes(weights: tuple[LowBitWeight, ...]) -> tuple[tuple[int, int, int], ...]:
    return tuple((weight.rows, weight.columns, weight.bits) for weight in weights)


def _launches(weights: TextMatrices) -> list[tuple[LowBitWeight, ...]]:
    launches: list[tuple[LowBitWeight, ...]] = [(weights.head,)]
    layers = list(weights.layers)
    if weights.drafter is not None:
        launches += [(weights.drafter.head,), (weights.drafter.join,)]
        layers.append(weights.drafter.layer)
    for layer in layers:
        mixer = layer.mixer
        launches += [(mixer.first, mixer.second), (mixer.out,), (layer.gate_up,), (layer.down,)]
    return launches


def round_sums(weights: TextMatrices, tokens: int, programs: int) -> Sums:
    """Sums of every shape of launch, for up to `tokens` columns."""
    distinct = {_shapes(launch): launch for launch in _launches(weights)}
    return Sums({shapes: partial_sums(launch, tokens, programs) for shapes, launch in distinct.items()})


@dataclass(frozen=True, slots=True)
class RoundColumns:
    """Columns of a round between its products, all of one width; `mixed` by what the mixers give."""

    x: Columns
    y: Columns
    inner: Columns
    mixed: dict[int, Columns]


def _columns_class(tokens: int) -> int:
    """The smallest number of tokens whose columns lie as those of `tokens` do, at its largest."""
    return next(size for size in (1, 8, 16, MAX_TOKENS) if tokens <= size)


def _round_columns(config: TextConfig, weights: TextMatrices, tokens: int, device: torch.device) -> RoundColumns:
    hidden, eps = config.hidden_size, config.rms_norm_eps
    widths = {layer.mixer.out.columns for layer in weights.layers}
    if weights.drafter is not None:
        widths.add(weights.drafter.layer.mixer.out.columns)
    return RoundColumns(
        x=columns_buffer(hidden, tokens, device, eps),
        y=columns_buffer(hidden, tokens, device, eps),
        inner=columns_buffer(weights.layers[0].down.columns, tokens, device),
        mixed={width: columns_buffer(width, tokens, device) for width in sorted(widths)},
    )


@dataclass(frozen=True, slots=True)
class RoundShared:
    """What rounds of every size share: they never overlap.

    residual         [T, H] bf16
    first, second    flat bf16, rows of the input products
    logits           [T, V] fp32
    cos, sin         [T, R / 2] fp32
    results          [T, 2] int32, see `draw`
    columns          by the number of tokens that they have room for
    """

    inputs: RoundInputs
    sums: Sums
    residual: Tensor
    first: Tensor
    second: Tensor
    logits: Tensor
    cos: Tensor
    sin: Tensor
    frequencies: Tensor
    results: Tensor
    draw: DrawBuffers
    attention: RoundScratch | None
    columns: dict[int, RoundColumns]

    def columns_for(self, tokens: int) -> RoundColumns:
        """Columns of the width for so many tokens."""
        return self.columns[_columns_class(tokens)]


def round_shared(
    config: TextConfig,
    weights: TextMatrices,
    cache: DeviceCache,
    lanes: int,
    per_lane: int,
    multiprocessors: int,
    device: torch.device,
) -> RoundShared:
    """Buffers for rounds of up to `lanes` lanes with up to `per_lane` columns each, on a GPU of so many
    multiprocessors."""
    tokens = lanes * per_lane
    layers = [*weights.layers, *([weights.drafter.layer] if weights.drafter is not None else [])]
    widest_first = max(layer.mixer.first.rows for layer in layers)
    widest_second = max(layer.mixer.second.rows for layer in layers)
    half = config.rotary_dim // 2 if config.heads else 1
    # Made on the processor, so that the angles are the same on every device.
    frequencies = (
        rotary_frequencies(config.rope_theta, 2 * half, torch.device("cpu")) if config.heads else torch.zeros(half)
    )
    return RoundShared(
        inputs=RoundInputs(torch.zeros(4, MAX_ROWS, dtype=torch.int32, device=device)),
        sums=round_sums(weights, tokens, multiprocessors * PROGRAMS_PER_MULTIPROCESSOR),
        residual=torch.zeros(tokens, config.hidden_size, dtype=torch.bfloat16, device=device),
        first=torch.zeros(tokens * widest_first, dtype=torch.bfloat16, device=device),
        second=torch.zeros(tokens * widest_second, dtype=torch.bfloat16, device=device),
        logits=torch.zeros(tokens, config.vocab_size, device=device),
        cos=torch.zeros(tokens, half, device=device),
        sin=torch.zeros(tokens, half, device=device),
        frequencies=frequencies.to(device),
        results=torch.zeros(tokens, 2, dtype=torch.int32, device=device),
        draw=draw_buffers(tokens, config.vocab_size, device),
        attention=_attention_scratch(config, cache, lanes, per_lane, multiprocessors, device),
        columns={
            size: _round_columns(config, weights, size, device)
            for size in sorted({_columns_class(size) for size in range(1, tokens + 1)})
        },
    )


def _attention_scratch(
    config: TextConfig,
    cache: DeviceCache,
    lanes: int,
    per_lane: int,
    multiprocessors: int,
    device: torch.device,
) -> RoundScratch | None:
    if not cache.pools:
        return None
    longest = cache.tables.shape[1] * PAGE_TOKENS
    codec: Codec = "int8" if cache.pools[0].int8 else "bf16"
    programs = multiprocessors * ROUND_PROGRAMS
    return round_scratch(
        lanes, per_lane, config.heads, config.kv_heads, config.head_dim, longest, codec, programs, device
    )


class Round:
    """A round of exactly `rows` lanes with `per_lane` columns each; its columns have the width for that many."""

    def __init__(
        self,
        config: TextConfig,
        weights: TextMatrices,
        cache: DeviceCache,
        shared: RoundShared,
        public_ids: int,
        rows: int,
        per_lane: int = 1,
    ) -> None:
        self._public_ids = public_ids
        self.rows, self.per_lane, self.tokens = rows, per_lane, rows * per_lane
        self._config, self._weights, self._cache, self._shared = config, weights, cache, shared
        columns = shared.columns_for(self.tokens)
        self._x, self._y, self._inner, self._mixed = columns.x, columns.y, columns.inner, columns.mixed
        self.residual = shared.residual[: self.tokens]
        self.logits = shared.logits[: self.tokens]
        self.results = shared.results[: self.tokens]
        self.lanes, self.positions = shared.inputs.lanes[:rows], shared.inputs.positions[:rows]

    def launch(self, ids: Tensor | None = None) -> None:
        """Everything from the anchors to the drawn tokens. With `ids` [T] int32, through to the logits only: these are
        the tokens of the columns, and nothing is drawn.
        """
        shared, cache = self._shared, self._cache
        if ids is None:
            assert self.per_lane == 1
            gather(cache.drawing.anchors, self._weights.embedding, self.residual, through=self.lanes)
        else:
            gather(ids, self._weights.embedding, self.residual)
        if self._config.heads:
            cos, sin = shared.cos[: self.tokens], shared.sin[: self.tokens]
            rotary_columns(self.positions, self.per_lane, shared.frequencies, cos, sin)
        assert self._y.norm is not None
        first_norm(self.residual, self._weights.layers[0].input_norm, self._x, self._y.norm)
        attention = recurrent = 0
        layers = self._weights.layers
        for number, layer in enumerate(layers):
            if isinstance(layer.mixer, AttentionMatrices):
                mixed = self._attention(layer.mixer, attention)
                attention += 1
            else:
                mixed = self._gdn(layer.mixer, recurrent)
                recurrent += 1
            after = layers[number + 1].input_norm if number + 1 < len(layers) else self._weights.final_norm
            self._feed_forward(layer, mixed, after)
        product_rows(self._x, self.tokens, shared.sums.products(self._weights.head), [self.logits])
        if ids is None:
            self._draw()

    def _draw(self) -> None:
        shared = self._shared
        draw(
            self.logits, self._public_ids, self.lanes, shared.inputs.uniforms[: self.rows], self._cache.drawing,
            shared.draw, self.results,
        )  # fmt: skip

    def _input_rows(self, mixer: AttentionMatrices | GdnMatrices) -> tuple[Tensor, Tensor]:
        shared = self._shared
        first = shared.first[: self.tokens * mixer.first.rows].view(self.tokens, -1)
        second = shared.second[: self.tokens * mixer.second.rows].view(self.tokens, -1)
        product_rows(self._x, self.tokens, shared.sums.products(mixer.first, mixer.second), [first, second])
        return first, second

    def _attention(self, mixer: AttentionMatrices, number: int) -> Columns:
        shared, mixed = self._shared, self._mixed[mixer.out.columns]
        first, second = self._input_rows(mixer)
        assert shared.attention is not None
        attention_round(
            first, second, mixer.query_norm, mixer.key_norm, self._config.rms_norm_eps,
            shared.cos[: self.tokens], shared.sin[: self.tokens], self._cache.pools[number], self._cache.tables,
            self.lanes, self.positions, self.per_lane, shared.attention, mixed,
        )  # fmt: skip
        return mixed

    def _gdn(self, mixer: GdnMatrices, number: int) -> Columns:
        shared, mixed = self._shared, self._mixed[mixer.out.columns]
        first, second = self._input_rows(mixer)
        gdn_round(
            first, second, self._x, mixer.gates, gdn_constants(mixer, self._config.rms_norm_eps),
            self._cache.slots[number], self.lanes, self.positions, shared.inputs.state_blocks[: self.rows],
            self.per_lane, mixed,
        )  # fmt: skip
        return mixed

    def _feed_forward(self, layer: LayerMatrices, mixed: Columns, after: Tensor) -> None:
        """The output product and the feed-forward: from the mixer's columns to the next layer's."""
        sums, tokens = self._shared.sums, self.tokens
        x, y = self._x, self._y
        assert x.norm is not None
        assert y.norm is not None
        (out,) = sums.products(layer.mixer.out)
        product_residual(mixed, tokens, out, self.residual, layer.post_norm, y, x.norm)
        (gate_up,) = sums.products(layer.gate_up)
        product_silu_mul(y, tokens, gate_up, self._inner)
        (down,) = sums.products(layer.down)
        product_residual(self._inner, tokens, down, self.residual, after, x, y.norm)


def gdn_constants(mixer: GdnMatrices, eps: float) -> GdnConstants:
    """The recurrence's constants of a layer."""
    return GdnConstants(mixer.taps, mixer.decay_rate, mixer.dt_bias, mixer.norm, eps)
