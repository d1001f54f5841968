"""The attention cache of one layer: page-major planes, 64 tokens a page (kv-and-state spec 8.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

PAGE = 64
SCALE_GROUP = 64  # columns of a row that share a scale

Codec = Literal["int8", "bf16"]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """keys, values            [P, HKV, 64, D]       int8 codes, or bf16 rows
    key_scales, value_scales   [P, HKV, 64, D / 64]  fp16; None for bf16

    int8 keys are rotated by a Hadamard transform before they are coded, values are not (kv-and-state spec 4.2).
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None

    @property
    def int8(self) -> bool:
        return self.key_scales is not None

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def width(self) -> int:
        return self.keys.shape[3]


def empty_pool(pages: int, kv_heads: int, width: int, codec: Codec, device: torch.device | str) -> Pool:
    """A pool whose rows hold anything."""
    rows = (pages, kv_heads, PAGE)
    if codec == "bf16":
        keys, values = (torch.empty(*rows, width, dtype=torch.bfloat16, device=device) for _ in range(2))
        return Pool(keys, values, None, None)
    keys, values = (torch.empty(*rows, width, dtype=torch.int8, device=device) for _ in range(2))
    scales = [torch.empty(*rows, width // SCALE_GROUP, dtype=torch.float16, device=device) for _ in range(2)]
    return Pool(keys, values, *scales)
