"""Plain-torch route: weights are widened a few row tiles at a time; the same roundings in the same places."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear.buffers import (
    Columns,
    Norm,
    PartialSums,
    add_slots,
    from_columns,
    norm_factors,
    squares_of,
    to_columns,
    write_sums,
)
from ninfer.kernels.low_bit_linear.pack import LowBitWeight, unpack
from ninfer.kernels.low_bit_linear.packing import PAIR_ROWS, TILE_ROWS
from ninfer.kernels.numerics.activations import silu
from ninfer.kernels.numerics.widths import rows_product

_BLOCK_ELEMENTS = 1 << 22  # weights widened at a time


def product(x: Columns, tokens: int, weight: LowBitWeight) -> Tensor:
    """[T, N] fp32, rows in the order of the tiles."""
    wide = from_columns(x, tokens).float().contiguous()
    step = max(1, _BLOCK_ELEMENTS // (TILE_ROWS * weight.columns))
    parts = []
    for tile in range(0, weight.words.shape[0], step):
        factor = _widened(weight, tile, min(tile + step, weight.words.shape[0])).t()
        parts.append(_block_product(wide, factor))
    return torch.cat(parts, dim=1)


def multiply(x: Columns, tokens: int, weight: LowBitWeight, out: PartialSums) -> None:
    write_sums(product(x, tokens, weight), out)


def dequantise(weight: LowBitWeight, out: Tensor) -> None:
    count = weight.words.shape[0]
    step = max(1, _BLOCK_ELEMENTS // (TILE_ROWS * weight.columns))
    for tile in range(0, count, step):
        end = min(tile + step, count)
        block = _widened(weight, tile, end).to(out.dtype)
        if weight.paired:
            halves = out.reshape(2, -1, PAIR_ROWS, weight.columns)
            halves[:, tile:end] = block.reshape(-1, 2, PAIR_ROWS, weight.columns).transpose(0, 1)
        else:
            out[tile * TILE_ROWS : end * TILE_ROWS] = block


def product_chunk(x: Tensor, weight: LowBitWeight, out: Tensor) -> None:
    wide = x.float()
    count = weight.words.shape[0]
    step = max(1, _BLOCK_ELEMENTS // (TILE_ROWS * weight.columns))
    for tile in range(0, count, step):
        end = min(tile + step, count)
        total = _block_product(wide, _widened(weight, tile, end).bfloat16().float().t())
        if weight.paired:
            halves = out.view(x.shape[0], 2, -1, PAIR_ROWS)
            halves[:, :, tile:end] = total.reshape(-1, end - tile, 2, PAIR_ROWS).transpose(1, 2).to(out.dtype)
        else:
            out[:, tile * TILE_ROWS : end * TILE_ROWS] = total


def _block_product(wide: Tensor, factor: Tensor) -> Tensor:
    return rows_product(wide, lambda rows: torch.mm(rows, factor), ("low bit", *factor.shape), smallest=0)


def _widened(weight: LowBitWeight, begin: int, end: int) -> Tensor:
    codes, scales = unpack(weight, begin, end)
    wide = scales.float().repeat_interleave(weight.packing.group, dim=1)[:, : weight.columns]
    return codes.float() * wide


def _normed(total: Tensor, norm: Norm | None) -> Tensor:
    return total if norm is None else total * norm_factors(norm, total.shape[0])


def rows(total: Tensor, norm: Norm | None, out: Tensor) -> None:
    out.copy_(_normed(total, norm))


def silu_mul(total: Tensor, norm: Norm | None, out: Columns) -> None:
    """total [T, N] of a paired matrix"""
    gate, up = _normed(total, norm).reshape(total.shape[0], -1, 2, PAIR_ROWS).unbind(2)
    to_columns((silu(gate) * up).flatten(1), out)


def residual(total: Tensor, stream: Tensor, weight: Tensor, out: Columns, norm: Norm, cleared: Norm) -> None:
    stream.copy_(stream.float() + total)
    norm.squares[:, : stream.shape[0]] += _scaled(stream, weight, out)
    cleared.squares.zero_()


def first_norm(stream: Tensor, weight: Tensor, out: Columns, norm: Norm, cleared: Norm) -> None:
    norm.squares[:, : stream.shape[0]] = _scaled(stream, weight, out)
    cleared.squares.zero_()


def _scaled(stream: Tensor, weight: Tensor, out: Columns) -> Tensor:
    """Writes stream * (1 + weight); returns the sums of squares."""
    value = stream.float()
    to_columns(value * (weight.float() + 1.0), out)
    return squares_of(value)


def finish_rows(sums: PartialSums, tokens: int, norm: Norm | None, out: Tensor) -> None:
    rows(add_slots(sums, tokens), norm, out)


def finish_silu_mul(sums: PartialSums, tokens: int, norm: Norm | None, out: Columns) -> None:
    silu_mul(add_slots(sums, tokens), norm, out)


def finish_residual(sums: PartialSums, stream: Tensor, weight: Tensor, out: Columns, norm: Norm, cleared: Norm) -> None:
    residual(add_slots(sums, stream.shape[0]), stream, weight, out, norm, cleared)


def candidates(logits: Tensor, legal: int, keep: int) -> tuple[Tensor, Tensor]:
    order = torch.sort(logits[:, :legal], dim=-1, descending=True, stable=True)
    return order.values[:, :keep].contiguous(), order.indices[:, :keep].to(torch.int32)
