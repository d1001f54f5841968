"""Packing of codes and scales into the planes of a layout, and back (artifact spec, section 6).

Everything here moves bits; nothing rounds. All functions work on a block of whole rows, so that a caller can
stream a large matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.formats import BlockScale, Format, block_scale, row_scale, row_split
from ninfer.errors import ArtifactError

Bytes = NDArray[np.uint8]
Int8 = NDArray[np.int8]
Words = NDArray[np.uint16]

# The four two-bit lanes of every byte, as one little-endian word of four bytes.
_PAIR_LANES = (np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3).astype(np.uint8).view("<u4").reshape(-1)


def pack_codes(codes: Int8, format: Format) -> tuple[Bytes, Bytes | None]:
    """Base and high plane of grouped codes (6.2).

    codes    [n, R, G] int8, padding lanes 0
    returns  base [n, R * B] uint8, high [n, R * Hh] uint8 or None where the format has no high plane
    """
    n = codes.shape[0]
    lanes: Bytes = codes.view(np.uint8)
    if format.bits == 8:
        return lanes.reshape(n, -1), None
    if format.bits == 2:
        return _pack_pairs(lanes & np.uint8(3)).reshape(n, -1), None
    low: Bytes = lanes & np.uint8(15)
    base: Bytes = (low[..., 0::2] | (low[..., 1::2] << np.uint8(4))).reshape(n, -1)
    if format.bits == 4:
        return base, None
    if format.bits == 5:
        return base, np.packbits(lanes >> np.uint8(4) & np.uint8(1), axis=-1, bitorder="little").reshape(n, -1)
    return base, _pack_pairs(lanes >> np.uint8(4) & np.uint8(3)).reshape(n, -1)


def unpack_codes(base: Bytes, high: Bytes | None, format: Format) -> Int8:
    """Inverse of :func:`pack_codes`: base [n, R * B] and high [n, R * Hh] give codes [n, R, G] int8."""
    n = base.shape[0]
    groups = base.shape[1] // format.base_bytes
    if format.bits == 8:
        return base.reshape(n, groups, format.group).view(np.int8)
    if format.bits == 2:
        return _sign_extend(_unpack_pairs(base).reshape(n, groups, format.group), 2)
    lanes = np.empty((n, groups, format.group), np.uint8)
    pairs: Bytes = base.reshape(n, groups, -1)
    np.bitwise_and(pairs, np.uint8(15), out=lanes[..., 0::2])
    np.right_shift(pairs, np.uint8(4), out=lanes[..., 1::2])
    if high is not None:
        if format.bits == 5:
            upper: Bytes = np.unpackbits(high, axis=-1, bitorder="little")
        else:
            upper = _unpack_pairs(high)
        lanes |= upper.reshape(lanes.shape) << np.uint8(4)
    return _sign_extend(lanes, format.bits)


def _pack_pairs(lanes: Bytes) -> Bytes:
    """Four two-bit lanes per byte, the first in the lowest bits; lanes beyond 3 are not allowed."""
    four: NDArray[np.uint32] = lanes.reshape(-1).view("<u4")
    gathered = four | (four >> np.uint32(6)) | (four >> np.uint32(12)) | (four >> np.uint32(18))
    packed: Bytes = gathered.astype(np.uint8)
    return packed


def _unpack_pairs(packed: Bytes) -> Bytes:
    """Inverse of :func:`_pack_pairs`, flat."""
    lanes: Bytes = _PAIR_LANES[packed.reshape(-1)].view(np.uint8)
    return lanes


def _sign_extend(lanes: Bytes, bits: int) -> Int8:
    sign = np.uint8(1 << (bits - 1))
    return ((lanes ^ sign) - sign).view(np.int8)


def pad_codes(codes: Int8, format: Format, groups: int) -> Int8:
    """Codes [n, K] laid out as [n, R, G] with zero padding lanes."""
    padded = np.zeros((codes.shape[0], groups * format.group), np.int8)
    padded[:, : codes.shape[1]] = codes
    return padded.reshape(codes.shape[0], groups, format.group)


def pack_grouped(codes: Int8, scales: NDArray[np.float16], format: Format) -> Bytes:
    """One whole `row_split_k128_v1` object.

    codes    [N, K] int8, each legal for the format
    scales   [N, ceil(K / G)] float16
    """
    planes = row_split(format, codes.shape)
    packed = np.zeros(planes.size, np.uint8)
    base, high = pack_codes(pad_codes(codes, format, planes.groups), format)
    words = np.zeros((planes.rows, planes.groups), "<f2")
    words[:, : planes.real_groups] = scales
    packed[: base.size] = base.reshape(-1)
    if high is not None:
        packed[planes.high_offset : planes.high_offset + high.size] = high.reshape(-1)
    packed[planes.scale_offset :] = words.view(np.uint8).reshape(-1)
    return packed


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Consecutive rows of a `row_split_k128_v1` object (6.2) as they are stored.

    base    [n, R * B]  uint8
    high    [n, R * Hh] uint8, or None where the format has no high plane
    scales  [n, R]      float16
    """

    base: Bytes
    high: Bytes | None
    scales: NDArray[np.float16]


