"""The closed table of numeric formats and the byte geometry of their layouts (artifact spec, sections 2, 5, 6).

Names are keys of this table and are never parsed. A format belongs to exactly one layout. Standard library only, so
that listing and upgrading a file needs no numeric package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.errors import ArtifactError

U64_MAX = 2**64 - 1
MAX_RANK = 16
TENSOR_ALIGNMENT = 256
PAYLOAD_ALIGNMENT = 4096

CONTIGUOUS = "contiguous_le_v1"
ROW_SPLIT = "row_split_k128_v1"
BLOCK_SCALE = "block_scale_k16_m128x4_v1"
ROW_SCALE = "row_scale_v1"
RAW_BYTES = "raw_bytes_v1"

LEGACY_LAYOUTS = {
    CONTIGUOUS: "contiguous-le-v1",
    ROW_SPLIT: "row-split-k128-v1",
    BLOCK_SCALE: "blockscale-k16-m128x4-v1",
    ROW_SCALE: "row-scale-v1",
}
LEGACY_RAW_BYTES = "raw-bytes-v1"


@dataclass(frozen=True, slots=True)
class Format:
    """One numeric format.

    name           name in version 3
    legacy_name    name in versions 1 and 2, or None if it does not exist there
    version_1      whether version 1 knows it
    layout         the only layout it is stored in
    word_bytes     bytes of one element of a direct format, else 0
    group          columns that share one scale in a grouped format, else 0
    bits           width of one two's-complement code of a grouped format, else 0
    base_bytes     bytes per group in the base plane
    high_bytes     bytes per group in the high plane, 0 if there is none
    qmin, qmax     legal codes; the encoder divides by qmax
    """

    name: str
    legacy_name: str | None
    version_1: bool
    layout: str
    word_bytes: int = 0
    group: int = 0
    bits: int = 0
    base_bytes: int = 0
    high_bytes: int = 0
    qmin: int = 0
    qmax: int = 0

    @property
    def is_direct(self) -> bool:
        return self.layout == CONTIGUOUS

    @property
    def is_grouped(self) -> bool:
        return self.layout == ROW_SPLIT


def _direct(name: str, legacy_name: str, word_bytes: int) -> Format:
    return Format(name, legacy_name, True, CONTIGUOUS, word_bytes=word_bytes)


FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        _direct("bf16", "BF16", 2),
        _direct("fp32", "FP32", 4),
        _direct("int32", "I32", 4),
        Format("q4_g64_fp16", "Q4G64_F16S", True, ROW_SPLIT, 0, 64, 4, 32, 0, -8, 7),
        Format("q5_g64_fp16", "Q5G64_F16S", True, ROW_SPLIT, 0, 64, 5, 32, 8, -16, 15),
        Format("q6_g64_fp16", "Q6G64_F16S", True, ROW_SPLIT, 0, 64, 6, 32, 16, -32, 31),
        Format("q8_g32_fp16", "W8G32_F16S", True, ROW_SPLIT, 0, 32, 8, 32, 0, -127, 127),
        Format("t2_g128_fp16", None, False, ROW_SPLIT, 0, 128, 2, 32, 0, -1, 1),
        Format("nvfp4", "NVFP4", False, BLOCK_SCALE),
        Format("fp8_e4m3fn_row_bf16", "FP8_E4M3FN_ROW_BF16S", False, ROW_SCALE),
    )
}
LAYOUTS = frozenset({CONTIGUOUS, ROW_SPLIT, BLOCK_SCALE, ROW_SCALE})


def up(value: int, alignment: int) -> int:
    """Smallest multiple of `alignment` that is >= `value`."""
    return -(-value // alignment) * alignment


def find_format(name: str) -> Format:
    """The registered format `name`; raises ArtifactError BAD_ENCODING for any other name."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ArtifactError("BAD_ENCODING", "", f"unknown format {name!r}, known: {', '.join(FORMATS)}") from None


