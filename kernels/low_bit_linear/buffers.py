"""The tensors between products: columns in the order the products read, and sums in the order they write.

Columns  x [T, K] lies as [groups, K / 32, width, 32]: 32 values of a token fill two sectors of memory, tokens follow,
         and the lanes of a warp read whole lines. `width` is 1, 8 or 16, the smallest that holds the tokens; more than
         16 are groups of 16. A route is compiled per width. Rows beyond K are zero for ever.
Sums     [blocks of 8 columns, row tiles, slots, 128] fp32; element 4 (4 g + t) + 2 r + e of a slot is row 8 r + g and
         column 2 t + e, as the matrix unit holds them. Which slots of a tile are written depends on the schedule alone;
         the others keep the zeros of their allocation, and whoever adds the slots need not know. A product that
         finishes its sums finds and leaves zero bits in all slots: see `triton_stream`.
Squares  [2, capacity] int64: the sum of squares of a column is squares[0] + squares[1] / 2**50. Every 16 rows give a
         sum in fp32, and these are added as integers, without rounding: so many programs may add in any order, and a
         reader loads two numbers instead of one for every block of rows. Each sum counts up to 2**54, in steps of
         2**-50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from ninfer.kernels.low_bit_linear.packing import TILE_ROWS
from ninfer.kernels.low_bit_linear.schedule import Schedule, deal, slots_for
from ninfer.kernels.numerics.activations import reciprocal_root

WIDTHS = (1, 8, 16)
SQUARES_BITS = 50  # of the fraction of a sum of squares
SQUARES_LARGEST = float(1 << 54)  # so that sums of 512 tiles stay below 2**63
_COLUMN_ROWS = 256  # columns of the widest quantum


def width_for(tokens: int) -> int:
    """The width of columns of so many tokens."""
    return next((width for width in WIDTHS if tokens <= width), WIDTHS[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Root-mean-square norm whose division is left to the reader of the product.

    squares  [2, max(8, capacity)] int64, see above
    columns  D
    eps      inside the root
    """

    squares: Tensor
    columns: int
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """x of up to `capacity` tokens.

    storage  [groups, ceil(K / 256) * 8, width, 32] bf16
    columns  K
    norm     the division still to be made, or None
    """

    storage: Tensor
    columns: int
    norm: Norm | None

    @property
    def width(self) -> int:
        return self.storage.shape[2]

    @property
    def capacity(self) -> int:
        return self.storage.shape[0] * self.storage.shape[2]


@dataclass(frozen=True, slots=True, eq=False)
class PartialSums:
    """storage [blocks, tiles, slots, 128] fp32; rows: N

    counters  [groups of 16 columns, tiles] int32: how many programs have issued their sums of a tile; zero between
              launches
    """

    storage: Tensor
    counters: Tensor
    rows: int
    schedule: Schedule

    @property
    def slots(self) -> int:
        return self.storage.shape[2]


def columns_buffer(columns: int, tokens: int, device: torch.device | str, eps: float | None = None) -> Columns:
    """A cleared buffer for x [tokens, columns], with room for a norm if `eps` is given."""
    width = width_for(tokens)
    groups = -(-tokens // width)
    blocks = -(-columns // _COLUMN_ROWS) * (_COLUMN_ROWS // 32)
    storage = torch.zeros(groups, blocks, width, 32, dtype=torch.bfloat16, device=device)
    if eps is None:
        return Columns(storage, columns, None)
    squares = torch.zeros(2, max(8, groups * width), dtype=torch.int64, device=device)
    return Columns(storage, columns, Norm(squares, columns, eps))


def partial_sums(weights: Sequence[LowBitWeight], tokens: int, programs: int) -> tuple[PartialSums, ...]:
    """Cleared sums for matrices that share a launch of `programs` programs, for up to `tokens` columns each.

    One set serves every matrix of the same shape and every width up to `tokens`, as long as launches follow each other
    and are all of one kind: `op.multiply` leaves its sums behind, which other products would take for theirs.
    """
    schedules = deal([(weight.words.shape[0], weight.words.shape[1]) for weight in weights], programs)
    blocks, groups = -(-tokens // 8), -(-tokens // WIDTHS[-1])
    slots = max(slots_for(schedule.slots) for schedule in schedules)
    sums = []
    for weight, schedule in zip(weights, schedules, strict=True):
        device = weight.words.device
        storage = torch.zeros(blocks, schedule.tiles, slots, 128, device=device)
        counters = torch.zeros(groups, schedule.tiles, dtype=torch.int32, device=device)
        sums.append(PartialSums(storage, counters, weight.rows, schedule))
    return tuple(sums)


def to_columns(x: Tensor, out: Columns) -> None:
    """Write x [T, K] into the first T tokens of a buffer."""
    tokens, columns = x.shape
    assert columns == out.columns
    assert tokens <= out.capacity
    _, blocks, width, _ = out.storage.shape
    for group in range(-(-tokens // width)):
        part = x[group * width : (group + 1) * width]
        padded = torch.zeros(part.shape[0], blocks * 32, dtype=x.dtype, device=x.device)
        padded[:, :columns] = part
        out.storage[group, :, : part.shape[0]] = padded.reshape(-1, blocks, 32).transpose(0, 1).to(torch.bfloat16)


def from_columns(x: Columns, tokens: int) -> Tensor:
    """The first tokens of a buffer as [T, K] bf16."""
    return x.storage.transpose(1, 2).reshape(x.capacity, -1)[:tokens, : x.columns]


def write_sums(product: Tensor, out: PartialSums) -> None:
    """Write a whole product [T, N] fp32 as the first slot."""
    tokens, rows = product.shape
    blocks, count, _, _ = out.storage.shape
    padded = torch.zeros(blocks * 8, count * 16, device=product.device)
    padded[:tokens, :rows] = product
    fragments = padded.reshape(blocks, 4, 2, count, 2, 8)  # block, t, e, tile, r, g
    out.storage[:, :, 0] = fragments.permute(0, 3, 5, 1, 4, 2).reshape(blocks, count, 128)


def add_slots(sums: PartialSums, tokens: int) -> Tensor:
    """Slots added in order, [T, N] fp32."""
    total = 0.0 + sums.storage[:, :, 0]
    for slot in range(1, sums.slots):
        total = total + sums.storage[:, :, slot]
    blocks, count, _ = total.shape
    fragments = total.reshape(blocks, count, 8, 4, 2, 2)  # block, tile, g, t, r, e
    whole = fragments.permute(0, 3, 5, 1, 4, 2).reshape(blocks * 8, count * 16)
    return whole[:tokens, : sums.rows]


def squares_of(value: Tensor) -> Tensor:
    """Sums of squares of value [T, D] fp32 as they are kept, [2, T] int64."""
    tokens, rows = value.shape
    padded = torch.zeros(tokens, -(-rows // TILE_ROWS) * TILE_ROWS, device=value.device)
    padded[:, :rows] = value
    sums = padded.square().reshape(tokens, -1, TILE_ROWS).sum(-1).clamp(max=SQUARES_LARGEST)
    whole = sums.floor()
    fraction = (sums - whole) * (1 << SQUARES_BITS)
    return torch.stack([whole.to(torch.int64).sum(-1), fraction.to(torch.int64).sum(-1)])


def norm_factors(norm: Norm, tokens: int) -> Tensor:
    """1 / sqrt(mean of squares + eps) of the first tokens, [T, 1] fp32."""
    whole, fraction = norm.squares[:, :tokens, None].float()
    return reciprocal_root((whole + fraction * 0.5**SQUARES_BITS) / norm.columns + norm.eps)
