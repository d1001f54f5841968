"""The units of :mod:`units` for kernels."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from ninfer.kernels.paged_attention.units import BORDER_UNITS, LONG_PAGES, SHORT_PAGES

_SHORT = tl.constexpr(SHORT_PAGES)
_LONG = tl.constexpr(LONG_PAGES)
_BORDER = tl.constexpr(BORDER_UNITS)


@triton.jit
def unit_begin(unit):
    """First page of a unit."""
    return tl.maximum(unit * _SHORT, unit * _LONG - _BORDER * (_LONG - _SHORT))


@triton.jit
def unit_from(page):
    """First unit that begins at `page` or later; also the number of units of so many pages."""
    short = (page + _SHORT - 1) // _SHORT
    long = (page + _BORDER * (_LONG - _SHORT) + _LONG - 1) // _LONG
    return tl.where(page <= _BORDER * _SHORT, short, long)
