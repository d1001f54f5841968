"""Inputs and oracles of the kernels with one form or two, for the plain and for the Triton route."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.embedding.stored import StoredRows
from ninfer.kernels.sampler.lanes import LAW_FIELDS, MAX_STOP_IDS, LaneTables, law_row
from ninfer.kernels.sampler.masks import mask_words
from ninfer.types import Sampling

GROUPS = {4: 64, 5: 64, 6: 64, 8: 32}
LAWS = (
    Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0),
    Sampling(0.8, 20, 0.9, 0.02, 1.0, 0.3, 0),
    Sampling(1.0, 5, 1.0, 0.0, 0.0, 0.0, 0),
    Sampling(1.3, 20, 0.5, 0.1, 0.0, -0.5, 0),
)


def source(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stored_rows(bits: int, rows: int, columns: int) -> tuple[StoredRows, Tensor]:
    """A stored matrix of random bytes, and its exact values [rows, columns] float64."""
    group = GROUPS[bits]
    padded = -(-columns // 128) * 128
    base = torch.randint(0, 256, (rows, padded if bits == 8 else padded // 2), generator=source(bits)).to(torch.uint8)
    high = None
    if bits in (5, 6):
        high = torch.randint(0, 256, (rows, padded * (bits - 4) // 8), generator=source(9)).to(torch.uint8)
    scales = torch.randn(rows, padded // group, generator=source(3)).half()
    values = torch.empty(rows, columns, dtype=torch.float64)
    for row in range(rows):
        for k in range(columns):
            values[row, k] = (
                _code(base[row], None if high is None else high[row], k, bits) * scales[row, k // group].double()
            )
    return StoredRows(base, high, scales, columns, bits, group), values


def _code(base: Tensor, high: Tensor | None, k: int, bits: int) -> int:
    """Code k of a row, digit by digit (artifact spec 6.2)."""
    if bits == 8:
        code = int(base[k])
    else:
        code = int(base[k // 2]) >> 4 * (k % 2) & 15
        for bit in range(bits - 4):
            assert high is not None
            place = k * (bits - 4) + bit
            code |= (int(high[place // 8]) >> place % 8 & 1) << (4 + bit)
    return code - (1 << bits) if code >> (bits - 1) else code


def lane_tables(vocabulary: int) -> LaneTables:
    lanes = len(LAWS)
    assert len(law_row(LAWS[0])) == LAW_FIELDS
    return LaneTables(
        laws=torch.tensor([law_row(law) for law in LAWS]),
        stops=torch.full((lanes, MAX_STOP_IDS), -1, dtype=torch.int32),
        counts=torch.randint(0, 3, (lanes, vocabulary), generator=source(5), dtype=torch.int32),
        anchors=torch.full((lanes,), -7, dtype=torch.int32),
        masks=torch.full((lanes, mask_words(vocabulary)), -1, dtype=torch.int32),
        halts=torch.zeros(lanes, mask_words(vocabulary), dtype=torch.int32),
    )
