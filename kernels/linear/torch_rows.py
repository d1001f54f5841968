"""Plain-torch route over the weight as it is stored."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.numerics.widths import rows_product


def linear(x: Tensor, weight: Tensor) -> Tensor:
    wide, factor = x.float().contiguous(), weight.float()
    return rows_product(wide, lambda rows: torch.mm(rows, factor.t()), ("mm", *weight.shape), smallest=0).to(x.dtype)
