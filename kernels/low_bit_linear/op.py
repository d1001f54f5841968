"""Low-bit products for few columns that do, in the same launch, what the model does next with their sums.

A decode layer is four of them and the mixer:

    product_rows(x, (query_key, gate_value))          mixer, reads rows and x.norm, writes columns
    product_residual(mixed, output) -> y, y.norm      residual += ..., norm of the feed-forward
    product_silu_mul(y, gate_up) -> inner
    product_residual(inner, down) -> x, x.norm        residual += ..., norm of the next layer

A norm multiplies a whole column by one number, so the number may be applied behind the product: `product_residual`
writes residual * (1 + weight) and sums of squares, and who multiplies such columns divides by their root mean square.
No program then has to see a whole column before others may begin. bf16 rounds relatively: nothing is lost by the order.
Sums of squares are added to, so each `product_residual` clears those that the next one adds to: x.norm and y.norm in
turn, beginning with `first_norm`, which sets one and clears the other.

For all ops: the bits of a token depend on its own column, the weights and the number of programs, never on the number
of tokens, their order or the width. What a launch reads it must not write: `out` is another buffer than `x`.

`multiply` with `finish_rows`, `finish_silu_mul` or `finish_residual` gives the same bits in two launches. They are what
tests and the benchmark compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ninfer.kernels.low_bit_linear import torch_dequantised
from ninfer.kernels.low_bit_linear.buffers import Columns, Norm, PartialSums
from ninfer.kernels.low_bit_linear.pack import LowBitWeight

MAX_CANDIDATES = 32
_MAX_CLEARED = 64  # columns whose sums of squares one program clears


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A matrix and where its sums go; `sums` was allocated for matrices of these shapes."""

    weight: LowBitWeight
    sums: PartialSums


def product_rows(x: Columns, tokens: int, products: Sequence[Product], outs: Sequence[Tensor]) -> None:
    """out[t, n] = norm[t] * sum_k x[t, k] * w[n, k] for one or two matrices in one launch

    x         columns of T tokens, bf16, with or without a norm; w[n, k] = scale[n, k // group] * code[n, k]
    products  one, or two with groups of the same width and the same K; not paired
    outs      for each matrix [T, N] bf16 or fp32, contiguous, rounded once from fp32; both of one dtype
    effects   writes outs, and the sums
    sums      fp32, order fixed by shape and programs: exact products of codes within a group of one row, times the
              group's scale, groups in ascending order within a run, runs in order
    """
    _check(x, tokens, products)
    for product, out in zip(products, outs, strict=True):
        assert not product.weight.paired
        assert out.shape == (tokens, product.weight.rows)
        assert out.is_contiguous()
    if x.storage.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.product_rows(x, tokens, [(product.weight, product.sums) for product in products], outs)
        return
    for product, out in zip(products, outs, strict=True):
        torch_dequantised.rows(torch_dequantised.product(x, tokens, product.weight), x.norm, out)


def product_silu_mul(x: Columns, tokens: int, product: Product, out: Columns) -> None:
    """out[t, i] = silu(gate) * up, gate and up being norm[t] * sum_k x[t, k] * w[n, k] of rows n = i of the upper and
    of the lower half (model spec 6.6)

    x        as of `product_rows`
    product  a paired matrix, gate above up; sums as of `product_rows`
    out      columns of N / 2 values, as wide as x but not x, rounded once from fp32
    effects  writes the first T tokens of out, and the sums
    """
    _check(x, tokens, [product])
    assert product.weight.paired
    assert product.weight.rows == 2 * out.columns
    _check_out(x, tokens, out)
    if x.storage.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.product_silu_mul(x, tokens, product.weight, product.sums, out)
    else:
        torch_dequantised.silu_mul(torch_dequantised.product(x, tokens, product.weight), x.norm, out)


def product_residual(
    x: Columns, tokens: int, product: Product, residual: Tensor, weight: Tensor, out: Columns, cleared: Norm
) -> None:
    """residual[t] += sum_k x[t, k] * w[n, k]; out = residual * (1 + weight), with the norm's division left in out.norm

    x         columns of T tokens without a norm
    product   a matrix with N rows, not paired; sums as of `product_rows`
    residual  [T, N] bf16 or fp32, contiguous, rounded once
    weight    [N]    bf16 or fp32, zero-centred
    out       columns of N values, as wide as x but not x, with a norm whose sums of squares are zero; it becomes that
              of the rounded residual
    cleared   the norm that the next product of this kind adds to; nobody after this launch reads it before
    effects   writes residual, the first T tokens of out and their sums of squares; clears `cleared`; writes the sums
    """
    _check(x, tokens, [product])
    assert x.norm is None
    assert not product.weight.paired
    assert residual.shape == (tokens, product.weight.rows)
    assert product.weight.rows == out.columns == weight.shape[0]
    _check_out(x, tokens, out)
    norm = _check_norms(out, cleared)
    if x.storage.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.product_residual(x, tokens, product.weight, product.sums, residual, weight, out, norm, cleared)
    else:
        total = torch_dequantised.product(x, tokens, product.weight)
        torch_dequantised.residual(total, residual, weight, out, norm, cleared)


