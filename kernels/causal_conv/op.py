"""Depthwise causal convolution with SiLU in front of the gated DeltaNet."""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.causal_conv import torch_taps


def causal_conv(columns: Tensor, taps: Tensor) -> Tensor:
    """Convolve along time, then SiLU (model spec 6.4, step 2).

    y[b, t, c] = silu( sum_{j < W} taps[j, c] * columns[b, t + j, c] )       j ascending

    columns  [B, W - 1 + T, C] bf16 or fp32: the W - 1 columns before the first token, then the T tokens
    taps     [W, C]            fp32; the last tap multiplies the current token
    returns  [B, T, C]         dtype of columns, rounded once from fp32
    effects  none
    """
    assert columns.shape[1] >= taps.shape[0]
    assert columns.shape[2] == taps.shape[1]
    return torch_taps.causal_conv(columns, taps)
