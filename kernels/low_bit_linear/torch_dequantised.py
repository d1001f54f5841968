"""Plain-torch route: weights are widened a few row tiles at a time; the same roundings in the same places."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear.buffers import (
    NORM_ROWS,
    Columns,
    Norm,
    PartialSums,
    add_slots,
    from_columns,
    to_columns,
    write_sums,
)
from ninfer.kernels.low_bit_linear.pack import LowBitWeight, unpack
from ninfer.kernels.low_bit_linear.packing import PAIR_ROWS, TILE_ROWS
from ninfer.kernels.numerics.activations import reciprocal_root, silu
from ninfer.kernels.numerics.widths import rows_product

_BLOCK_ELEMENTS = 1 << 22  # weights widened at a time


def multiply(x: Columns, tokens: int, weight: LowBitWeight, out: PartialSums) -> None:
    wide = from_columns(x, tokens).float().contiguous()
    step = max(1, _BLOCK_ELEMENTS // (TILE_ROWS * weight.columns))
    parts = []
    for tile in range(0, weight.words.shape[0], step):
        factor = _widened(weight, tile, min(tile + step, weight.words.shape[0])).t()
        parts.append(_block_product(wide, factor))
    write_sums(torch.cat(parts, dim=1), out)


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


def _block_product(wide: Tensor, factor: Tensor) -> Tensor:
    return rows_product(wide, lambda rows: torch.mm(rows, factor), ("low bit", *factor.shape), smallest=0)


def _widened(weight: LowBitWeight, begin: int, end: int) -> Tensor:
    codes, scales = unpack(weight, begin, end)
    wide = scales.float().repeat_interleave(weight.packing.group, dim=1)[:, : weight.columns]
    return codes.float() * wide


def _normed_sums(sums: PartialSums, tokens: int, norm: Norm | None) -> Tensor:
    total = add_slots(sums, tokens)
    if norm is None:
        return total
    return total * reciprocal_root(norm.squares[:tokens].sum(-1, keepdim=True) / norm.columns + norm.eps)


def finish_rows(sums: PartialSums, tokens: int, norm: Norm | None, out: Tensor) -> None:
    out.copy_(_normed_sums(sums, tokens, norm))


def finish_silu_mul(sums: PartialSums, tokens: int, norm: Norm | None, out: Columns) -> None:
    gate, up = _normed_sums(sums, tokens, norm).chunk(2, dim=-1)
    to_columns(silu(gate) * up, out)


def finish_residual(sums: PartialSums | None, residual: Tensor, weight: Tensor, out: Columns, norm: Norm) -> None:
    tokens, rows = residual.shape
    if sums is not None:
        residual.copy_(residual.float() + add_slots(sums, tokens))
    value = residual.float()
    to_columns(value * (weight.float() + 1.0), out)
    padded = torch.zeros(tokens, norm.squares.shape[1] * NORM_ROWS, device=value.device)
    padded[:, :rows] = value
    norm.squares[:tokens] = padded.square().reshape(tokens, -1, NORM_ROWS).sum(-1)


def finish_head(
    sums: PartialSums, tokens: int, norm: Norm | None, legal: int, keep: int, logits: Tensor | None
) -> tuple[Tensor, Tensor]:
    total = _normed_sums(sums, tokens, norm)
    if logits is not None:
        logits.copy_(total)
    order = torch.sort(total[:, :legal], dim=-1, descending=True, stable=True)
    return order.values[:, :keep].contiguous(), order.indices[:, :keep].to(torch.int32)
