"""Both routes under one name each, and operands for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear import op
from ninfer.kernels.low_bit_linear.buffers import (
    Columns,
    Norm,
    PartialSums,
    columns_buffer,
    partial_sums,
    squares_of,
    to_columns,
)
from ninfer.kernels.low_bit_linear.op import Product
from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from tests.kernels.data import normal
from tests.kernels.low_bit_linear.data import Matrix

EPS = 1e-6


def columns(tokens: int, inner: int, capacity: int, seed: int = 1, eps: float | None = None) -> tuple[Tensor, Columns]:
    """x [T, K] bf16, and the same as columns; tokens of the capacity that do not exist hold NaN."""
    x = normal(tokens, inner, seed=seed, dtype=torch.bfloat16)
    buffer = columns_buffer(inner, capacity, "cpu", eps)
    buffer.storage.fill_(float("nan"))
    to_columns(x, buffer)
    return x, buffer


def products(matrices: Sequence[Matrix], tokens: int, programs: int) -> list[Product]:
    return _with_sums([matrix.packed for matrix in matrices], tokens, programs)


def paired_product(matrix: Matrix, tokens: int, programs: int) -> Product:
    return _with_sums([matrix.paired], tokens, programs)[0]


def _with_sums(weights: list[LowBitWeight], tokens: int, programs: int) -> list[Product]:
    sums = partial_sums(weights, tokens, programs)
    return [Product(weight, part) for weight, part in zip(weights, sums, strict=True)]


def summed(sums: PartialSums, tokens: int) -> Tensor:
    """[T, N] fp32"""
    out = torch.empty(tokens, sums.rows)
    op.finish_rows(sums, tokens, None, out)
    return out


def set_norm(x: Columns, tokens: int, seed: int = 8) -> Norm:
    """Some sums of squares for the first tokens of columns that have a norm."""
    assert x.norm is not None
    x.norm.squares.fill_(1 << 60)
    x.norm.squares[:, :tokens] = squares_of(3 * normal(tokens, 700, seed=seed))
    return x.norm


def cleared_norm(tokens: int) -> Norm:
    """A norm full of what must not stay."""
    norm = columns_buffer(32, tokens, "cpu", EPS).norm
    assert norm is not None
    norm.squares.fill_(7)
    return norm
