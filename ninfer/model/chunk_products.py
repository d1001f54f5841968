"""The two ways of multiplying the rows of a chunk; `ninfer.kernels.low_bit_linear.chunk_route` decides between them.

In both, out = x times all rows of the matrices in order, and of `extra` behind them:

    x         [T, K] bf16, contiguous
    matrices  low-bit, [N, K] each
    extra     [N, K] bf16, or None
    out       [T, sum of N] bf16, contiguous; written
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear.op import dequantise, product_chunk
from ninfer.kernels.low_bit_linear.pack import LowBitWeight


def by_library(x: Tensor, matrices: Sequence[LowBitWeight], extra: Tensor | None, scratch: Tensor, out: Tensor) -> None:
    """One product with the widened matrices; scratch, flat bf16, holds all of them and is written."""
    rows, columns = out.shape[1], x.shape[1]
    whole = scratch[: rows * columns].view(rows, columns)
    first = 0
    for matrix in matrices:
        dequantise(matrix, whole[first : first + matrix.rows])
        first += matrix.rows
    if extra is not None:
        whole[first:] = extra
    torch.mm(x, whole.t(), out=out)


def in_registers(x: Tensor, matrices: Sequence[LowBitWeight], extra: Tensor | None, out: Tensor) -> None:
    """A product of its own for each matrix. K a multiple of 64, rows of each matrix and of `out` multiples of 8."""
    first = 0
    for matrix in matrices:
        product_chunk(x, matrix, out[:, first : first + matrix.rows])
        first += matrix.rows
    if extra is not None:
        torch.mm(x, extra.t(), out=out[:, first:])
