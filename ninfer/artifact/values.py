"""Legality of stored values, which no loader has to check (artifact spec, section 5.5).

Everything is looked at block by block of rows; a fault is one sentence saying where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.formats import ROW_SCALE, Format, block_scale, encoded_size, find_format, row_scale, row_split
from ninfer.artifact.layouts import Bytes, as_bytes, unpack_grouped, unpack_nvfp4, unpack_row_fp8
from ninfer.artifact.quantise import BLOCK_ELEMENTS


def value_faults(data: Any, format: str, shape: tuple[int, ...]) -> Iterator[str]:
    """What is illegal in an encoded object whose size has been checked; direct formats allow every bit pattern."""
    entry = find_format(format)
    if entry.is_direct:
        return
    flat = as_bytes(data, encoded_size(format, entry.layout, shape))
    yield from _gap_faults(flat, entry, shape)
    step = max(1, BLOCK_ELEMENTS // shape[1])
    if not entry.is_grouped and entry.layout != ROW_SCALE:
        divisor = flat[block_scale(shape).divisor_offset :].view("<f4")[0]
        if not (np.isfinite(divisor) and divisor > 0):
            yield f"divisor {divisor} is not finite and positive"
    for row in range(0, shape[0], step):
        rows = (row, min(row + step, shape[0]))
        if entry.is_grouped:
            yield from _grouped_faults(flat, entry, shape, rows)
        elif entry.layout == ROW_SCALE:
            yield from _row_fp8_faults(flat, shape, rows)
        else:
            _, scales, _ = unpack_nvfp4(flat, shape, rows)
            yield from _first(scales > 0x7E, row, "scale word outside 0x00…0x7e")


def token_id_faults(ids: NDArray[np.int32], public_tokens: int) -> Iterator[str]:
    """What is wrong with draft-head ids: they must be unique and name public tokens."""
    yield from _first((ids < 0) | (ids >= public_tokens), 0, f"draft-head id outside [0, {public_tokens})")
    if np.unique(ids).size != ids.size:
        yield "draft-head ids are not unique"


def _first(bad: NDArray[np.bool_], row: int, what: str) -> Iterator[str]:
    """`what` with the place of the first true element, counted from `row`."""
    if bad.any():
        place = [int(index) for index in np.argwhere(bad)[0]]
        place[0] += row
        yield f"{what} at {place} (row first)"


def _gap_faults(data: Bytes, entry: Format, shape: tuple[int, ...]) -> Iterator[str]:
    rows, columns = shape
    if entry.is_grouped:
        planes = row_split(entry, shape)
        gaps = [
            (rows * planes.base_row, planes.high_offset),
            (planes.high_offset + rows * planes.high_row, planes.scale_offset),
        ]
    elif entry.layout == ROW_SCALE:
        gaps = [(rows * columns, row_scale(shape).scale_offset)]
    else:
        gaps = [(rows * columns // 2, block_scale(shape).scale_offset)]
    for begin, end in gaps:
        if data[begin:end].any():
            yield f"bytes [{begin}, {end}) between planes are not zero"


def _grouped_faults(data: Bytes, entry: Format, shape: tuple[int, ...], rows: tuple[int, int]) -> Iterator[str]:
    codes, scales = unpack_grouped(data, entry, shape, rows)
    words = scales.view(np.uint16)
    yield from _first(codes < entry.qmin, rows[0], "illegal code")
    yield from _first((words & 0x7C00) == 0x7C00, rows[0], "scale that is not finite")
    yield from _first(words == 0x8000, rows[0], "negative zero scale")
    yield from _first((codes != 0).any(axis=-1) & (words == 0), rows[0], "nonzero code in a group with scale 0")
    lanes = codes.reshape(codes.shape[0], -1)
    yield from _first(lanes[:, shape[1] :] != 0, rows[0], "nonzero code in padding, column counted from the last,")
    real_groups = row_split(entry, shape).real_groups
    yield from _first(words[:, real_groups:] != 0, rows[0], "nonzero scale of a padding group, counted from the first,")


def _row_fp8_faults(data: Bytes, shape: tuple[int, ...], rows: tuple[int, int]) -> Iterator[str]:
    codes, scales = unpack_row_fp8(data, shape, rows)
    yield from _first((codes & 0x7F) == 0x7F, rows[0], "NaN code")
    yield from _first((scales >= 0x7F80), rows[0], "scale that is negative or not finite")
    yield from _first(((codes & 0x7F) != 0).any(axis=1) & (scales == 0), rows[0], "nonzero code in a row with scale 0")
