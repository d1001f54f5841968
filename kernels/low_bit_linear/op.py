"""Low-bit products for few columns, and what is done with their sums before the next product.

A product writes partial sums; a finishing op adds them in a fixed order and, in the same pass, does what the model
does next and writes the columns of the next product. A decode layer is four products and four finishing ops plus the
mixer itself:

    multiply(x, (query_key, gate_value))   finish_rows             mixer, writes columns in the layout of `buffers`
    multiply(mixed, (output,))             finish_residual         residual += ..., norm of the feed-forward
    multiply(x, (gate_up,))                finish_silu_mul
    multiply(product, (down,))             finish_residual         residual += ..., norm of the next layer

A norm multiplies a whole column by one number, so the number may be applied behind the product: `finish_residual`
writes residual * (1 + weight) and the sums of squares, and who finishes a product of such columns is given `x.norm`.
No program then has to see a whole column before others may begin. bf16 rounds relatively: nothing is lost by the order.

For all ops: the bits of a token depend on its own column, the weights and the number of programs, never on the number
of tokens, their order or the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ninfer.kernels.low_bit_linear import torch_dequantised
from ninfer.kernels.low_bit_linear.buffers import Columns, Norm, PartialSums
from ninfer.kernels.low_bit_linear.pack import LowBitWeight

MAX_CANDIDATES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A matrix and where its sums go; `sums` was allocated for matrices of these shapes."""

    weight: LowBitWeight
    sums: PartialSums


def multiply(x: Columns, tokens: int, products: Sequence[Product]) -> None:
    """Sum over slots of part[slot, t, n] = sum_k x[t, k] * w[n, k] for one or two matrices in one launch.

    x         columns of T tokens, bf16; w[n, k] = scale[n, k // group] * code[n, k]
    products  one, or two with groups of the same width and the same K
    effects   writes the sums; fp32, order fixed by shape and programs: exact products of codes within a group of one
              row, times the group's scale, groups in ascending order within a run, runs in slots
    """
    assert 1 <= tokens <= x.capacity
    for product in products:
        assert product.weight.columns == x.columns
        assert product.sums.storage.shape[1] * 8 >= tokens
    if x.storage.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.multiply(x, tokens, [(product.weight, product.sums) for product in products])
        return
    for product in products:
        torch_dequantised.multiply(x, tokens, product.weight, product.sums)


def finish_rows(sums: PartialSums, tokens: int, norm: Norm | None, out: Tensor) -> None:
    """out[t, n] = norm[t] * sum over slots

    out      [T, N] bf16 or fp32, contiguous, rounded once from fp32
    norm     of the columns that were multiplied, or None
    effects  writes out
    """
    assert out.shape == (tokens, sums.rows)
    if out.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.finish_rows(sums, tokens, norm, out)
    else:
        torch_dequantised.finish_rows(sums, tokens, norm, out)


def finish_silu_mul(sums: PartialSums, tokens: int, norm: Norm | None, out: Columns) -> None:
    """out[t, i] = silu(g) * u, with y[t] = norm[t] * sum over slots, g = y[t, i], u = y[t, I + i] (model spec 6.6)

    sums     of a matrix of 2 I rows, gate above up; I a multiple of 16
    out      columns of I values, rounded once from fp32
    effects  writes the first T tokens of out
    """
    assert sums.rows == 2 * out.columns
    assert out.columns % 16 == 0
    if out.storage.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.finish_silu_mul(sums, tokens, norm, out)
    else:
        torch_dequantised.finish_silu_mul(sums, tokens, norm, out)


def finish_residual(sums: PartialSums | None, residual: Tensor, weight: Tensor, out: Columns) -> None:
    """residual[t] += sum over slots; out = residual * (1 + weight), with the norm's division left in out.norm

    sums      of a product with N rows; None for the first norm of a round, which adds nothing
    residual  [T, N] bf16 or fp32, contiguous, rounded once
    weight    [N]    bf16 or fp32, zero-centred
    out       columns of N values with a norm; the norm is that of the rounded residual
    effects   writes residual, the first T tokens of out, their sums of squares
    """
    assert out.norm is not None
    assert residual.shape[1] == out.columns == weight.shape[0]
    assert sums is None or sums.rows == out.columns
    if residual.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.finish_residual(sums, residual, weight, out, out.norm)
    else:
        torch_dequantised.finish_residual(sums, residual, weight, out, out.norm)


def finish_head(
    sums: PartialSums, tokens: int, norm: Norm | None, legal: int, keep: int, logits: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The `keep` largest logits of each token among rows [0, legal), largest first, lowest row first among equals.

    keep     1, or up to 32; legal >= keep
    logits   [T, N] fp32, contiguous, or None: also write all of them
    returns  values [T, keep] fp32, rows [T, keep] int32
    effects  writes logits
    """
    assert 1 <= keep <= MAX_CANDIDATES
    assert keep <= legal <= sums.rows
    assert logits is None or logits.shape == (tokens, sums.rows)
    if sums.storage.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        return triton_launch.finish_head(sums, tokens, norm, legal, keep, logits)
    return torch_dequantised.finish_head(sums, tokens, norm, legal, keep, logits)


def dequantise(weight: LowBitWeight, out: Tensor) -> None:
    """out[n, k] = scale[n, k // group] * code[n, k]

    weight   K a multiple of 8; of a paired one the rows of the upper half come first, then those of the lower half
    out      [N, K] bf16, contiguous, rounded once from the exact product
    effects  writes out
    """
    assert out.shape == (weight.rows, weight.columns)
    assert out.is_contiguous()
    assert weight.columns % 8 == 0
    if out.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.dequantise(weight, out)
    else:
        torch_dequantised.dequantise(weight, out)
