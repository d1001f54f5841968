"""Repacking of stored matrices into the order of :mod:`packing`, and back.

Stored planes are those of layout `row_split_k128_v1` (artifact spec 5.2, 6.2). Work runs where the planes are, on the
host or the device, in blocks of rows, so that a load needs one block of planes and its work arrays beside the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear.packing import GROUPS, PACKINGS, PAIR_ROWS, TILE_ROWS, Packing, tiles

# Codes repacked at a time; work arrays take about ten bytes for each.
_HOST_BLOCK = 1 << 22
_DEVICE_BLOCK = 1 << 26


@dataclass(frozen=True, slots=True)
class Planes:
    """Consecutive rows of a stored matrix.

    base    [n, R * B]  uint8
    high    [n, R * Hh] uint8, or None where the format has no high plane
    scales  [n, R]      float16
    """

    base: Tensor
    high: Tensor | None
    scales: Tensor

    @property
    def rows(self) -> int:
        return self.base.shape[0]

    def narrow(self, begin: int, end: int) -> Planes:
        """Rows [begin, end), without a copy."""
        high = None if self.high is None else self.high[begin:end]
        return Planes(self.base[begin:end], high, self.scales[begin:end])


@dataclass(frozen=True, slots=True, eq=False)
class LowBitWeight:
    """A matrix [N, K] in packed form.

    words    [tiles(N), quanta(K), words of a quantum] int32, contiguous; padding has scale 0
    rows     N
    columns  K
    bits     4, 5, 6 or 8
    paired   two matrices of N / 2 rows, one above the other, N / 2 a multiple of 8: rows 0..7 of tile i are rows
             8 i .. 8 i + 7 of the upper one, rows 8..15 those of the lower one. Then one program has both factors of
             silu(gate) * up
    """

    words: Tensor
    rows: int
    columns: int
    bits: int
    paired: bool = False

    @property
    def packing(self) -> Packing:
        return PACKINGS[self.bits]

    @property
    def nbytes(self) -> int:
        return self.words.nbytes


def packed_bytes(rows: int, columns: int, bits: int) -> int:
    """Bytes of a packed matrix: those of its codes and scales, plus padding to 16 rows and whole quanta."""
    packing = PACKINGS[bits]
    return 4 * tiles(rows) * packing.quanta(columns) * packing.words


def allocate(rows: int, columns: int, bits: int, device: torch.device | str, *, paired: bool = False) -> LowBitWeight:
    """An unwritten packed matrix, to be filled by :func:`pack_rows`, or by :func:`pack_pairs` if it is paired."""
    assert not paired or rows % TILE_ROWS == 0
    packing = PACKINGS[bits]
    words = torch.empty(tiles(rows), packing.quanta(columns), packing.words, dtype=torch.int32, device=device)
    return LowBitWeight(words, rows, columns, bits, paired)


def pack(planes: Planes, columns: int, bits: int) -> LowBitWeight:
    """A whole matrix with `columns` columns, on the device of its planes."""
    weight = allocate(planes.rows, columns, bits, planes.base.device)
    pack_rows(weight, 0, planes)
    return weight


def pack_paired(upper: Planes, lower: Planes, columns: int, bits: int) -> LowBitWeight:
    """A whole paired matrix, on the device of its planes."""
    weight = allocate(2 * upper.rows, columns, bits, upper.base.device, paired=True)
    pack_pairs(weight, 0, upper, lower)
    return weight


def pack_rows(weight: LowBitWeight, first: int, planes: Planes) -> None:
    """Write rows [first, first + planes.rows) of a packed matrix.

    first    a multiple of 16
    planes   a multiple of 16 rows, or the last rows of the matrix; on any device
    effects  writes the row tiles of these rows, padding rows included
    """
    assert not weight.paired
    assert first % TILE_ROWS == 0
    assert planes.rows % TILE_ROWS == 0 or first + planes.rows == weight.rows
    step = max(1, _block_elements(planes) // (TILE_ROWS * weight.columns)) * TILE_ROWS
    for begin in range(0, planes.rows, step):
        block = planes.narrow(begin, min(begin + step, planes.rows))
        tile = (first + begin) // TILE_ROWS
        weight.words[tile : tile + tiles(block.rows)] = _pack_block(block, weight).to(weight.words.device)


def pack_pairs(weight: LowBitWeight, first: int, upper: Planes, lower: Planes) -> None:
    """Write rows [first, first + upper.rows) of both halves of a paired matrix.

    first    a multiple of 8
    upper    rows of the upper half (gate), a multiple of 8; on any device
    lower    the same rows of the lower half (up)
    effects  writes the row tiles of these rows
    """
    assert weight.paired
    assert upper.rows == lower.rows
    assert first % PAIR_ROWS == 0
    assert upper.rows % PAIR_ROWS == 0
    step = max(1, _block_elements(upper) // (TILE_ROWS * weight.columns)) * PAIR_ROWS
    for begin in range(0, upper.rows, step):
        end = min(begin + step, upper.rows)
        block = _interleaved(upper.narrow(begin, end), lower.narrow(begin, end))
        tile = (first + begin) // PAIR_ROWS
        weight.words[tile : tile + tiles(block.rows)] = _pack_block(block, weight).to(weight.words.device)


def unpack(weight: LowBitWeight, first_tile: int = 0, end_tile: int | None = None) -> tuple[Tensor, Tensor]:
    """Codes and scales of the rows of tiles [first_tile, end_tile), in the order of the tiles.

    returns  codes [n, K] int8, scales [n, ceil(K / group)] float16
    """
    packing = weight.packing
    end_tile = weight.words.shape[0] if end_tile is None else end_tile
    words = weight.words[first_tile:end_tile]
    n, quanta, code_words = words.shape[0], words.shape[1], packing.words - 32
    lanes = words[..., :code_words].reshape(n, quanta, packing.lane_words, 32, 4).permute(0, 1, 3, 2, 4)
    lanes = lanes.reshape(n, quanta, 32, GROUPS, packing.lane_words)
    halves = torch.stack([lanes & 0xFFFF, (lanes >> 16) & 0xFFFF], dim=-2)  # [n, q, lane, i, e, word]
    codes = torch.zeros(*halves.shape[:-1], packing.pairs, dtype=torch.int32, device=words.device)
    for piece in packing.pieces:
        field = (halves[..., piece.word] >> piece.shift) & ((1 << piece.width) - 1)
        codes[..., piece.pair] |= field << piece.low
    h = packing.group // 32
    codes = codes.reshape(n, quanta, 8, 4, GROUPS, 2, h, 2, 2, 2)  # n, q, g, t, i, e, h, u, v, r
    codes = codes.permute(0, 9, 2, 1, 4, 6, 3, 7, 8, 5).reshape(n * TILE_ROWS, quanta * packing.columns)
    modulus = 1 << packing.bits
    codes = (codes - packing.offset + modulus // 2) % modulus - modulus // 2
    scales = words[..., code_words:].contiguous().view(torch.float16).reshape(n, quanta, 8, GROUPS, 2)
    scales = scales.permute(0, 4, 2, 1, 3).reshape(n * TILE_ROWS, quanta * GROUPS)
    rows = min(n * TILE_ROWS, weight.rows - first_tile * TILE_ROWS)
    groups = -(-weight.columns // packing.group)
    return codes[:rows, : weight.columns].to(torch.int8), scales[:rows, :groups].contiguous()


def _block_elements(planes: Planes) -> int:
    return _DEVICE_BLOCK if planes.base.is_cuda else _HOST_BLOCK


def _interleaved(upper: Planes, lower: Planes) -> Planes:
    """Eight rows of one and eight of the other in turn."""

    def both(first: Tensor, second: Tensor) -> Tensor:
        parts = torch.stack([part.reshape(-1, PAIR_ROWS, part.shape[1]) for part in (first, second)], dim=1)
        return parts.reshape(-1, first.shape[1])

    high = None if upper.high is None or lower.high is None else both(upper.high, lower.high)
    return Planes(both(upper.base, lower.base), high, both(upper.scales, lower.scales))


def _pack_block(planes: Planes, weight: LowBitWeight) -> Tensor:
    """The words of some row tiles, [n, quanta, words]."""
    packing = weight.packing
    n, quanta, h = tiles(planes.rows), packing.quanta(weight.columns), packing.group // 32
    stored = (
        _filled(patterns(planes.base, planes.high, packing.bits), n * TILE_ROWS, quanta * packing.columns)
        ^ packing.offset
    )
    stored = stored.reshape(n, 2, 8, quanta, GROUPS, h, 4, 2, 2, 2)  # n, r, g, q, i, h, t, u, v, e
    pairs = stored.permute(5, 7, 8, 1, 9, 0, 3, 2, 6, 4).reshape(packing.pairs, 2, n, quanta, 32, GROUPS)
    halves = torch.zeros(packing.lane_words, *pairs.shape[1:], dtype=torch.int32, device=pairs.device)
    for piece in packing.pieces:
        field = (pairs[piece.pair].to(torch.int32) >> piece.low) & ((1 << piece.width) - 1)
        halves[piece.word] |= field << piece.shift
    words = (halves[:, 0] | (halves[:, 1] << 16)).permute(1, 2, 3, 4, 0)  # n, q, lane, i, word
    words = words.reshape(n, quanta, 32, packing.lane_words, 4).permute(0, 1, 3, 2, 4).reshape(n, quanta, -1)
    scales = _filled(planes.scales, n * TILE_ROWS, quanta * GROUPS).reshape(n, 2, 8, quanta, GROUPS)
    scales = scales.permute(0, 3, 2, 4, 1).reshape(n, quanta, -1).contiguous()
    return torch.cat([words, scales.view(torch.int32)], dim=-1)


def patterns(base: Tensor, high: Tensor | None, bits: int) -> Tensor:
    """Two's-complement bit patterns of the codes in two planes, [n, R * group] uint8 (artifact spec 6.2)."""
    if bits == 8:
        return base
    n = base.shape[0]
    low = torch.stack([base & 15, base >> 4], dim=-1).reshape(n, -1)
    if high is None:
        assert bits == 4
        return low
    width = bits - 4  # high bits of 8 / width consecutive codes in each byte, lowest first
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=base.device)
    above = (high[..., None] >> shifts) & ((1 << width) - 1)
    return low | (above.reshape(n, -1) << 4)


def _filled(values: Tensor, rows: int, columns: int) -> Tensor:
    """`values` [n, k] brought to [rows, columns]: filled up with zeros, or with its own padding columns dropped."""
    values = values[:, :columns]
    if values.shape == (rows, columns):
        return values
    whole = torch.zeros(rows, columns, dtype=values.dtype, device=values.device)
    whole[: values.shape[0], : values.shape[1]] = values
    return whole
