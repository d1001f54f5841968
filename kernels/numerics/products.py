"""Batched matrix products in which a row's bits depend on that row and its matrix alone.

Widths are chosen and checked as in ``widths``; a check here also varies the number of matrices.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer.kernels.numerics.widths import TILE, width_for

_CHECK_BATCHES = (1, 2, 3, 8)


def batched_rows(a: Tensor, b: Tensor) -> Tensor:
    """Product of each matrix of a batch, exact in the sense of this module.

    out[n, m, :] = sum_k a[n, m, k] * b[n, k, :]      fp32, order of the sum fixed by (K, N) and b's layout

    a        [n, M, K] fp32, M >= 1
    b        [n, K, N] fp32, each matrix contiguous or the transpose of a contiguous one
    returns  [n, M, N] fp32; the bits of out[n, m] depend on a[n, m] and b[n] only
    """
    rows, inner, columns = a.shape[1], a.shape[2], b.shape[2]
    transposed = b.stride(2) != 1
    width = width_for(rows)
    threads = torch.get_num_threads()
    if _width_agrees(width, inner, columns, transposed, threads):
        if width != rows:
            a = pad(a, (0, 0, 0, width - rows))
        return torch.bmm(a, b)[:, :rows]
    return _tiled(a, b, _base_width(inner, columns, transposed, threads))


def _tiled(a: Tensor, b: Tensor, tile: int) -> Tensor:
    """The product by tiles of `tile` rows, the last filled up with zero rows."""
    rows = a.shape[1]
    a = pad(a, (0, 0, 0, -rows % tile))
    parts = [torch.bmm(a[:, begin : begin + tile].contiguous(), b) for begin in range(0, rows, tile)]
    return torch.cat(parts, dim=1)[:, :rows]


def _operands(batch: int, rows: int, inner: int, columns: int, transposed: bool) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(rows)
    a = torch.randn(batch, rows, inner, generator=source)
    if transposed:
        return a, torch.randn(batch, columns, inner, generator=source).transpose(1, 2)
    return a, torch.randn(batch, inner, columns, generator=source)


@cache
def _base_width(inner: int, columns: int, transposed: bool, threads: int) -> int:
    """64 if the rows of such a tile are interchangeable, whatever the batch; otherwise 1."""
    a, b = _operands(max(_CHECK_BATCHES), TILE, inner, columns, transposed)
    whole = torch.bmm(a, b)
    turned = torch.arange(TILE).roll(13)
    alike = torch.equal(torch.bmm(a[:, turned].contiguous(), b), whole[:, turned])
    alike &= all(torch.equal(torch.bmm(a[:n], b[:n]), whole[:n]) for n in _CHECK_BATCHES)
    return TILE if alike else 1


@cache
def _width_agrees(width: int, inner: int, columns: int, transposed: bool, threads: int) -> bool:
    base = _base_width(inner, columns, transposed, threads)
    if width == base:
        return True
    a, b = _operands(max(_CHECK_BATCHES), max(width, TILE), inner, columns, transposed)
    expected = _tiled(a, b, base)
    return all(
        torch.equal(torch.bmm(a[:n, begin : begin + width].contiguous(), b[:n]), expected[:n, begin : begin + width])
        for n in _CHECK_BATCHES
        for begin in range(0, a.shape[1] - width + 1, width)
    )


def minus_single_rows(start: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """start - a b, for callers that only ever have one row per matrix, whatever else runs in the batch.

    start    [n, 1, N] fp32
    a        [n, 1, K] fp32
    b        [n, K, N] fp32
    returns  [n, 1, N] fp32; bits differ from those of :func:`batched_rows`, and do not depend on n
    """
    if a.shape[0] == 1:
        # A batch of one is handed to another routine, which may divide the work differently.
        pair = (start.expand(2, -1, -1), a.expand(2, -1, -1), b.expand(2, -1, -1))
        return torch.baddbmm(*pair, alpha=-1)[:1]
    return torch.baddbmm(start, a, b, alpha=-1)


def sum_pairs(x: Tensor) -> Tensor:
    """Sum over the first dimension by a tree of adjacent pairs: appending zeros changes no bit.

    x  [n, ...] fp32, n >= 1; returns [...]
    """
    while x.shape[0] > 1:
        even = x[0::2]
        if x.shape[0] % 2:
            x = torch.cat([even[:-1] + x[1::2], even[-1:]])
        else:
            x = even + x[1::2]
    return x[0]
