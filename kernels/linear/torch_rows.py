"""Plain-torch route: library products at widths that were found to agree bit for bit."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from ninfer.kernels.numerics.products import TILE, width_for

MAX_WIDTH = 256  # rows of one library call: larger tiles gain nothing measurable


def linear(x: Tensor, weight: Tensor) -> Tensor:
    wide, factor = x.float(), weight.float()
    rows = x.shape[0]
    if rows <= MAX_WIDTH:
        return _tile(wide, factor).to(x.dtype)
    out = x.new_empty(rows, weight.shape[0])
    for begin in range(0, rows, MAX_WIDTH):
        out[begin : begin + MAX_WIDTH] = _tile(wide[begin : begin + MAX_WIDTH], factor)
    return out


def _tile(x: Tensor, weight: Tensor) -> Tensor:
    rows = x.shape[0]
    columns, inner = weight.shape
    width = width_for(rows)
    threads = torch.get_num_threads()
    if not _width_agrees(width, inner, columns, threads):
        return _tiled(x, weight, _base_width(inner, columns, threads))
    if width != rows:
        x = pad(x, (0, 0, 0, width - rows))
    return torch.mm(x, weight.t())[:rows]


def _tiled(x: Tensor, weight: Tensor, tile: int) -> Tensor:
    """The product by tiles of `tile` rows, the last filled up with zero rows."""
    rows = x.shape[0]
    x = pad(x, (0, 0, 0, -rows % tile))
    return torch.cat([torch.mm(x[begin : begin + tile], weight.t()) for begin in range(0, rows, tile)])[:rows]


def _operands(rows: int, inner: int, columns: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(rows)
    return torch.randn(rows, inner, generator=source), torch.randn(columns, inner, generator=source)


@cache
def _base_width(inner: int, columns: int, threads: int) -> int:
    """64 if the rows of such a tile are interchangeable; otherwise 1, slow and always right."""
    x, weight = _operands(TILE, inner, columns)
    turned = torch.arange(TILE).roll(13)
    alike = torch.equal(torch.mm(x[turned], weight.t()), torch.mm(x, weight.t())[turned])
    return TILE if alike else 1


@cache
def _width_agrees(width: int, inner: int, columns: int, threads: int) -> bool:
    base = _base_width(inner, columns, threads)
    if width == base:
        return True
    x, weight = _operands(width, inner, columns)
    tiles = _tiled(x, weight, base)
    return torch.equal(torch.mm(x, weight.t()), tiles)