def default_layout(format: str) -> str:
    """The one layout that `format` is stored in."""
    return find_format(format).layout


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Planes of one `row_split_k128_v1` object of shape [rows, columns] (6.2). Offsets and sizes in bytes.

    groups         groups per row, padding groups included (R)
    real_groups    groups per row that hold at least one real column
    base_row, high_row, scale_row    bytes of one row in each plane; the base plane starts at 0
    """

    rows: int
    columns: int
    groups: int
    real_groups: int
    base_row: int
    high_row: int
    scale_row: int
    high_offset: int
    scale_offset: int
    size: int


def row_split(format: Format, shape: Sequence[int]) -> RowSplit:
    """Plane geometry of a grouped `format` for a legal shape [N, K]."""
    rows, columns = shape
    groups = up(columns, 128) // format.group
    base_row, high_row, scale_row = groups * format.base_bytes, groups * format.high_bytes, groups * 2
    high_offset = up(rows * base_row, 256)
    scale_offset = high_offset + up(rows * high_row, 256)
    size = scale_offset + rows * scale_row
    real_groups = -(-columns // format.group)
    return RowSplit(rows, columns, groups, real_groups, base_row, high_row, scale_row, high_offset, scale_offset, size)


@dataclass(frozen=True, slots=True)
class BlockScale:
    """Parts of one `block_scale_k16_m128x4_v1` object (6.3): codes at 0, scales, one fp32 divisor."""

    scale_offset: int
    divisor_offset: int
    size: int


def block_scale(shape: Sequence[int]) -> BlockScale:
    """Geometry of an NVFP4 object of legal shape [N, K]."""
    elements = shape[0] * shape[1]
    scale_offset = up(elements // 2, 256)
    divisor_offset = scale_offset + elements // 16
    return BlockScale(scale_offset, divisor_offset, divisor_offset + 4)


@dataclass(frozen=True, slots=True)
class RowScale:
    """Parts of one `row_scale_v1` object (6.4): codes at 0, one BF16 word per row."""

    scale_offset: int
    size: int


def row_scale(shape: Sequence[int]) -> RowScale:
    """Geometry of a row-scaled FP8 object of legal shape [N, K]."""
    scale_offset = up(shape[0] * shape[1], 256)
    return RowScale(scale_offset, scale_offset + 2 * shape[0])


def encoded_size(format: str, layout: str, shape: Sequence[int]) -> int:
    """Bytes of an encoded object (section 6).

    Raises ArtifactError, without a path: BAD_ENCODING for an unknown name, a pair that is not allowed, or a shape
    the layout cannot hold; BAD_SHAPE for a shape that is no tensor shape or a size beyond 64 bits.
    """
    entry = find_format(format)
    if layout not in LAYOUTS:
        raise ArtifactError("BAD_ENCODING", "", f"unknown layout {layout!r}")
    if layout != entry.layout:
        raise ArtifactError("BAD_ENCODING", "", f"format {format} is stored in {entry.layout}, not in {layout}")
    check_shape(shape)
    if entry.is_direct:
        size = math.prod(shape) * entry.word_bytes
    else:
        if len(shape) != 2:
            raise ArtifactError("BAD_ENCODING", "", f"format {format} needs rank 2, found shape {list(shape)}")
        if entry.is_grouped:
            size = row_split(entry, shape).size
        elif layout == BLOCK_SCALE:
            if shape[0] % 128 or shape[1] % 64:
                raise ArtifactError(
                    "BAD_ENCODING",
                    "",
                    f"format {format} needs rows divisible by 128 and columns by 64, found {list(shape)}",
                )
            size = block_scale(shape).size
        else:
            size = row_scale(shape).size
    if size > U64_MAX:
        raise ArtifactError("BAD_SHAPE", "", f"shape {list(shape)} in format {format} exceeds 64-bit sizes")
    return size


def check_shape(shape: Sequence[int]) -> None:
    """Raise ArtifactError BAD_SHAPE (without a path) unless `shape` is 0 to 16 positive integers, product in U64."""
    if len(shape) > MAX_RANK:
        raise ArtifactError("BAD_SHAPE", "", f"rank {len(shape)} exceeds {MAX_RANK}")
    if any(dimension <= 0 for dimension in shape):
        raise ArtifactError("BAD_SHAPE", "", f"shape {list(shape)} has a dimension that is not positive")
    if math.prod(shape) > U64_MAX:
        raise ArtifactError("BAD_SHAPE", "", f"shape {list(shape)} has more than 2^64-1 elements")
