"""Rows of an embedding matrix that stays in its stored form (artifact spec 5.2, 6.2): grouped codes, or bf16."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear.pack import patterns


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """A matrix [V, H].

    base    [V, R * bytes] uint8, low four bits (or all eight) of the codes; or [V, H] bf16 with `bits` 16
    high    [V, R * bytes] uint8, the bits above the fourth; None where there are none
    scales  [V, R] fp16; None with `bits` 16
    bits    4, 5, 6, 8 or 16
    group   columns that share a scale
    """

    base: Tensor
    high: Tensor | None
    scales: Tensor | None
    columns: int
    bits: int
    group: int


def gather(ids: Tensor, table: StoredRows, out: Tensor, through: Tensor | None = None) -> None:
    """out[t, h] = code[id, h] * scale[id, h // group], rounded once to bf16, with id = ids[t] or ids[through[t]]

    ids      [T] or, with `through`, [C] int32, 0 <= id < V
    through  [T] int32 or None
    out      [T, H] bf16, contiguous
    effects  writes out
    """
    assert ids.dtype == torch.int32
    assert out.shape == ((ids if through is None else through).shape[0], table.columns)
    if out.is_cuda:
        from ninfer.kernels.embedding import triton_gather

        triton_gather.gather(ids, table, out, through)
        return
    rows = (ids if through is None else ids[through.long()]).long()
    if table.bits == 16:
        out.copy_(table.base[rows])
        return
    assert table.scales is not None
    codes = _codes(table.base[rows], None if table.high is None else table.high[rows], table.bits)
    scales = table.scales[rows].float().repeat_interleave(table.group, dim=1)
    out.copy_((codes.float() * scales)[:, : table.columns])


def _codes(base: Tensor, high: Tensor | None, bits: int) -> Tensor:
    """Signed codes [n, R * group] int32 of stored rows."""
    half = 1 << (bits - 1)
    return (patterns(base, high, bits).to(torch.int32) ^ half) - half
