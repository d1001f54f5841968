"""Random low-bit matrices in their stored form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ninfer.artifact.formats import find_format, row_split
from ninfer.artifact.layouts import pack_grouped
from ninfer.kernels.low_bit_linear.pack import LowBitWeight, Planes, pack, pack_paired
from ninfer.kernels.low_bit_linear.packing import PACKINGS
from ninfer.kernels.low_bit_linear.ref import weight_ref

FORMATS = {4: "q4_g64_fp16", 5: "q5_g64_fp16", 6: "q6_g64_fp16", 8: "q8_g32_fp16"}
BITS = tuple(FORMATS)


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """codes [N, K] int8, scales [N, groups] fp16, and the same as stored planes."""

    codes: Tensor
    scales: Tensor
    planes: Planes
    bits: int

    @property
    def packed(self) -> LowBitWeight:
        return pack(self.planes, self.codes.shape[1], self.bits)

    @property
    def paired(self) -> LowBitWeight:
        """The upper and the lower half of the rows, paired."""
        half = self.codes.shape[0] // 2
        upper, lower = self.planes.narrow(0, half), self.planes.narrow(half, 2 * half)
        return pack_paired(upper, lower, self.codes.shape[1], self.bits)

    @property
    def wide(self) -> Tensor:
        """float64 [N, K]"""
        return weight_ref(self.codes, self.scales, PACKINGS[self.bits].group)


def matrix(rows: int, columns: int, bits: int, seed: int = 0, *, any_scale: bool = False) -> Matrix:
    """Every legal code, scales of both signs, stored by the artifact's own writer. any_scale: all of fp16."""
    source = np.random.default_rng(seed)
    entry = find_format(FORMATS[bits])
    codes = source.integers(entry.qmin, entry.qmax + 1, (rows, columns), dtype=np.int8)
    groups = -(-columns // entry.group)
    scales = (source.uniform(0.001, 0.011, (rows, groups)) * source.choice([-1, 1], (rows, groups))).astype(np.float16)
    if any_scale:
        scales = source.integers(0, 1 << 16, (rows, groups), dtype=np.uint16).view(np.float16)
        scales = np.where(np.isfinite(scales), scales, np.float16(65504))
    data = pack_grouped(codes, scales, entry)
    return Matrix(torch.from_numpy(codes), torch.from_numpy(scales), planes_of(data, rows, columns, bits), bits)


def planes_of(data: np.ndarray, rows: int, columns: int, bits: int) -> Planes:
    split = row_split(find_format(FORMATS[bits]), (rows, columns))
    stored = torch.from_numpy(data)

    def plane(offset: int, width: int) -> Tensor:
        return stored[offset : offset + rows * width].reshape(rows, width)

    high = plane(split.high_offset, split.high_row) if split.high_row else None
    scales = plane(split.scale_offset, split.scale_row).contiguous().view(torch.float16)
    return Planes(plane(0, split.base_row), high, scales)
