"""The plain-torch route against the float64 oracle, and its promise that a token does not see its neighbours."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.low_bit_linear import op, ref
from ninfer.kernels.low_bit_linear.buffers import (
    add_slots,
    columns_buffer,
    from_columns,
    to_columns,
    width_for,
    write_sums,
)
from tests.kernels.data import normal
from tests.kernels.low_bit_linear.cases import EPS, columns, product_rows, products
from tests.kernels.low_bit_linear.data import BITS, matrix
from tests.support.tolerance import BF16_ROUNDED, FP32_REDUCTION, assert_within


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("tokens", "rows", "inner"), [(1, 64, 768), (3, 33, 200), (11, 48, 512), (32, 16, 256)], ids=str
)
def test_products_match_the_oracle(bits: int, tokens: int, rows: int, inner: int) -> None:
    stored = matrix(rows, inner, bits)
    x, buffer = columns(tokens, inner, tokens)
    (product,) = products([stored], tokens, programs=5)
    op.multiply(buffer, tokens, [product])
    assert_within(FP32_REDUCTION, product_rows(product.sums, tokens), ref.product_ref(x, stored.wide))


def test_a_token_does_not_see_its_neighbours() -> None:
    stored = matrix(64, 512, 5)
    x, _ = columns(32, 512, 32)
    results = []
    for tokens in (1, 2, 7, 8, 9, 16, 31, 32):
        buffer = columns_buffer(512, tokens, "cpu")
        to_columns(x[:tokens], buffer)
        (product,) = products([stored], tokens, programs=5)
        op.multiply(buffer, tokens, [product])
        results.append(product_rows(product.sums, tokens))
    for result in results:
        assert torch.equal(result, results[-1][: result.shape[0]])


def test_two_matrices_of_one_launch() -> None:
    matrices = [matrix(64, 512, 4), matrix(96, 512, 5, seed=1)]
    x, buffer = columns(5, 512, 8)
    both = products(matrices, 5, programs=9)
    assert [product.sums.schedule.programs for product in both] == [4, 5]
    op.multiply(buffer, 5, both)
    for product, stored in zip(both, matrices, strict=True):
        assert_within(FP32_REDUCTION, product_rows(product.sums, 5), ref.product_ref(x, stored.wide))


def test_the_norm_behind_the_product_is_the_norm_before_it() -> None:
    stored = matrix(48, 300, 6)
    residual, weight = normal(5, 300, seed=3, dtype=torch.bfloat16), 0.1 * normal(300, seed=4)
    buffer = columns_buffer(300, 8, "cpu", EPS)
    before = residual.clone()
    op.finish_residual(None, residual, weight, buffer)
    assert torch.equal(residual, before)
    (product,) = products([stored], 5, programs=3)
    op.multiply(buffer, 5, [product])
    out = torch.empty(5, 48)
    op.finish_rows(product.sums, 5, buffer.norm, out)
    scaled = from_columns(buffer, 5).double() * ref.norm_factor_ref(residual, EPS)
    assert_within(BF16_ROUNDED, from_columns(buffer, 5), residual.double() * (1 + weight.double()))
    assert_within(FP32_REDUCTION, out, ref.product_ref(scaled, stored.wide))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_residual_takes_the_product(dtype: torch.dtype) -> None:
    stored = matrix(300, 256, 5)
    x, buffer = columns(3, 256, 8)
    residual, weight = normal(3, 300, seed=3, dtype=dtype), 0.1 * normal(300, seed=4, dtype=torch.bfloat16)
    expected = residual.double() + ref.product_ref(x, stored.wide)
    (product,) = products([stored], 3, programs=4)
    op.multiply(buffer, 3, [product])
    out = columns_buffer(300, 8, "cpu", EPS)
    op.finish_residual(product.sums, residual, weight, out)
    assert_within(BF16_ROUNDED if dtype == torch.bfloat16 else FP32_REDUCTION, residual, expected)
    assert_within(BF16_ROUNDED, from_columns(out, 3), residual.double() * (1 + weight.double()))
    assert out.norm is not None
    assert_within(FP32_REDUCTION, out.norm.squares[:3].sum(-1), residual.double().square().sum(-1))


def test_the_gate_of_the_feed_forward() -> None:
    stored = matrix(192, 256, 4)
    x, buffer = columns(3, 256, 8)
    (product,) = products([stored], 3, programs=4)
    op.multiply(buffer, 3, [product])
    out = columns_buffer(96, 8, "cpu")
    op.finish_silu_mul(product.sums, 3, None, out)
    assert_within(BF16_ROUNDED, from_columns(out, 3), ref.silu_mul_ref(ref.product_ref(x, stored.wide)))
    assert not out.storage[:, 3:].any()


@pytest.mark.parametrize("keep", [1, 20])
def test_candidates_come_in_order_and_the_lowest_of_equals_first(keep: int) -> None:
    stored = matrix(128, 256, 8)
    _, buffer = columns(3, 256, 8)
    (product,) = products([stored], 3, programs=4)
    op.multiply(buffer, 3, [product])
    sums = product_rows(product.sums, 3).round()  # many ties
    write_sums(sums, product.sums)
    product.sums.storage[1:] = 0
    logits = torch.empty(3, 128)
    values, rows = op.finish_head(product.sums, 3, None, 100, keep, logits)
    assert torch.equal(logits, sums)
    expected = ref.candidates_ref(sums, 100, keep)
    assert torch.equal(values, expected[0])
    assert torch.equal(rows.long(), expected[1])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("paired", [False, True])
def test_a_whole_matrix_is_rounded_once(bits: int, paired: bool) -> None:
    stored = matrix(48 if paired else 43, 328, bits)
    out = torch.empty(*stored.codes.shape, dtype=torch.bfloat16)
    op.dequantise(stored.paired if paired else stored.packed, out)
    assert torch.equal(out, stored.wide.float().bfloat16())  # exact in fp32


def test_sums_and_columns_keep_what_is_written() -> None:
    (product,) = products([matrix(50, 256, 4)], 11, programs=3)
    rows = normal(11, 50)
    write_sums(rows, product.sums)
    assert torch.equal(add_slots(product.sums, 11), rows)
    x, buffer = columns(11, 300, 16)
    assert torch.equal(from_columns(buffer, 11), x)
    assert not buffer.storage[0, 300 // 32 + 1 :, :11].any()
    many, wide = columns(37, 300, 40)
    assert torch.equal(from_columns(wide, 37), many)
    assert wide.storage.shape == (3, 16, 16, 32)
    assert [width_for(tokens) for tokens in (1, 2, 8, 9, 16, 17, 32)] == [1, 8, 8, 16, 16, 16, 16]
