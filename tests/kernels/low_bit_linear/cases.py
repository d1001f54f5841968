"""Both routes under one name each, and operands for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear import op
from ninfer.kernels.low_bit_linear.buffers import Columns, PartialSums, columns_buffer, partial_sums, to_columns
from ninfer.kernels.low_bit_linear.op import Product
from tests.kernels.data import normal
from tests.kernels.low_bit_linear.data import Matrix

EPS = 1e-6


def columns(tokens: int, inner: int, capacity: int, seed: int = 1) -> tuple[Tensor, Columns]:
    """x [T, K] bf16, and the same as columns; tokens of the capacity that do not exist hold NaN."""
    x = normal(tokens, inner, seed=seed, dtype=torch.bfloat16)
    buffer = columns_buffer(inner, capacity, "cpu", EPS)
    buffer.storage.fill_(float("nan"))
    to_columns(x, buffer)
    return x, buffer


def products(matrices: Sequence[Matrix], tokens: int, programs: int) -> list[Product]:
    weights = [matrix.packed for matrix in matrices]
    sums = partial_sums(weights, tokens, programs)
    return [Product(weight, part) for weight, part in zip(weights, sums, strict=True)]


def product_rows(sums: PartialSums, tokens: int) -> Tensor:
    """[T, N] fp32"""
    out = torch.empty(tokens, sums.rows)
    op.finish_rows(sums, tokens, None, out)
    return out
