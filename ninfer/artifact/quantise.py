"""Encoders and decoders of the numeric formats (artifact spec, sections 5 and 7).

The grouped quantiser is profile MAXABS_F16_RECIP_RNE_V1: a code is the rounded product with the float32 reciprocal of
the stored scale, never a quotient and never computed wider than float32. BF16 travels as uint16 words, so that a
copy keeps every bit pattern, NaN payloads included.

Rows are processed in blocks, so the memory needed beside input and output is a few MiB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.formats import (
    ROW_SCALE,
    Format,
    encoded_size,
    find_format,
    row_scale,
    row_split,
)
from ninfer.artifact.layouts import (
    Bytes,
    Int8,
    Words,
    as_bytes,
    pack_codes,
    unpack_grouped,
    unpack_nvfp4,
    unpack_row_fp8,
)
from ninfer.errors import ArtifactError

Float32 = NDArray[np.float32]

# One block of float32 work arrays stays within a core's second-level cache.
BLOCK_ELEMENTS = 1 << 18

E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
E2M1_VALUES = np.concatenate([E2M1_VALUES, -E2M1_VALUES])


def _e4m3_values() -> NDArray[np.float64]:
    words = np.arange(256)
    exponent, fraction = words >> 3 & 15, words & 7
    magnitude = np.where(exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    magnitude[exponent * 8 + fraction == 127] = np.nan
    return np.where(words < 128, magnitude, -magnitude)


E4M3_VALUES = _e4m3_values()


def widen_bf16(words: Words) -> Float32:
    """float32 values of BF16 words, exact."""
    bits = np.empty(words.shape, np.uint32)
    np.left_shift(words, 16, out=bits, dtype=np.uint32)
    return bits.view(np.float32)


def round_bf16(values: Float32) -> Words:
    """BF16 words of float32 values, ties to even; a NaN keeps its upper payload bits and stays a NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    upper = (bits >> 16).astype(np.uint16)
    rounded = ((bits + 0x7FFF + (upper & 1)) >> 16).astype(np.uint16)
    # A NaN whose payload sits in the lower half alone would turn into an infinity.
    kept = np.where(upper & 0x7F, upper, upper | 0x40)
    return np.where(np.isnan(values), kept, rounded)


def encode(values: NDArray[Any], format: str) -> Bytes:
    """The whole encoded object of a tensor, planes and padding included.

    values   float16/32/64 of any shape the format allows; uint16 is read as BF16 words; int32/int64 for `int32`
    returns  uint8 [encoded_size]
    Raises ArtifactError without a path: BAD_SOURCE (rank, dtype), BAD_SOURCE_VALUE (non-finite, scale overflow).
    """
    entry = find_format(format)
    packed = np.zeros(_source_size(entry, values.shape), np.uint8)
    for offset, data in encode_stream(row_blocks(values), format, values.shape):
        packed[offset : offset + data.size] = data
    return packed


