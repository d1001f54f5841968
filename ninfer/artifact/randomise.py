"""Random tensors generated directly in encoded form, well scaled for the forward pass.

Codes are uniform, scales vary by a quarter around the value that gives the wanted standard deviation, and their signs
are random (a decoder treats a scale as a signed multiplier), because uniform codes lean to the negative side. Nothing
depends on how the work is spread over threads: each block of rows has its own stream, keyed by seed, object and block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.formats import (
    BLOCK_SCALE,
    CONTIGUOUS,
    ROW_SCALE,
    Format,
    block_scale,
    encoded_size,
    find_format,
    row_scale,
    row_split,
)
from ninfer.artifact.layouts import Bytes, pack_codes
from ninfer.artifact.native import Parent
from ninfer.artifact.parameters import DRAFTERS, FP32, LogicalParameter
from ninfer.artifact.quantise import E2M1_VALUES, E4M3_VALUES, round_bf16

Float32 = NDArray[np.float32]
Pieces = Iterator[tuple[int, Bytes]]

# Encoded bytes of one block of rows; blocks are part of what a seed means.
BLOCK_BYTES = 8 << 20

# Matrices that write into the residual stream, which 128 of them must not inflate.
_RESIDUAL = ("attention/output", "gdn/output", "mlp/down", "mlp/fc2", "moe/shared/down")
_RESIDUAL_GAIN = 0.3
# Spread of the logits: flat enough that sampling has a choice, steep enough that rounding seldom decides.
_LOGIT_GAIN = 3.0
_EMBEDDING_STD = 0.5

_NVFP4_SCALE_WORDS = (0x30, 0x10)  # 16 words from 0.5 to 1.875


def row_ranges(parent: Parent) -> list[tuple[int, int]]:
    """Blocks of rows [begin, end) of one object (a scalar has one row)."""
    rows = parent.shape[0] if parent.shape else 1
    size = encoded_size(parent.format, find_format(parent.format).layout, parent.shape)
    step = max(1, BLOCK_BYTES * rows // size)
    return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


def random_block(parent: Parent, index: int, seed: int, block: int, rows: tuple[int, int], *, tied: bool) -> Pieces:
    """Encoded pieces (offset in the object, bytes) of rows [begin, end); all blocks together cover the object.

    index   number of the object in its artifact
    block   number of the block in :func:`row_ranges`
    tied    the embedding is the output head as well
    """
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, index, block))))
    entry = find_format(parent.format)
    member = parent.members[0]
    if entry.layout == CONTIGUOUS:
        return _direct(rng, member, entry, parent.shape, rows)
    std = _standard_deviation(member, tied=tied)
    if entry.layout == ROW_SCALE:
        return _row_fp8(rng, parent.shape, rows, std)
    if entry.layout == BLOCK_SCALE:
        return _nvfp4(rng, parent.shape, rows, std)
    return _grouped(rng, entry, parent.shape, rows, std)


def _standard_deviation(parameter: LogicalParameter, *, tied: bool) -> float:
    role, columns = parameter.role, parameter.shape[-1]
    if role == "token_embedding" and not tied:
        return _EMBEDDING_STD
    gain = 1.0
    if role in ("token_embedding", "output_head", "head"):
        gain = _LOGIT_GAIN
    elif role in _RESIDUAL or (role.startswith("moe/experts/") and role.endswith("/down")):
        gain = _RESIDUAL_GAIN
    return gain / math.sqrt(columns)


def _random_bytes(rng: np.random.Generator, count: int) -> Bytes:
    # The full range of 64-bit words is the one integer method that is both fast and runs without the interpreter lock.
    words = rng.integers(0, 2**64 - 1, size=-(-count // 8), dtype=np.uint64, endpoint=True)
    return words.view(np.uint8)[:count]


def _multipliers(std: float, *, signed: bool) -> Float32:
    """256 scales between 0.75 and 1.25 times `std`, every second one negative if `signed`."""
    values = np.repeat(np.linspace(0.75, 1.25, 128), 2) * std
    if signed:
        values[1::2] *= -1
    return values.astype(np.float32)


def _grouped(
    rng: np.random.Generator, entry: Format, shape: tuple[int, ...], rows: tuple[int, int], std: float
) -> Pieces:
    planes = row_split(entry, shape)
    begin, count = rows[0], rows[1] - rows[0]
    # All bits of the real lanes, none of the padding.
    lanes = np.zeros((1, planes.groups * entry.group), np.int8)
    lanes[:, : shape[1]] = -1
    base_mask, high_mask = pack_codes(lanes.reshape(1, planes.groups, entry.group), entry)
    padded = shape[1] < planes.groups * entry.group

    def plane(row_bytes: int, mask: Bytes) -> Bytes:
        data = _random_bytes(rng, count * row_bytes).reshape(count, row_bytes)
        if entry.bits == 8:
            data |= np.uint8(1)  # code -128 is not legal, and it is the only even one that can be avoided this cheaply
        if padded:
            data &= mask
        return data

    yield begin * planes.base_row, plane(planes.base_row, base_mask).reshape(-1)
    if high_mask is not None:
        yield planes.high_offset + begin * planes.high_row, plane(planes.high_row, high_mask).reshape(-1)

    levels = 2**entry.bits
    code_rms = math.sqrt((levels**2 - 1) / 12 + 0.25)
    table = _multipliers(std / code_rms, signed=True).astype("<f2")
    scales = table[_random_bytes(rng, count * planes.groups)].reshape(count, planes.groups)
    scales[:, planes.real_groups :] = 0
    yield planes.scale_offset + begin * planes.scale_row, scales.reshape(-1).view(np.uint8)
    if begin == 0:
        yield from _gap(planes.rows * planes.base_row, planes.high_offset)
        yield from _gap(planes.high_offset + planes.rows * planes.high_row, planes.scale_offset)


def _gap(begin: int, end: int) -> Pieces:
    if begin < end:
        yield begin, np.zeros(end - begin, np.uint8)


def _row_fp8(rng: np.random.Generator, shape: tuple[int, ...], rows: tuple[int, int], std: float) -> Pieces:
    parts = row_scale(shape)
    begin, count = rows[0], rows[1] - rows[0]
    codes = _random_bytes(rng, count * shape[1])
    codes -= (codes & np.uint8(0x7F)) == np.uint8(0x7F)  # the two NaN words become the largest finite ones
    yield begin * shape[1], codes
    finite = E4M3_VALUES[np.isfinite(E4M3_VALUES)]
    table = round_bf16(_multipliers(std / float(np.sqrt(np.mean(finite**2))), signed=False))
    scales = table[_random_bytes(rng, count)].astype("<u2")
    yield parts.scale_offset + 2 * begin, scales.view(np.uint8)
    if begin == 0:
        yield from _gap(shape[0] * shape[1], parts.scale_offset)


def _nvfp4(rng: np.random.Generator, shape: tuple[int, ...], rows: tuple[int, int], std: float) -> Pieces:
    parts = block_scale(shape)
    begin, end = rows
    first, words = _NVFP4_SCALE_WORDS
    yield begin * shape[1] // 2, _random_bytes(rng, (end - begin) * shape[1] // 2)
    # Scales are independent of one another, so their tile order does not matter and rows can be counted flat.
    scales = np.uint8(first) + _random_bytes(rng, (end - begin) * shape[1] // 16) % np.uint8(words)
    yield parts.scale_offset + begin * shape[1] // 16, scales
    if begin == 0:
        yield from _gap(shape[0] * shape[1] // 2, parts.scale_offset)
        block_rms = math.sqrt(float(np.mean(E4M3_VALUES[first : first + words] ** 2)))
        rms = math.sqrt(float(np.mean(E2M1_VALUES**2))) * block_rms
        yield parts.divisor_offset, np.array([rms / std], "<f4").view(np.uint8)


def _direct(
    rng: np.random.Generator,
    member: LogicalParameter,
    entry: Format,
    shape: tuple[int, ...],
    rows: tuple[int, int],
) -> Pieces:
    width = math.prod(shape[1:])
    values = _direct_values(rng, member, (rows[1] - rows[0]) * width)
    words: NDArray[Any] = values.astype("<f4") if entry.name == "fp32" else round_bf16(values).astype("<u2")
    yield rows[0] * width * entry.word_bytes, words.view(np.uint8)


def _direct_values(rng: np.random.Generator, member: LogicalParameter, count: int) -> Float32:
    role = member.role
    if member.kind == FP32:
        if role.endswith("a_log"):
            return np.log(rng.uniform(1.0, 16.0, count)).astype(np.float32)
        step = np.exp(rng.uniform(math.log(1e-3), math.log(0.1), count))
        return np.log(np.expm1(step)).astype(np.float32)  # softplus gives `step` back
    noise = rng.standard_normal(count, dtype=np.float32)
    if role.endswith(("norm", "norm_weight", "norm1_weight", "norm2_weight")):
        plain = member.component in (*DRAFTERS, "vision") or role == "gdn/norm"
        return noise * np.float32(0.1) + np.float32(plain)
    if len(member.shape) == 1 or role == "position_embedding":
        return noise * np.float32(0.02)
    if role == "gdn/convolution" or role.endswith("base_kernel"):
        return noise * np.float32(0.5)
    return noise * np.float32(_standard_deviation(member, tied=False))
