"""Plain-torch route."""

from __future__ import annotations

from torch import Tensor


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    return table.index_select(0, ids)
