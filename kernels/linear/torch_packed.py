"""Plain-torch route over a weight packed once into oneDNN's blocked order: up to eight times faster for a few rows.

The operators are those that torch's own compiler emits for a linear layer with a constant weight. They are not part of
torch's documented interface, therefore everything about them is tested at run time: that they exist, that the packed
copy has the size the memory plan counts, and (``numerics.widths``) that rows do not depend on their neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.numerics.widths import MAX_WIDTH, rows_product

ROW_MULTIPLE = 64  # oneDNN pads the rows of a blocked weight to this; padding them before makes its size predictable
_DECODE_ROWS = 8  # batches up to this size are not padded


def pack(weight: Tensor) -> Tensor | None:
    """The packed copy of a weight [N, K] fp32; None if this torch or this processor has no such route."""
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, MAX_WIDTH)
    return packed if packed_bytes(packed) == weight.nbytes else None


def packed_bytes(packed: Tensor) -> int:
    return int(torch.ops.mkldnn._nbytes(packed))


def linear(x: Tensor, packed: Tensor) -> Tensor:
    """x [T, K] fp32 times the transposed weight: [T, N] with the padded N."""

    def product(rows: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
        return out

    return rows_product(x.contiguous(), product, ("packed", *packed.shape), smallest=_DECODE_ROWS)