def row_blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Consecutive slices of whole rows of about BLOCK_ELEMENTS elements."""
    if values.ndim == 0:
        yield values
        return
    step = max(1, BLOCK_ELEMENTS // max(1, math.prod(values.shape[1:])))
    for begin in range(0, values.shape[0], step):
        yield values[begin : begin + step]


def encode_stream(blocks: Iterable[NDArray[Any]], format: str, shape: tuple[int, ...]) -> Iterator[tuple[int, Bytes]]:
    """Encode a tensor that arrives as consecutive blocks of whole rows.

    Yields (offset in the object, bytes); together the pieces cover every byte of the object exactly once, gaps
    between planes included. Dtypes and errors as :func:`encode`; blocks that do not add up to `shape` are BAD_SOURCE.
    """
    entry = find_format(format)
    _source_size(entry, shape)
    if entry.is_direct:
        yield from _encode_direct(blocks, entry, shape)
    elif entry.is_grouped:
        yield from _encode_grouped(_whole_rows(blocks, shape), entry, shape)
    elif entry.layout == ROW_SCALE:
        yield from _encode_row_fp8(_whole_rows(blocks, shape), shape)
    else:
        raise ArtifactError("BAD_SOURCE", "", f"format {format} has no encoder; it is imported from encoded sources")


def _source_size(entry: Format, shape: tuple[int, ...]) -> int:
    try:
        return encoded_size(entry.name, entry.layout, shape)
    except ArtifactError as error:
        raise ArtifactError("BAD_SOURCE", "", error.detail) from None


def _whole_rows(blocks: Iterable[NDArray[Any]], shape: tuple[int, ...]) -> Iterator[tuple[int, NDArray[Any]]]:
    """(first row, block) for each block; checks that the blocks make up `shape`."""
    row = 0
    for block in blocks:
        if block.ndim != 2 or block.shape[1] != shape[1] or row + block.shape[0] > shape[0]:
            raise ArtifactError("BAD_SOURCE", "", f"rows of shape {list(block.shape)} at row {row} of {list(shape)}")
        for part in row_blocks(block):
            yield row, part
            row += part.shape[0]
    if row != shape[0]:
        raise ArtifactError("BAD_SOURCE", "", f"source has {row} rows, expected {shape[0]}")


def _as_float32(block: NDArray[Any]) -> Float32:
    if block.dtype == np.uint16:
        return widen_bf16(block)
    if block.dtype.kind != "f":
        raise ArtifactError("BAD_SOURCE", "", f"source dtype {block.dtype} is not a floating type")
    with np.errstate(over="ignore"):
        return block.astype(np.float32)


def _encode_direct(
    blocks: Iterable[NDArray[Any]], entry: Format, shape: tuple[int, ...]
) -> Iterator[tuple[int, Bytes]]:
    offset = 0
    for block in blocks:
        data = np.ascontiguousarray(_direct_words(block, entry)).reshape(-1).view(np.uint8)
        yield offset, data
        offset += data.size
    if offset != math.prod(shape) * entry.word_bytes:
        raise ArtifactError("BAD_SOURCE", "", f"source has {offset} bytes, shape {list(shape)} needs another number")


def _direct_words(block: NDArray[Any], entry: Format) -> NDArray[Any]:
    if entry.name == "int32":
        if block.dtype not in (np.int32, np.int64):
            raise ArtifactError("BAD_SOURCE", "", f"source dtype {block.dtype} is not int32 or int64")
        if block.size and (block.min() < -(2**31) or block.max() > 2**31 - 1):
            raise ArtifactError("BAD_SOURCE_VALUE", "", "a value does not fit int32")
        return block.astype("<i4")
    if entry.name == "fp32":
        return _as_float32(block).astype("<f4", copy=False)
    if block.dtype == np.uint16:
        return block.astype("<u2", copy=False)
    return round_bf16(_as_float32(block)).astype("<u2", copy=False)


def quantise_rows(values: Float32, format: Format) -> tuple[Int8, NDArray[np.float16]]:
    """The canonical grouped quantiser (7.1) on whole rows.

    values   [n, K] float32
    returns  codes [n, R, G] int8 and scales [n, R] float16, padding lanes and padding groups 0
    """
    n, columns = values.shape
    groups = row_split(format, (n, columns)).groups
    if not np.isfinite(values).all():
        raise ArtifactError("BAD_SOURCE_VALUE", "", "a value is not finite")
    padded = np.zeros((n, groups * format.group), np.float32)
    padded[:, :columns] = values
    lanes = padded.reshape(n, groups, format.group)
    largest = np.maximum(lanes.max(axis=-1), -lanes.min(axis=-1))
    with np.errstate(over="ignore", divide="ignore"):
        scales = (largest.astype(np.float64) / format.qmax).astype(np.float32).astype(np.float16)
        scales[(scales == 0) & (largest != 0)] = np.float16(2.0**-24)
        if np.isinf(scales).any():
            raise ArtifactError("BAD_SOURCE_VALUE", "", f"a scale of format {format.name} exceeds binary16")
        inverse = (1.0 / scales.astype(np.float64)).astype(np.float32)
    inverse[largest == 0] = 0
    lanes *= inverse[..., None]
    np.rint(lanes, out=lanes)
    np.clip(lanes, format.qmin, format.qmax, out=lanes)
    scales[largest == 0] = 0  # max() of negative zeros would leave a sign
    return lanes.astype(np.int8), scales


def _encode_grouped(
    blocks: Iterator[tuple[int, NDArray[Any]]], entry: Format, shape: tuple[int, ...]
) -> Iterator[tuple[int, Bytes]]:
    planes = row_split(entry, shape)
    for row, block in blocks:
        codes, scales = quantise_rows(_as_float32(block), entry)
        base, high = pack_codes(codes, entry)
        yield row * planes.base_row, base.reshape(-1)
        if high is not None:
            yield planes.high_offset + row * planes.high_row, high.reshape(-1)
        yield planes.scale_offset + row * planes.scale_row, scales.astype("<f2").view(np.uint8).reshape(-1)
    yield from _gap(planes.rows * planes.base_row, planes.high_offset)
    yield from _gap(planes.high_offset + planes.rows * planes.high_row, planes.scale_offset)


def _gap(begin: int, end: int) -> Iterator[tuple[int, Bytes]]:
    if begin < end:
        yield begin, np.zeros(end - begin, np.uint8)


def round_e4m3(values: Float32) -> Bytes:
    """E4M3FN words of float32 values in [-448, 448], ties to the even word; the sign bit is kept."""
    bits = values.view(np.uint32)
    magnitude = bits & 0x7FFFFFFF
    # Normal: drop 20 fraction bits and move the exponent's bias from 127 to 7. Subnormal: multiples of 2^-9.
    normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - ((127 - 7) << 3)
    subnormal = np.rint(np.abs(values) * np.float32(512)).astype(np.uint32)
    code = np.where(magnitude < np.float32(2.0**-6).view(np.uint32), subnormal, normal)
    words: Bytes = (code | bits >> 24 & 0x80).astype(np.uint8)
    return words


def quantise_rows_fp8(values: Float32) -> tuple[Bytes, Words]:
    """The row FP8 quantiser (7.2): values [n, K] float32 give codes [n, K] E4M3FN and scales [n] BF16 words."""
    x = widen_bf16(round_bf16(values))
    if not np.isfinite(x).all():
        raise ArtifactError("BAD_SOURCE_VALUE", "", "a value is not finite")
    largest = np.abs(x).max(axis=1)
    words = round_bf16((largest.astype(np.float64) / 448).astype(np.float32))
    words[(words == 0) & (largest != 0)] = 1
    words[largest == 0] = 0
    with np.errstate(over="ignore", divide="ignore"):
        inverse = (1.0 / widen_bf16(words).astype(np.float64)).astype(np.float32)
    zero = largest == 0
    if np.isinf(inverse[~zero]).any():
        raise ArtifactError("BAD_SOURCE_VALUE", "", "a row is so small that the reciprocal of its scale overflows")
    inverse[zero] = 0
    y = np.clip(x * inverse[:, None], np.float32(-448), np.float32(448))
    codes = round_e4m3(y)
    codes[zero] = 0
    return codes, words


def _encode_row_fp8(blocks: Iterator[tuple[int, NDArray[Any]]], shape: tuple[int, ...]) -> Iterator[tuple[int, Bytes]]:
    parts = row_scale(shape)
    for row, block in blocks:
        codes, words = quantise_rows_fp8(_as_float32(block))
        yield row * shape[1], codes.reshape(-1)
        yield parts.scale_offset + 2 * row, words.astype("<u2").view(np.uint8)
    yield from _gap(shape[0] * shape[1], parts.scale_offset)


def decode_bf16_words(data: Any, shape: tuple[int, ...]) -> Words:
    """The BF16 words of an encoded `bf16` object, bit for bit; a view of `data`, uint16 of `shape`."""
    return as_bytes(data, 2 * math.prod(shape)).view("<u2").reshape(shape)


def decode(
    data: Any, format: str, layout: str, shape: tuple[int, ...], rows: tuple[int, int] | None = None
) -> NDArray[Any]:
    """Values of an encoded object.

    data     buffer of exactly encoded_size bytes
    rows     half-open range of the first axis to decode, or None for all
    returns  float32 of `shape` (int32 for format `int32`), the first axis cut to `rows`; padding columns are dropped
    Raises ArtifactError without a path: BAD_ENCODING, BAD_SHAPE, SIZE_MISMATCH, BAD_RANGE.
    """
    entry = find_format(format)
    flat = as_bytes(data, encoded_size(format, layout, shape))
    if rows is None:
        begin, end = 0, shape[0] if shape else 1
    else:
        begin, end = rows
        if not shape or not 0 <= begin < end <= shape[0]:
            raise ArtifactError("BAD_RANGE", "", f"rows [{begin}, {end}) of shape {list(shape)}")
    if entry.is_direct:
        return _decode_direct(flat, entry, shape, (begin, end))
    values = np.empty((end - begin, shape[1]), np.float32)
    step = max(1, BLOCK_ELEMENTS // shape[1])
    # A loader does not check values: an illegal scale gives infinities and NaN, and no warning.
    with np.errstate(all="ignore"):
        for row in range(begin, end, step):
            stop = min(row + step, end)
            _decode_rows(flat, entry, shape, (row, stop), values[row - begin : stop - begin])
    return values


def _decode_direct(data: Bytes, entry: Format, shape: tuple[int, ...], rows: tuple[int, int]) -> NDArray[Any]:
    row_bytes = math.prod(shape[1:]) * entry.word_bytes
    words = data[rows[0] * row_bytes : rows[1] * row_bytes]
    cut = (rows[1] - rows[0], *shape[1:]) if shape else ()
    if entry.name == "bf16":
        return widen_bf16(words.view("<u2")).reshape(cut)
    return words.view("<i4" if entry.name == "int32" else "<f4").reshape(cut).copy()


def _decode_rows(data: Bytes, entry: Format, shape: tuple[int, ...], rows: tuple[int, int], out: Float32) -> None:
    if entry.is_grouped:
        codes, scales = unpack_grouped(data, entry, shape, rows)
        values = codes.astype(np.float32)
        values *= scales.astype(np.float32)[..., None]
        out[...] = values.reshape(out.shape[0], -1)[:, : shape[1]]
    elif entry.layout == ROW_SCALE:
        words, row_scales = unpack_row_fp8(data, shape, rows)
        out[...] = E4M3_VALUES.astype(np.float32)[words] * widen_bf16(row_scales)[:, None]
    else:
        nibbles, block_scales, divisor = unpack_nvfp4(data, shape, rows)
        products = E2M1_VALUES[nibbles].reshape(out.shape[0], -1, 16) * E4M3_VALUES[block_scales][..., None]
        out[...] = (products / np.float64(divisor)).reshape(out.shape)
