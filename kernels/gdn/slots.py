"""What a layer of gated DeltaNet keeps per lane, and its constants.

A lane's entry state is that of one 64-token block, counted from position 0; the rows of that block and of the columns
behind it lie beside the state by position. Rows that were rejected or belong to an earlier sequence stay where they are
until their place is written again: who reads knows which positions exist. Nothing is ever cleared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 64
MAX_COLUMNS = 16  # of one lane in one round
TAPS = 4
# A block and the columns of a round behind it.
ROWS = BLOCK + MAX_COLUMNS
# Programs of several value heads read the rows of a key head while one of them writes those of the round. It may begin
# up to 15 rows behind the block that is read, so its last row is 95th.
KEY_ROWS = BLOCK + 2 * MAX_COLUMNS
RING = 2 * MAX_COLUMNS  # three columns before the round, and those of the round
# Behind them lie the entry columns, which the convolution read before the block of the entry state: who goes on from
# that block's start needs them after the ring has moved on.
RING_ROWS = RING + TAPS - 1


@dataclass(frozen=True, slots=True, eq=False)
class GdnConstants:
    """taps        [4, channels] fp32, the last multiplies the current token; channels are query | key | value
    decay_rate  [HV] fp32, -exp(A_log)
    dt_bias     [HV] fp32
    norm        [DV] fp32, weight of the output norm
    eps         of the output norm
    """

    taps: Tensor
    decay_rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class GdnShape:
    """HK, HV (a multiple of HK), DK, DV"""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_width + self.value_heads * self.value_width


@dataclass(frozen=True, slots=True, eq=False)
class GdnSlots:
    """State of C lanes of one layer. Key widths DK and value widths DV are powers of two, 16 or more.

    s        [C, HV, DV, DK] fp32, entry state of the lane's block; never read for block 0, whose entry state is zero
    open_k   [C, HK, 96, DK] bf16, k after convolution and SiLU; the row of position p is at p % 96
    open_u   [C, HV, 80, DV] fp32, u; at p % 80
    open_g   [C, HV, 2, 80] fp32, G (sum of the decay's logarithm from the block's first position on) and the factor
             1 / sqrt(k . k + 1e-6) of the key head; at p % 80
    ring     [C, 35, channels] bf16, what the convolution read; at p % 32. The last three rows are the entry columns: of
             the positions before the lane's block, oldest first; never read for block 0
    """

    s: Tensor
    open_k: Tensor
    open_u: Tensor
    open_g: Tensor
    ring: Tensor

    @property
    def key_heads(self) -> int:
        return self.open_k.shape[1]

    @property
    def value_heads(self) -> int:
        return self.s.shape[1]

    @property
    def key_width(self) -> int:
        return self.s.shape[3]

    @property
    def value_width(self) -> int:
        return self.s.shape[2]

    @property
    def shape(self) -> GdnShape:
        return GdnShape(self.key_heads, self.value_heads, self.key_width, self.value_width)


def slots_buffer(shape: GdnShape, lanes: int, device: torch.device | str) -> GdnSlots:
    """Room for `lanes` lanes of one layer, not cleared."""
    key, value = shape.key_width, shape.value_width
    return GdnSlots(
        s=torch.empty(lanes, shape.value_heads, value, key, device=device),
        open_k=torch.empty(lanes, shape.key_heads, KEY_ROWS, key, dtype=torch.bfloat16, device=device),
        open_u=torch.empty(lanes, shape.value_heads, ROWS, value, device=device),
        open_g=torch.empty(lanes, shape.value_heads, 2, ROWS, device=device),
        ring=torch.empty(lanes, RING_ROWS, shape.channels, dtype=torch.bfloat16, device=device),
    )
