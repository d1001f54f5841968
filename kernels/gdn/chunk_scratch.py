"""Scratch of a chunk on a GPU: parts of one buffer, for as many blocks as are worked on at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.gdn import variants
from ninfer.kernels.gdn.slots import BLOCK, GdnShape

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True, eq=False)
class ChunkScratch:
    """Of n blocks: queries, keys [n, HK, 64, DK]; values [n, HV, DV, 64]; inverses, inside [n, HV, 2, 64, 64], all
    bf16; factors [n, HV, 6, 64], mixed [n, HV, DV, 64] fp32."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    inverses: Tensor
    inside: Tensor
    factors: Tensor
    mixed: Tensor


def _parts(tokens: int, shape: GdnShape) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    n = min(-(-tokens // BLOCK), variants.SUB_BLOCKS)
    key = ((n, shape.key_heads, BLOCK, shape.key_width), torch.bfloat16)
    squares = ((n, shape.value_heads, 2, BLOCK, BLOCK), torch.bfloat16)
    turned = (n, shape.value_heads, shape.value_width, BLOCK)
    return {
        "queries": key,
        "keys": key,
        "values": (turned, torch.bfloat16),
        "inverses": squares,
        "inside": squares,
        "factors": ((n, shape.value_heads, 6, BLOCK), torch.float32),
        "mixed": (turned, torch.float32),
    }


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return -(-torch.Size(shape).numel() * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


def chunk_scratch_bytes(tokens: int, shape: GdnShape) -> int:
    """Bytes that a chunk of so many tokens, or fewer, needs as scratch on a GPU; its tokens count from the start of the
    block in which it begins."""
    return sum(_bytes(*part) for part in _parts(tokens, shape).values())


def chunk_scratch(buffer: Tensor, tokens: int, shape: GdnShape) -> ChunkScratch:
    """The parts of a buffer [n] uint8."""
    assert buffer.numel() >= chunk_scratch_bytes(tokens, shape)
    views, at = {}, 0
    for name, (size, dtype) in _parts(tokens, shape).items():
        end = at + torch.Size(size).numel() * dtype.itemsize
        views[name] = buffer[at:end].view(dtype).view(size)
        at += _bytes(size, dtype)
    return ChunkScratch(**views)
