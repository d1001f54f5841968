"""Plain-torch route of rounds and chunks: the block recurrence of ``torch_blocks`` on one lane at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.causal_conv.op import causal_conv
from ninfer.kernels.gated_norm.op import gated_norm
from ninfer.kernels.gdn import torch_blocks
from ninfer.kernels.gdn.slots import BLOCK, KEY_ROWS, RING, ROWS, TAPS, GdnConstants, GdnSlots
from ninfer.kernels.low_bit_linear.buffers import Columns, Norm, from_columns, norm_factors, to_columns
from ninfer.kernels.numerics.activations import reciprocal_root


class _Lane:
    """A lane's entry state and the rows of one block in the form of ``torch_blocks``, a batch of one."""

    def __init__(self, slots: GdnSlots, lane: int, block: int, rows: int) -> None:
        """Rows [0, rows) are read; the others are zero."""
        self.slots, self.lane, self.block = slots, lane, block
        self.s = slots.s[lane : lane + 1].clone() if block else torch.zeros_like(slots.s[lane : lane + 1])
        self.load_rows(rows)

    def load_rows(self, rows: int) -> None:
        slots = self.slots
        heads, width = slots.value_heads, slots.value_width
        positions = torch.arange(self.block * BLOCK, self.block * BLOCK + rows)
        g, scale = slots.open_g[self.lane][:, :, positions % ROWS].unbind(1)
        share = heads // slots.key_heads
        self.k = torch.zeros(1, slots.key_heads, BLOCK, slots.key_width)
        self.u = torch.zeros(1, heads, BLOCK, width)
        self.g = torch.zeros(1, heads, BLOCK)
        raw = slots.open_k[self.lane][:, positions % KEY_ROWS].float()
        self.k[0, :, :rows] = raw * scale[::share].unsqueeze(-1)
        self.u[0, :, :rows] = slots.open_u[self.lane][:, positions % ROWS]
        self.g[0, :, :rows] = g

    def fold(self, rows: int) -> None:
        """Store the next block's entry state, and go there."""
        share = self.slots.value_heads // self.slots.key_heads
        keys = self.k[0].repeat_interleave(share, dim=0)
        self.s = torch_blocks.advanced(self.s[0], keys, self.u[0], self.g[0]).unsqueeze(0)
        self.slots.s[self.lane] = self.s[0]
        self.block += 1
        self.load_rows(rows)

    def keep_rows(self, positions: Tensor, k: Tensor) -> None:
        """Store the rows of positions of one block; k [n, HK, DK] as the convolution gave it."""
        slots, places = self.slots, positions % BLOCK
        share = slots.value_heads // slots.key_heads
        wide = k.float()
        scale = reciprocal_root((wide * wide).sum(-1) + torch_blocks.L2_EPS)
        slots.open_k[self.lane][:, positions % KEY_ROWS] = k.transpose(0, 1)
        slots.open_u[self.lane][:, positions % ROWS] = self.u[0][:, places]
        slots.open_g[self.lane][:, 0, positions % ROWS] = self.g[0][:, places]
        slots.open_g[self.lane][:, 1, positions % ROWS] = scale.repeat_interleave(share, dim=1).t()


def _past(slots: GdnSlots, lane: int, begin: int) -> Tensor:
    """The three columns before a position, zero before the first: [3, channels]."""
    positions = torch.arange(begin - TAPS + 1, begin)
    return slots.ring[lane, positions % RING].masked_fill((positions < 0).unsqueeze(-1), 0.0)


def _heads(x: Tensor, heads: int, width: int) -> Tensor:
    return x.reshape(x.shape[0], heads, width)


def _split(mixed: Tensor, slots: GdnSlots) -> tuple[Tensor, Tensor, Tensor]:
    """Convolved columns [T, channels] as q, k bf16 and v fp32, per head."""
    key = slots.key_heads * slots.key_width
    q, k, v = mixed.split_with_sizes([key, key, mixed.shape[1] - 2 * key], dim=-1)
    return (
        _heads(q, slots.key_heads, slots.key_width),
        _heads(k, slots.key_heads, slots.key_width),
        _heads(v.float(), slots.value_heads, slots.value_width),
    )