def first_norm(residual: Tensor, weight: Tensor, out: Columns, cleared: Norm) -> None:
    """out = residual * (1 + weight), with the norm's division left in out.norm: the beginning of a round

    residual  [T, N] bf16 or fp32, contiguous
    weight    [N]    bf16 or fp32, zero-centred
    out       columns of N values with a norm, which may hold anything
    cleared   the norm that the first `product_residual` of the round adds to
    effects   writes the first T tokens of out and their sums of squares; clears `cleared`
    """
    tokens, rows = residual.shape
    assert rows == out.columns == weight.shape[0]
    assert tokens <= out.capacity
    norm = _check_norms(out, cleared)
    if residual.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.first_norm(residual, weight, out, norm, cleared)
    else:
        torch_dequantised.first_norm(residual, weight, out, norm, cleared)


def candidates(logits: Tensor, legal: int, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` largest logits of each token among rows [0, legal), largest first, lowest row first among equals.

    logits   [T, N] fp32, contiguous
    keep     1, or up to 32; legal >= keep
    returns  values [T, keep] fp32, rows [T, keep] int32
    """
    assert 1 <= keep <= MAX_CANDIDATES
    assert keep <= legal <= logits.shape[1]
    if logits.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        return triton_launch.candidates(logits, legal, keep)
    return torch_dequantised.candidates(logits, legal, keep)


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


def product_chunk(x: Tensor, weight: LowBitWeight, out: Tensor) -> None:
    """out[t, n] = sum_k x[t, k] * w[n, k], w rounded once to bf16 as `dequantise` writes it; for the tokens of a chunk

    x        [T, K] bf16, contiguous, K a multiple of 64
    weight   N a multiple of 8; of a paired one the rows of the upper half come first, then those of the lower half
    out      [T, N] bf16, rows contiguous and a multiple of 8 elements apart, beginning at a multiple of 16 bytes: it
             may be some columns of a wider buffer. Rounded once from one fp32 sum in ascending order of K
    bits     of a token depend on its own row of x and on the weights, not on T nor on the other rows
    effects  writes out
    """
    tokens, rows = out.shape
    assert x.shape == (tokens, weight.columns)
    assert rows == weight.rows
    assert x.is_contiguous()
    assert weight.columns % 64 == rows % 8 == out.stride(0) % 8 == out.data_ptr() % 16 == 0
    assert out.stride(1) == 1
    if x.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_chunk_launch

        triton_chunk_launch.product_chunk(x, weight, out)
    else:
        torch_dequantised.product_chunk(x, weight, out)


def multiply(x: Columns, tokens: int, products: Sequence[Product]) -> None:
    """Sum over slots of part[slot, t, n] = sum_k x[t, k] * w[n, k] for one or two matrices in one launch; rows of a
    paired matrix in the order of its tiles.

    effects  writes the sums, as `product_rows` does
    """
    _check(x, tokens, products)
    if x.storage.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.multiply(x, tokens, [(product.weight, product.sums) for product in products])
        return
    for product in products:
        torch_dequantised.multiply(x, tokens, product.weight, product.sums)


def finish_rows(sums: PartialSums, tokens: int, norm: Norm | None, out: Tensor) -> None:
    """The end of `product_rows`: out[t, n] = norm[t] * sum over slots, rows as the sums have them."""
    assert out.shape == (tokens, sums.rows)
    if out.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.finish_rows(sums, tokens, norm, out)
    else:
        torch_dequantised.finish_rows(sums, tokens, norm, out)


def finish_silu_mul(sums: PartialSums, tokens: int, norm: Norm | None, out: Columns) -> None:
    """The end of `product_silu_mul`, from the sums of a paired matrix."""
    assert sums.rows == 2 * out.columns
    if out.storage.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.finish_silu_mul(sums, tokens, norm, out)
    else:
        torch_dequantised.finish_silu_mul(sums, tokens, norm, out)


def finish_residual(sums: PartialSums, residual: Tensor, weight: Tensor, out: Columns, cleared: Norm) -> None:
    """The end of `product_residual`."""
    assert residual.shape[1] == out.columns == weight.shape[0] == sums.rows
    norm = _check_norms(out, cleared)
    if residual.is_cuda:
        from ninfer.kernels.low_bit_linear import triton_launch

        triton_launch.finish_residual(sums, residual, weight, out, norm, cleared)
    else:
        torch_dequantised.finish_residual(sums, residual, weight, out, norm, cleared)


def _check(x: Columns, tokens: int, products: Sequence[Product]) -> None:
    assert 1 <= tokens <= x.capacity
    assert 1 <= len(products) <= 2
    for product in products:
        assert product.weight.columns == x.columns
        assert product.sums.rows == product.weight.rows
        assert product.sums.storage.shape[0] * 8 >= tokens


def _check_out(x: Columns, tokens: int, out: Columns) -> None:
    assert tokens <= out.capacity
    assert out.width == x.width
    assert out.storage.data_ptr() != x.storage.data_ptr()


def _check_norms(out: Columns, cleared: Norm) -> Norm:
    assert out.norm is not None
    assert out.norm.squares.data_ptr() != cleared.squares.data_ptr()
    assert cleared.squares.shape[1] <= _MAX_CLEARED
    return out.norm
