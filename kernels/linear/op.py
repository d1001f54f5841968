"""Linear maps without bias: the products with the model's weights.

A weight is prepared once, after loading, into the form that its route reads fastest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.linear import torch_packed, torch_rows

ROW_MULTIPLE = torch_packed.ROW_MULTIPLE


def can_pack(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype have a packed form; a processor or torch without it gets the plain one."""
    return dtype == torch.float32


def prepared_rows(rows: int, dtype: torch.dtype) -> int:
    """Rows that a prepared weight occupies: in fp32, which can be packed, a multiple of 64."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE if can_pack(dtype) else rows


@dataclass(frozen=True, slots=True, eq=False)
class LinearWeight:
    """A weight [N, K] in the form of a route.

    storage  [N, K] contiguous; or, if `packed`, an opaque copy in the library's own order
    rows     N
    nbytes   bytes of the storage
    """

    storage: Tensor
    rows: int
    inner: int
    packed: bool

    @property
    def nbytes(self) -> int:
        return torch_packed.packed_bytes(self.storage) if self.packed else self.storage.untyped_storage().nbytes()


def plain(weight: Tensor) -> LinearWeight:
    """Use a matrix [N, K] as it is, without a copy."""
    return LinearWeight(storage=weight, rows=weight.shape[0], inner=weight.shape[1], packed=False)


def prepare(weight: Tensor, rows: int) -> LinearWeight:
    """Bring a weight into its route's form; the caller drops its own reference afterwards.

    weight   [prepared_rows(rows, dtype), K] bf16 or fp32, contiguous, of its own storage; rows from `rows` on are zero
    returns  a weight of the same number of bytes
    """
    assert weight.shape[0] == prepared_rows(rows, weight.dtype)
    if can_pack(weight.dtype):
        packed = torch_packed.pack(weight)
        if packed is not None:
            return LinearWeight(storage=packed, rows=rows, inner=weight.shape[1], packed=True)
    return LinearWeight(storage=weight, rows=rows, inner=weight.shape[1], packed=False)


def linear(x: Tensor, weight: LinearWeight) -> Tensor:
    """y[t, n] = sum_k x[t, k] * weight[n, k]

    x        [T, K] bf16 or fp32, T >= 1
    weight   [N, K] of the same dtype
    returns  [T, N] same dtype, rows contiguous; accumulated in fp32, rounded once
    effects  none; the bits of y[t] depend on x[t] and the weight alone, never on T or t
    """
    assert x.shape[-1] == weight.inner
    if weight.packed:
        y = torch_packed.linear(x, weight.storage)
        return y if y.shape[1] == weight.rows else y[:, : weight.rows]
    assert x.dtype == weight.storage.dtype
    return torch_rows.linear(x, weight.storage[: weight.rows])
