"""One prefill chunk on a GPU: consecutive tokens of one lane through the whole decoder.

Matrices are widened to bf16 one after the other and multiplied by the library, which costs a few percent of a long
chunk and no memory beyond the widest of them; or, if the chunk is short, widened in registers as they are multiplied
(`ninfer.kernels.low_bit_linear.chunk_route` decides). A token's bits do not depend on the chunk it came in: attention
and the recurrence count tiles and blocks from position 0, the library is kept from splitting sums (`ninfer.engine`),
and the other way is taken only where it has the same bits or where somebody asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.artifact.config import TextConfig
from ninfer.kernels.embedding.stored import gather
from ninfer.kernels.gdn.chunk_scratch import chunk_scratch_bytes
from ninfer.kernels.gdn.rounds import gdn_chunk
from ninfer.kernels.gdn.slots import GdnShape
from ninfer.kernels.kv_codec.pool import Codec
from ninfer.kernels.low_bit_linear.buffers import Columns, columns_buffer
from ninfer.kernels.low_bit_linear.chunk_route import Policy, Route, route
from ninfer.kernels.low_bit_linear.op import first_norm, product_rows
from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from ninfer.kernels.paged_attention.op import append_chunk, attention_chunk
from ninfer.kernels.paged_attention.scratch import ChunkScratch, chunk_scratch, partial_bytes
from ninfer.kernels.paged_attention.scratch import chunk_scratch_bytes as attention_scratch_bytes
from ninfer.kernels.rmsnorm.added import add_offset_rmsnorm
from ninfer.kernels.rmsnorm.joined import joined_offset_rmsnorm
from ninfer.kernels.rotary.columns import rotary_columns
from ninfer.kernels.sampler.lanes import draw
from ninfer.kernels.silu_mul.into import silu_mul_into
from ninfer.model.chunk_products import by_library, in_registers
from ninfer.model.device_cache import DeviceCache
from ninfer.model.low_bit_weights import AttentionMatrices, GdnMatrices, TextMatrices
from ninfer.model.rounds import RoundShared, gdn_constants
from ninfer.step import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class ChunkBuffers:
    """Activations of a chunk of up to T tokens, bf16 unless said otherwise.

    ids       [T] int32
    begin     [1] int32: position of the first token
    residual  [T, H]
    row       [T, H], a norm's result and then a product's; with a drafter one row more
    wide      [T * widest product of a norm's result], flat
    mid       [T * widest input of the products that add to the residual], flat
    matrix    [N * K of the largest matrix, or more], flat: the one that is being multiplied, and sums of attention
              between products; free between chunks
    scratch   uint8, of the mixer
    cos, sin  [T, R / 2] fp32
    last, cleared  columns of the one token that is drawn from, and a norm that nobody reads
    """

    ids: Tensor
    begin: Tensor
    residual: Tensor
    row: Tensor
    wide: Tensor
    mid: Tensor
    matrix: Tensor
    scratch: Tensor
    cos: Tensor
    sin: Tensor
    last: Columns
    cleared: Columns


def even_parts(config: TextConfig) -> tuple[int, ...]:
    """Into how many parts of equal work the layers can be cut, ascending from 1: with the same kinds in each."""
    kinds, count = config.layer_types, len(config.layer_types)
    return tuple(
        parts
        for parts in range(1, count + 1)
        if count % parts == 0 and len({kinds[at : at + count // parts] for at in range(0, count, count // parts)}) == 1
    )


def _input_rows(mixer: AttentionMatrices | GdnMatrices) -> int:
    gates = mixer.gates.shape[0] if isinstance(mixer, GdnMatrices) else 0
    return mixer.first.rows + mixer.second.rows + gates


def chunk_buffers(
    config: TextConfig, weights: TextMatrices, tokens: int, context: int, least_bytes: int, device: torch.device
) -> ChunkBuffers:
    """Buffers for chunks of up to `tokens` tokens in sequences of up to `context`; `matrix` has `least_bytes` or more,
    for those who borrow it.
    """
    hidden = config.hidden_size
    bf16 = torch.bfloat16
    inner = weights.layers[0].down.columns
    widest = max(2 * inner, *(_input_rows(layer.mixer) for layer in weights.layers))
    narrow = max(inner, *(layer.mixer.out.columns for layer in weights.layers))
    largest = max(2 * inner * hidden, *(_input_rows(layer.mixer) * hidden for layer in weights.layers))
    rows = tokens
    if weights.drafter is not None:
        mixer = weights.drafter.layer.mixer
        rows, widest = tokens + 1, max(widest, 2 * hidden, _input_rows(mixer))
        narrow = max(narrow, hidden)
        largest = max(largest, 2 * hidden * hidden, _input_rows(mixer) * hidden)
    half = config.rotary_dim // 2 if config.heads else 1
    scratch = partial = 0
    if config.gdn_value_heads:
        shape = GdnShape(config.gdn_key_heads, config.gdn_value_heads, config.gdn_key_dim, config.gdn_value_dim)
        scratch = chunk_scratch_bytes(tokens, shape)
    if config.heads:
        scratch = max(scratch, attention_scratch_bytes(config.kv_heads, config.head_dim, context))
        partial = partial_bytes(tokens, config.heads * config.head_dim, context)
    return ChunkBuffers(
        ids=torch.zeros(tokens, dtype=torch.int32, device=device),
        begin=torch.zeros(1, dtype=torch.int32, device=device),
        residual=torch.zeros(tokens, hidden, dtype=bf16, device=device),
        row=torch.zeros(rows, hidden, dtype=bf16, device=device),
        wide=torch.zeros(tokens * widest, dtype=bf16, device=device),
        mid=torch.zeros(tokens * narrow, dtype=bf16, device=device),
        matrix=torch.zeros(max(largest, -(-max(least_bytes, partial) // bf16.itemsize)), dtype=bf16, device=device),
        scratch=torch.zeros(scratch, dtype=torch.uint8, device=device),
        cos=torch.zeros(tokens, half, device=device),
        sin=torch.zeros(tokens, half, device=device),
        last=columns_buffer(hidden, 1, device, config.rms_norm_eps),
        cleared=columns_buffer(hidden, 1, device, config.rms_norm_eps),
    )


class Chunks:
    """Runs chunks; `shared` lends what drawing needs, since a chunk and a round never overlap."""

    def __init__(
        self,
        config: TextConfig,
        weights: TextMatrices,
        cache: DeviceCache,
        shared: RoundShared,
        buffers: ChunkBuffers,
        public_ids: int,
        policy: Policy,
    ) -> None:
        self._config, self._weights, self._cache = config, weights, cache
        self._shared, self.buffers = shared, buffers
        self._public_ids, self._policy = public_ids, policy
        self._history = self._attention_scratch()
        kinds = [isinstance(layer.mixer, AttentionMatrices) for layer in weights.layers]
        self._numbers = [kinds[:at].count(kind) for at, kind in enumerate(kinds)]  # of each layer among its kind

    def _attention_scratch(self) -> ChunkScratch:
        pools, config = self._cache.pools, self._config
        longest = self._cache.tables.shape[1] * PAGE_TOKENS if pools else 0
        codec: Codec = "int8" if pools and pools[0].int8 else "bf16"
        sums = self.buffers.matrix.view(torch.uint8)
        return chunk_scratch(self.buffers.scratch, sums, config.kv_heads, config.head_dim, longest, codec)

    def read(self, lane: int, begin: int, tokens: int, part: int = 0, parts: int = 1) -> None:
        """Run `tokens` tokens whose ids and position lie in the buffers through one of so many equal parts of the
        layers; `begin` is the same position. From part to part they lie in the buffers too, which only chunks use.
        """
        b, config, layers = self.buffers, self._config, self._weights.layers
        eps = config.rms_norm_eps
        residual, row = b.residual[:tokens], b.row[:tokens]
        first, last = (len(layers) * number // parts for number in (part, part + 1))
        product: Tensor | None = row  # of the layer in front
        if part == 0:
            product = None
            gather(b.ids[:tokens], self._weights.embedding, residual)
            if config.heads:
                rotary_columns(b.begin, tokens, self._shared.frequencies, b.cos[:tokens], b.sin[:tokens])
        for layer, number in zip(layers[first:last], self._numbers[first:last], strict=True):
            add_offset_rmsnorm(residual, product, layer.input_norm, eps, row)
            if isinstance(layer.mixer, AttentionMatrices):
                mixed = self._attention(layer.mixer, number, lane, begin, row)
            else:
                mixed = self._gdn(layer.mixer, number, lane, begin, row)
            product = self._product(mixed, [layer.mixer.out], row)
            add_offset_rmsnorm(residual, product, layer.post_norm, eps, row)
            inner = layer.down.columns
            gate_up = self._product(row, [layer.gate_up], b.wide[: tokens * 2 * inner].view(tokens, -1))
            active = b.mid[: tokens * inner].view(tokens, inner)
            silu_mul_into(gate_up, active)
            product = self._product(active, [layer.down], row)
        if last == len(layers):
            assert product is not None
            residual.add_(product)  # the head normalises the one row that it takes

    def show_drafter(self, lane: int, begin: int, tokens: int, waiting: int) -> None:
        """Have the drafter's layer look at what was just read, for its keys and values alone; the last position waits
        for the token behind it. So many of the lane's last step are `waiting`: they are looked at too, and the tokens
        behind all of them but the last lie behind those that were read.
        """
        weights, drafter, cache, b = self._weights, self._weights.drafter, self._cache, self.buffers
        assert drafter is not None
        assert cache.pending is not None
        eps, mixer = self._config.rms_norm_eps, drafter.layer.mixer
        assert isinstance(mixer, AttentionMatrices)
        b.row[:waiting].copy_(cache.pending[lane, :waiting])
        add_offset_rmsnorm(b.residual[:tokens], None, weights.final_norm, eps, b.row[waiting : waiting + tokens])
        cache.pending[lane, 0].copy_(b.row[waiting + tokens - 1])
        count, first = waiting + tokens - 1, begin - waiting
        if not count:
            return
        width, hidden = self._config.hidden_size, b.row[:count]
        embedded = b.mid[: count * width].view(count, width)
        known, skipped = max(waiting - 1, 0), 0 if waiting else 1
        if known:
            gather(b.ids[tokens : tokens + known], weights.embedding, embedded[:known])
        gather(b.ids[skipped:tokens], weights.embedding, embedded[known:])
        joined = b.wide[: count * 2 * width].view(count, 2 * width)
        joined_offset_rmsnorm(embedded, hidden, drafter.embedding_norm, drafter.hidden_norm, eps, joined)
        stem = self._product(joined, [drafter.join], b.row[:count])
        add_offset_rmsnorm(stem, None, drafter.layer.input_norm, eps, embedded)
        rows = self._into(mixer, embedded)
        at = mixer.out.columns
        queries, gates = rows.split_with_sizes([mixer.first.rows, mixer.second.rows], dim=1)
        cos, sin = b.cos[:count], b.sin[:count]
        rotary_columns(b.begin - waiting, count, self._shared.frequencies, cos, sin)
        append_chunk(
            queries[:, at:], gates[:, at:], mixer.key_norm, eps, cos, sin, cache.pools[-1], cache.tables[lane], first
        )

    def logits(self, tokens: int) -> Tensor:
        """[1, V] fp32: of the last of the `tokens` that were just read."""
        b, shared = self.buffers, self._shared
        assert b.cleared.norm is not None
        first_norm(b.residual[tokens - 1 : tokens], self._weights.final_norm, b.last, b.cleared.norm)
        product_rows(b.last, 1, shared.sums.products(self._weights.head), [shared.logits[:1]])
        return shared.logits[:1]

    def draw(self) -> None:
        """Draw from :meth:`logits` for the lane in the round's inputs."""
        shared = self._shared
        inputs = shared.inputs
        draw(
            shared.logits[:1], self._public_ids, inputs.lanes[:1], inputs.uniforms[:1], self._cache.drawing,
            shared.draw, shared.results[:1],
        )  # fmt: skip

    def _product(self, x: Tensor, matrices: list[LowBitWeight], out: Tensor, extra: Tensor | None = None) -> Tensor:
        """x times all rows of the matrices, and of `extra` [N, K] bf16 behind them."""
        if route(x.shape[0], out.shape[1], x.shape[1], self._policy) is Route.IN_REGISTER:
            in_registers(x, matrices, extra, out)
        else:
            by_library(x, matrices, extra, self.buffers.matrix, out)
        return out

    def _into(self, mixer: AttentionMatrices | GdnMatrices, row: Tensor) -> Tensor:
        tokens, rows = row.shape[0], _input_rows(mixer)
        out = self.buffers.wide[: tokens * rows].view(tokens, rows)
        extra = mixer.gates if isinstance(mixer, GdnMatrices) else None
        return self._product(row, [mixer.first, mixer.second], out, extra)

    def _mixed(self, mixer: AttentionMatrices | GdnMatrices, tokens: int) -> Tensor:
        width = mixer.out.columns
        return self.buffers.mid[: tokens * width].view(tokens, width)

    def _attention(self, mixer: AttentionMatrices, number: int, lane: int, begin: int, row: Tensor) -> Tensor:
        b, tokens = self.buffers, row.shape[0]
        rows, mixed = self._into(mixer, row), self._mixed(mixer, tokens)
        first, second = rows.split_with_sizes([mixer.first.rows, mixer.second.rows], dim=1)
        attention_chunk(
            first, second, mixer.query_norm, mixer.key_norm, self._config.rms_norm_eps, b.cos[:tokens], b.sin[:tokens],
            self._cache.pools[number], self._cache.tables[lane], begin, self._history, mixed,
        )  # fmt: skip
        return mixed

    def _gdn(self, mixer: GdnMatrices, number: int, lane: int, begin: int, row: Tensor) -> Tensor:
        rows, mixed = self._into(mixer, row), self._mixed(mixer, row.shape[0])
        first, second, gates = rows.split_with_sizes([mixer.first.rows, mixer.second.rows, mixer.gates.shape[0]], dim=1)
        gdn_chunk(
            first, second, gates, gdn_constants(mixer, self._config.rms_norm_eps), self._cache.slots[number], lane,
            begin, self.buffers.scratch, mixed,
        )  # fmt: skip
        return mixed