def _gates(ab: Tensor, constants: GdnConstants) -> tuple[Tensor, Tensor]:
    a, b = ab.chunk(2, dim=-1)
    return torch_blocks.gdn_gates(a, b, constants.decay_rate, constants.dt_bias)


def gdn_round(
    first: Tensor,
    second: Tensor,
    x: Columns,
    norm: Norm,
    ab: Tensor,
    constants: GdnConstants,
    slots: GdnSlots,
    lanes: Tensor,
    positions: Tensor,
    state_blocks: Tensor,
    columns_per_lane: int,
    out: Columns,
) -> None:
    tokens = first.shape[0]
    wide, inputs = ab.float(), from_columns(x, tokens).float()
    factors = norm_factors(norm, tokens)
    value, z = second.chunk(2, dim=-1)
    z = _heads(z.float(), slots.value_heads, slots.value_width)
    rows = torch.empty(tokens, out.columns)
    for b, lane in enumerate(lanes.tolist()):
        begin, block = int(positions[b]), int(state_blocks[b])
        assert begin // BLOCK - block in (0, 1)
        open_rows = _Lane(slots, lane, block, min(begin - block * BLOCK, BLOCK))
        if begin // BLOCK > block:
            open_rows.fold(begin % BLOCK)
        for step in range(columns_per_lane):
            t, position = b * columns_per_lane + step, begin + step
            slots.ring[lane, position % RING] = torch.cat([first[t], value[t]])
            columns = torch.cat([_past(slots, lane, position), slots.ring[lane, position % RING].unsqueeze(0)])
            q, k, v = _split(causal_conv(columns.unsqueeze(0), constants.taps)[0], slots)
            g, beta = _gates((torch.mv(wide, inputs[t]) * factors[t]).to(ab.dtype).unsqueeze(0), constants)
            o = torch_blocks.gdn_decode(
                q, k, v, g, beta, open_rows.s, open_rows.k, open_rows.u, open_rows.g,
                torch.tensor([0]), torch.tensor([position % BLOCK]),
            )  # fmt: skip
            open_rows.keep_rows(torch.tensor([position]), k)
            rows[t] = gated_norm(o, z[t : t + 1], constants.norm, constants.eps).flatten()
    to_columns(rows, out)


def gdn_chunk(
    first: Tensor,
    second: Tensor,
    ab_rows: Tensor,
    constants: GdnConstants,
    slots: GdnSlots,
    lane: int,
    begin: int,
    out: Tensor,
) -> None:
    offset = begin % BLOCK
    value, z = second.chunk(2, dim=-1)
    fresh = torch.cat([first, value], dim=-1)
    columns = torch.cat([_past(slots, lane, begin), fresh])
    q, k, v = _split(causal_conv(columns.unsqueeze(0), constants.taps)[0], slots)
    g, beta = _gates(ab_rows, constants)
    end = begin + first.shape[0]
    open_rows = _Lane(slots, lane, begin // BLOCK, offset)
    o = torch_blocks.gdn_prefill(
        q, k, v, g, beta, open_rows.s[0], open_rows.k[0], open_rows.u[0], open_rows.g[0], offset
    )  # fmt: skip
    slots.s[lane] = open_rows.s[0]
    if end % BLOCK:
        kept = torch.arange(max(begin, end - end % BLOCK), end)
        open_rows.keep_rows(kept, k[kept - begin])
    last = torch.arange(max(begin, end - TAPS + 1), end)
    slots.ring[lane, last % RING] = fresh[last - begin]
    if (full := end // BLOCK * BLOCK) > begin:
        slots.ring[lane, RING:] = columns[full - begin : full - begin + TAPS - 1]
    z = _heads(z.float(), slots.value_heads, slots.value_width)
    out.copy_(gated_norm(o, z, constants.norm, constants.eps).flatten(1))
