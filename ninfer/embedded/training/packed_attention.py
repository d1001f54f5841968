"""Causal attention within each of many documents packed behind each other, in two routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the documents of N packed tokens lie.

    rows        number of rows of equal length; no document crosses a row's edge
    positions   [N] int64, counted from each document's start
    bounds      [documents + 1] int32, start of each document and N
    longest     tokens of the longest document
    """

    rows: int
    positions: Tensor
    bounds: Tensor
    longest: int

    @classmethod
    def at(cls, rows: int, positions: Tensor, device: torch.device | None = None) -> Documents:
        """From positions alone; given on the CPU and moved to `device`, nothing waits for that device."""
        starts = (positions == 0).nonzero().flatten()
        bounds = torch.cat([starts, starts.new_tensor([positions.numel()])]).int()
        longest = int(positions.max()) + 1
        if device is not None and device.type == "cuda":
            positions, bounds = (x.pin_memory().to(device, non_blocking=True) for x in (positions, bounds))
        return cls(rows, positions, bounds, longest)


class Attention(Protocol):
    """q [N, H, D], k and v [N, HKV, D]; returns [N, H, D]; scores are scaled with D**-0.5."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor: ...


def masked(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    """Row by row with a mask over the whole row: any device, any dtype, memory of the square of a row's length."""
    rows = documents.rows
    number = (documents.positions == 0).cumsum(0).view(rows, 1, -1)
    mask = (number.unsqueeze(-1) == number.unsqueeze(-2)).tril()
    q, k, v = (x.view(rows, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2).reshape(-1, q.shape[1], q.shape[3])


@torch.compiler.disable  # type: ignore[untyped-decorator]
def variable_length(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    """The flash kernel over documents of any length; bf16 on a GPU."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    bounds, longest = documents.bounds, documents.longest
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q.contiguous(), k, v, bounds, bounds, longest, longest, 0.0, True, False
    )[0]
    return out


ATTENTIONS: dict[str, Attention] = {"masked": masked, "varlen": variable_length}
