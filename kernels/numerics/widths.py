"""Computing the rows of a product at widths that were found to agree, and the finding out.

A library picks its algorithm by shape, so the same row can come out differently next to 0, 7 or 700 others. Here a
product is computed at a few widths (numbers of rows; missing rows are zeros), and a width is used only after a check,
made once per product, thread count and process, that it gives the bits of the base width. The base is 64 rows; should
a library not treat the rows of that tile alike, it is a single row, which is slow and always right.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor
from torch.nn.functional import pad

TILE = 64
MAX_WIDTH = 256  # rows of one library call: larger tiles gain nothing measurable
_STEPS = (8, 16, 32, TILE)

# What was found out, for the life of the process: the base of a product, and whether a width gives its bits.
_bases: dict[Hashable, int] = {}
_agreements: dict[tuple[Hashable, int], bool] = {}


def width_for(rows: int) -> int:
    """Smallest width that holds `rows`: 8, 16, 32, or a multiple of 64."""
    return next((width for width in _STEPS if rows <= width), -(-rows // TILE) * TILE)


def forget() -> None:
    """Drop all findings, as in a new process."""
    _bases.clear()
    _agreements.clear()


def rows_product(x: Tensor, product: Callable[[Tensor], Tensor], key: Hashable, smallest: int) -> Tensor:
    """product(x) with bits that depend on each row alone.

    x         [T, K] fp32, contiguous
    product   a map of [width, K] to [width, N] for any width: a library call with a fixed right operand
    key       what the library's choice of algorithm may depend on beside the width
    smallest  rows up to this number are not padded
    """
    rows = x.shape[0]
    if rows > MAX_WIDTH:
        parts = (x[begin : begin + MAX_WIDTH] for begin in range(0, rows, MAX_WIDTH))
        return torch.cat([rows_product(part, product, key, smallest) for part in parts])
    width = rows if rows <= smallest else width_for(rows)
    where = (key, torch.get_num_threads())
    if _agrees(width, x.shape[1], product, where):
        return product(x) if width == rows else product(pad(x, (0, 0, 0, width - rows)))[:rows]
    return _tiled(x, product, _bases[where])


def _tiled(x: Tensor, product: Callable[[Tensor], Tensor], tile: int) -> Tensor:
    rows = x.shape[0]
    x = pad(x, (0, 0, 0, -rows % tile))
    return torch.cat([product(x[begin : begin + tile]) for begin in range(0, rows, tile)])[:rows]


def _agrees(width: int, inner: int, product: Callable[[Tensor], Tensor], where: Hashable) -> bool:
    found = _agreements.get((where, width))
    if found is None:
        if where not in _bases:
            _bases[where] = _base(inner, product)
        found = width == _bases[where] or _same_bits(width, inner, product, _bases[where])
        _agreements[where, width] = found
    return found


def _operand(rows: int, inner: int) -> Tensor:
    return torch.randn(rows, inner, generator=torch.Generator().manual_seed(rows))


def _base(inner: int, product: Callable[[Tensor], Tensor]) -> int:
    x = _operand(TILE, inner)
    turned = torch.arange(TILE).roll(13)
    return TILE if torch.equal(product(x[turned]), product(x)[turned]) else 1


def _same_bits(width: int, inner: int, product: Callable[[Tensor], Tensor], base: int) -> bool:
    """Whether tiles of `width` rows, as many as fill the base tile, come out as by tiles of `base` rows."""
    x = _operand(max(width, TILE), inner)
    expected = _tiled(x, product, base)
    pieces = range(0, x.shape[0] - width + 1, width)
    return all(torch.equal(product(x[begin : begin + width]), expected[begin : begin + width]) for begin in pieces)
