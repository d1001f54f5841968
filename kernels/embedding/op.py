"""Token embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.embedding import torch_gather


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Rows of the embedding matrix (model spec 6.1: no scaling).

    y[t, :] = table[ids[t], :]

    ids      [T]    int64, 0 <= id < V, T >= 1
    table    [V, H] bf16 or fp32
    returns  [T, H] dtype of table
    effects  none
    """
    assert ids.dtype == torch.int64
    assert ids.dim() == 1
    assert table.dim() == 2
    return torch_gather.embedding(ids, table)
