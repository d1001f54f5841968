"""Plain-torch route: one product and one sum per tap, in that order, so no fused multiply-add is left to chance."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.numerics.activations import narrowed, silu, widened


def causal_conv(columns: Tensor, taps: Tensor) -> Tensor:
    wide = widened(columns)
    tokens = columns.shape[1] - taps.shape[0] + 1
    if tokens == 1:  # the same products and sums in fewer operations
        parts = (wide * taps).unbind(1)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return narrowed(silu(total), columns.dtype).unsqueeze(1)
    total = wide[:, :tokens] * taps[0]
    for j in range(1, taps.shape[0]):
        total += wide[:, j : j + tokens] * taps[j]
    return narrowed(silu(total), columns.dtype)
