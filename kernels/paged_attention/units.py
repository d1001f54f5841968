"""Units of keys by position alone: 2 pages below page 128 and 8 pages above it, so that a short context has many
units and a long one few partial results."""

from __future__ import annotations

SHORT_PAGES = 2
LONG_PAGES = 8
BORDER_UNITS = 64
MERGED_UNITS = 16  # neighbouring units whose results are merged first


def units_of(pages: int) -> int:
    """Units of a context of so many pages."""
    border = BORDER_UNITS * SHORT_PAGES
    if pages <= border:
        return -(-pages // SHORT_PAGES)
    return BORDER_UNITS - (-(pages - border) // LONG_PAGES)
