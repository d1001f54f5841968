"""A layer of gated DeltaNet with random weights, its inputs for a number of tokens, and what it must give in float64.

The routes run through `Layer.round` and `Layer.chunk`, on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.causal_conv.ref import causal_conv_ref
from ninfer.kernels.gated_norm.ref import gated_norm_ref
from ninfer.kernels.gdn.chunk_scratch import chunk_scratch_bytes
from ninfer.kernels.gdn.ref import gdn_gates_ref, gdn_ref
from ninfer.kernels.gdn.rounds import gdn_chunk, gdn_round
from ninfer.kernels.gdn.slots import GdnConstants, GdnShape, GdnSlots, slots_buffer
from ninfer.kernels.low_bit_linear.buffers import columns_buffer, from_columns, squares_of

SMALL = GdnShape(1, 2, 16, 16)
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Expected:
    """Outputs [T, HV DV] and, per requested position, the state before it [HV, DV, DK], both float64."""

    out: Tensor
    states: dict[int, Tensor]


@dataclass(slots=True)
class Layer:
    """Inputs of `tokens` tokens: first, second bf16, n [T, K] bf16 (the layer's input, not yet divided by its root mean
    square), ab [2 HV, K] bf16."""

    shape: GdnShape
    constants: GdnConstants
    first: Tensor
    second: Tensor
    n: Tensor
    ab: Tensor

    @property
    def tokens(self) -> int:
        return self.first.shape[0]

    @property
    def device(self) -> torch.device:
        return self.first.device

    def slots(self, lanes: int) -> GdnSlots:
        """NaN everywhere, as the worst memory may hold."""
        slots = slots_buffer(self.shape, lanes, self.device)
        for part in (slots.s, slots.open_k, slots.open_u, slots.open_g, slots.ring):
            part.fill_(float("nan"))
        return slots

    def squares(self) -> Tensor:
        return self.n.double().square().sum(-1)

    def ab_rows(self) -> Tensor:
        """[T, 2 HV] bf16 from float64"""
        factor = 1 / torch.sqrt(self.squares() / self.n.shape[1] + EPS)
        return (self.n.double() @ self.ab.double().t() * factor.unsqueeze(-1)).to(torch.bfloat16)

    def expected(self, states: Sequence[int] = ()) -> Expected:
        """The whole sequence from position 0, step by step."""
        shape, constants = self.shape, self.constants
        key, value = shape.key_heads * shape.key_width, shape.value_heads * shape.value_width
        heads = (self.tokens, shape.value_heads, shape.value_width)
        fresh = torch.cat([self.first, self.second[:, :value]], dim=-1)
        columns = torch.cat([torch.zeros_like(fresh[:1]).expand(3, -1), fresh])
        mixed = causal_conv_ref(columns.unsqueeze(0), constants.taps)[0].to(torch.bfloat16)
        q, k, v = mixed.split_with_sizes([key, key, value], dim=-1)
        q, k = (x.reshape(self.tokens, shape.key_heads, shape.key_width) for x in (q, k))
        v = v.reshape(heads)
        a, b = self.ab_rows().chunk(2, dim=-1)
        g, beta = gdn_gates_ref(a, b, torch.log(-constants.decay_rate.double()), constants.dt_bias)
        s = torch.zeros(shape.value_heads, shape.value_width, shape.key_width, dtype=torch.float64, device=self.device)
        parts, kept, begin = [], {}, 0
        for end in sorted({*states, self.tokens}):
            part = slice(begin, end)
            o, s = gdn_ref(q[part], k[part], v[part], g[part], beta[part], s)
            parts.append(o)
            kept[end] = s
            begin = end
        z = self.second[:, value:].reshape(heads)
        y = gated_norm_ref(torch.cat(parts), z, constants.norm, constants.eps)
        return Expected(y.flatten(1), kept)

    def round(
        self,
        slots: GdnSlots,
        lanes: Sequence[int],
        positions: Sequence[int],
        state_blocks: Sequence[int],
        columns: int,
        *,
        run: Callable[..., None] | None = None,
        capacity: int = 0,
        tokens: Sequence[int] | None = None,
    ) -> Tensor:
        """Rows [B L, HV DV] bf16; tokens: of this layer's inputs, where each lane's columns begin (its position)."""
        begins = positions if tokens is None else tokens
        index = torch.cat([torch.arange(begin, begin + columns) for begin in begins])
        size = max(capacity, index.numel())
        x = columns_buffer(self.n.shape[1], size, self.device, EPS)
        assert x.norm is not None
        for group in range(0, index.numel(), x.width):
            part = self.n[index[group : group + x.width]]
            x.storage[group // x.width, : part.shape[1] // 32, : part.shape[0]] = part.reshape(
                part.shape[0], -1, 32
            ).transpose(0, 1)
        x.norm.squares[:, : index.numel()] = squares_of(self.n[index].float())
        out = columns_buffer(self.shape.value_heads * self.shape.value_width, size, self.device)
        numbers = [
            torch.tensor(part, dtype=torch.int32, device=self.device) for part in (lanes, positions, state_blocks)
        ]
        arguments = (self.first[index], self.second[index], x)
        rest = (self.ab, self.constants, slots, *numbers, columns, out)
        if run is None:
            gdn_round(*arguments, *rest)
        else:
            run(*arguments, x.norm, *rest)
        return from_columns(out, index.numel())

    def chunk(
        self, slots: GdnSlots, lane: int, begin: int, end: int, *, run: Callable[..., None] = gdn_chunk
    ) -> Tensor:
        """Rows [T, HV DV] bf16 of tokens [begin, end), which stand at these positions; inputs are one product's."""
        inputs = [self.first[begin:end], self.second[begin:end], self.ab_rows()[begin:end]]
        product = torch.cat(inputs, dim=1)
        first, second, ab_rows = product.split_with_sizes([part.shape[1] for part in inputs], dim=1)
        scratch = torch.full(
            (chunk_scratch_bytes(begin % 64 + end - begin, self.shape),), 0xFF, dtype=torch.uint8, device=self.device
        )
        out = torch.full(
            (end - begin, self.shape.value_heads * self.shape.value_width), float("nan"), device=self.device
        ).to(torch.bfloat16)
        run(first, second, ab_rows, self.constants, slots, lane, begin, scratch, out)
        return out

    def entry_columns(self, position: int) -> Tensor:
        """[3, channels] bf16: what the convolution reads in front of a position, 3 or more."""
        value = self.shape.value_heads * self.shape.value_width
        before = slice(position - 3, position)
        return torch.cat([self.first[before], self.second[before, :value]], dim=-1)

    def decode(
        self, slots: GdnSlots, lane: int, begin: int, widths: Sequence[int], *, run: Callable[..., None] | None = None
    ) -> Tensor:
        """Consecutive rounds of one lane that stands at `begin`, of these numbers of columns."""
        parts, position, block = [], begin, begin // 64
        for width in widths:
            parts.append(self.round(slots, [lane], [position], [block], width, run=run))
            block = position // 64
            position += width
        return torch.cat(parts)


