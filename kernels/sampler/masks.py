"""Which ids may be drawn: one bit per id in 32-bit words, in front of the sampler's candidates (serving spec, 6.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WORD_BITS = 32


def mask_words(vocabulary: int) -> int:
    """Words of a mask for this many ids."""
    return -(-vocabulary // WORD_BITS)


def mask_row(mask: bytes, words: int) -> Tensor:
    """[words] int32 of a mask in bytes; ids behind its last word may not be drawn."""
    row = torch.zeros(words, dtype=torch.int32)
    found = torch.frombuffer(bytearray(mask), dtype=torch.int32)[:words]
    row[: len(found)] = found
    return row


def has(mask: bytes, token_id: int) -> bool:
    """Whether a mask in bytes has the bit of an id."""
    return token_id // 8 < len(mask) and bool(mask[token_id // 8] >> token_id % 8 & 1)


def allowed(row: Tensor, vocabulary: int) -> Tensor:
    """[vocabulary] bool of a row [words] int32."""
    bits = torch.arange(WORD_BITS, dtype=torch.int32, device=row.device)
    return ((row[:, None] >> bits) & 1).bool().flatten()[:vocabulary]


def masked(logits: Tensor, masks: Sequence[bytes | None]) -> Tensor:
    """The logits [B, V] with minus infinity for what may not be drawn; the same tensor if everything may."""
    if all(mask is None for mask in masks):
        return logits
    out = logits.clone()
    for row, mask in enumerate(masks):
        if mask is not None:
            legal = allowed(mask_row(mask, mask_words(logits.shape[1])), logits.shape[1])
            out[row].masked_fill_(~legal.to(logits.device), float("-inf"))
    return out