def grouped_rows(data: Bytes, format: Format, shape: tuple[int, ...], rows: tuple[int, int]) -> GroupedRows:
    """Rows [begin, end) of an object, without a copy."""
    planes = row_split(format, shape)
    begin, end = rows

    def plane(offset: int, row: int) -> Bytes:
        return data[offset + begin * row : offset + end * row].reshape(end - begin, row)

    return GroupedRows(
        base=plane(0, planes.base_row),
        high=plane(planes.high_offset, planes.high_row) if planes.high_row else None,
        scales=plane(planes.scale_offset, planes.scale_row).view("<f2"),
    )


def unpack_grouped(
    data: Bytes, format: Format, shape: tuple[int, ...], rows: tuple[int, int]
) -> tuple[Int8, NDArray[np.float16]]:
    """Codes [n, R, G] int8 and scales [n, R] float16, padding included, of rows [begin, end) of an object."""
    stored = grouped_rows(data, format, shape, rows)
    return unpack_codes(stored.base, stored.high, format), stored.scales


def gather_rows(data: Bytes, format: Format, shape: tuple[int, ...], rows: NDArray[np.intp]) -> Bytes:
    """A standalone object of the chosen rows of a `row_split_k128_v1` object, bit for bit (6.2)."""
    source = row_split(format, shape)
    target = row_split(format, (len(rows), source.columns))
    packed = np.zeros(target.size, np.uint8)
    for width, old, new in (
        (source.base_row, 0, 0),
        (source.high_row, source.high_offset, target.high_offset),
        (source.scale_row, source.scale_offset, target.scale_offset),
    ):
        if width:
            plane = data[old : old + source.rows * width].reshape(source.rows, width)
            packed[new : new + target.rows * width] = plane[rows].reshape(-1)
    return packed


def _tile_index(rows: int, groups: int) -> NDArray[np.intp]:
    """Place of the scale of (row, group) in the scale plane of 6.3, shape [rows, groups]."""
    n = np.arange(rows, dtype=np.intp)[:, None]
    g = np.arange(groups, dtype=np.intp)[None, :]
    return (n // 128 * (groups // 4) + g // 4) * 512 + n % 32 * 16 + n % 128 // 32 * 4 + g % 4


def pack_nvfp4(codes: Bytes, scales: Bytes, divisor: float) -> Bytes:
    """One whole NVFP4 object (6.3).

    codes    [N, K] uint8, E2M1 nibbles 0..15
    scales   [N, K / 16] uint8, E4M3FN words
    divisor  d_w, rounded to fp32
    """
    parts = block_scale(codes.shape)
    packed = np.zeros(parts.size, np.uint8)
    packed[: codes.size // 2] = (codes[:, 0::2] | (codes[:, 1::2] << 4)).reshape(-1)
    packed[parts.scale_offset + _tile_index(*scales.shape)] = scales
    packed[parts.divisor_offset :] = np.array([divisor], "<f4").view(np.uint8)
    return packed


def unpack_nvfp4(data: Bytes, shape: tuple[int, ...], rows: tuple[int, int]) -> tuple[Bytes, Bytes, np.float32]:
    """Codes [n, K], scale words [n, K / 16] and d_w of rows [begin, end) of an NVFP4 object."""
    parts: BlockScale = block_scale(shape)
    begin, end = rows
    columns = shape[1]
    pairs = data[begin * columns // 2 : end * columns // 2].reshape(end - begin, columns // 2)
    codes = np.empty((end - begin, columns), np.uint8)
    codes[:, 0::2] = pairs & 15
    codes[:, 1::2] = pairs >> 4
    # Only the rows' own tiles are indexed; tiles hold 128 rows.
    first = begin // 128 * 128
    index = _tile_index(end - first, columns // 16)[begin - first :]
    scales = data[parts.scale_offset + first * columns // 16 + index]
    divisor: np.float32 = data[parts.divisor_offset : parts.size].view("<f4")[0]
    return codes, scales, divisor


def unpack_row_fp8(data: Bytes, shape: tuple[int, ...], rows: tuple[int, int]) -> tuple[Bytes, Words]:
    """Codes [n, K] and BF16 scale words [n] of rows [begin, end) of a row-scaled FP8 object."""
    parts = row_scale(shape)
    begin, end = rows
    codes = data[begin * shape[1] : end * shape[1]].reshape(end - begin, shape[1])
    return codes, data[parts.scale_offset + 2 * begin : parts.scale_offset + 2 * end].view("<u2")


def as_bytes(data: Any, expected: int) -> Bytes:
    """A flat uint8 view of any buffer; raises ArtifactError SIZE_MISMATCH unless it has `expected` bytes."""
    view = np.frombuffer(data, np.uint8)
    if view.size != expected:
        raise ArtifactError("SIZE_MISMATCH", "", f"encoded object has {view.size} bytes, expected {expected}")
    return view