def layer(
    shape: GdnShape,
    tokens: int,
    *,
    hidden: int = 64,
    seed: int = 0,
    exact: bool = False,
    strong: bool = False,
    device: torch.device | str = "cpu",
) -> Layer:
    """exact: q, k and v come out of the convolution without rounding, so that the state can be compared to
    the precision of fp32 (SiLU is the identity above 17 and at 0). strong: all keys alike, write strength near 1,
    hardly a decay."""
    source = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=source)

    key, value = 2 * shape.key_heads * shape.key_width, shape.value_heads * shape.value_width
    first, second = normal(tokens, key), normal(tokens, 2 * value)
    taps = normal(4, shape.channels) * 0.5
    if exact:
        taps.zero_()
        taps[3] = 1.0
        first, second[:, :value] = (
            torch.where(x > 0, 17 + x.abs() * 4, torch.zeros(())) for x in (first, second[:, :value].clone())
        )
    n, ab = normal(tokens, hidden), normal(2 * shape.value_heads, hidden) / hidden**0.5
    dt_bias = normal(shape.value_heads)
    decay_rate = -torch.exp(normal(shape.value_heads) - 2)
    if strong:
        first[:] = first[:1]
        n = n.abs() + 0.5
        ab[shape.value_heads :] = ab[shape.value_heads :].abs() * 8
        decay_rate *= 1e-3
    constants = GdnConstants(
        taps.to(device),
        decay_rate.to(device),
        dt_bias.to(device),
        (1 + 0.1 * normal(shape.value_width)).to(device),
        EPS,
    )
    narrow = [x.to(torch.bfloat16).to(device) for x in (first, second, n, ab)]
    return Layer(shape, constants, *narrow)
