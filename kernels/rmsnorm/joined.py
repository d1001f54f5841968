"""Two norms side by side: what the first product of a multi-token prediction layer reads (model spec 9.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear.buffers import Columns, to_columns
from ninfer.kernels.rmsnorm import torch_rows


def joined_offset_rmsnorm(
    left: Tensor, right: Tensor, left_weight: Tensor, right_weight: Tensor, eps: float, out: Tensor | Columns
) -> None:
    """out[t] = left[t] / rms(left[t]) * (1 + left_weight) | right[t] / rms(right[t]) * (1 + right_weight)

    left, right                [T, D] bf16, contiguous
    left_weight, right_weight  [D]    fp32, zero-centred
    eps                        inside the root
    out                        [T, 2 D] bf16, contiguous, or columns of 2 D values without a norm; rounded once
    effects                    writes the first T tokens of out; the bits of a token depend on its own rows alone
    """
    tokens, columns = left.shape
    assert right.shape == left.shape
    if isinstance(out, Columns):
        assert out.norm is None
        assert out.columns == 2 * columns
        assert tokens <= out.capacity
    else:
        assert out.shape == (tokens, 2 * columns)
    if left.is_cuda:
        from ninfer.kernels.rmsnorm import triton_joined

        triton_joined.joined_offset_rmsnorm(left, right, left_weight, right_weight, eps, out)
        return
    norms = [torch_rows.offset_rmsnorm(x, weight, eps) for x, weight in ((left, left_weight), (right, right_weight))]
    joined = torch.cat(norms, dim=1)
    if isinstance(out, Columns):
        to_columns(joined, out)
    else:
        out.copy_(joined)
