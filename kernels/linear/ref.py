"""Float64 oracle."""

from __future__ import annotations

from torch import Tensor


def linear_ref(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().t()
