"""The plain-torch route against the float64 oracle, and its promise that a token does not see its neighbours."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.low_bit_linear import op, ref, torch_dequantised
from ninfer.kernels.low_bit_linear.buffers import (
    add_slots,
    columns_buffer,
    from_columns,
    norm_factors,
    squares_of,
    to_columns,
    width_for,
    write_sums,
)
from tests.kernels.data import normal
from tests.kernels.low_bit_linear.cases import EPS, cleared_norm, columns, paired_product, products, set_norm, summed
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
    assert_within(FP32_REDUCTION, summed(product.sums, tokens), ref.product_ref(x, stored.wide))


def test_a_token_does_not_see_its_neighbours() -> None:
    stored = matrix(64, 512, 5)
    x, _ = columns(32, 512, 32)
    results = []
    for tokens in (1, 2, 7, 8, 9, 16, 31, 32):
        buffer = columns_buffer(512, tokens, "cpu")
        to_columns(x[:tokens], buffer)
        (product,) = products([stored], tokens, programs=5)
        op.multiply(buffer, tokens, [product])
        results.append(summed(product.sums, tokens))
    for result in results:
        assert torch.equal(result, results[-1][: result.shape[0]])


def test_two_matrices_of_one_launch() -> None:
    matrices = [matrix(64, 512, 4), matrix(96, 512, 5, seed=1)]
    x, buffer = columns(5, 512, 8)
    both = products(matrices, 5, programs=9)
    assert [product.sums.schedule.programs for product in both] == [4, 5]
    op.multiply(buffer, 5, both)
    for product, stored in zip(both, matrices, strict=True):
        assert_within(FP32_REDUCTION, summed(product.sums, 5), ref.product_ref(x, stored.wide))


def test_the_norm_behind_the_product_is_the_norm_before_it() -> None:
    stored = matrix(48, 300, 6)
    residual, weight = normal(5, 300, seed=3, dtype=torch.bfloat16), 0.1 * normal(300, seed=4)
    buffer, other = columns_buffer(300, 8, "cpu", EPS), cleared_norm(8)
    before = residual.clone()
    op.first_norm(residual, weight, buffer, other)
    assert torch.equal(residual, before)
    assert not other.squares.any()
    out = torch.empty(5, 48)
    op.product_rows(buffer, 5, products([stored], 5, programs=3), [out])
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
    out, other = columns_buffer(300, 8, "cpu", EPS), cleared_norm(8)
    op.product_residual(buffer, 3, product, residual, weight, out, other)
    assert_within(BF16_ROUNDED if dtype == torch.bfloat16 else FP32_REDUCTION, residual, expected)
    assert_within(BF16_ROUNDED, from_columns(out, 3), residual.double() * (1 + weight.double()))
    assert out.norm is not None
    assert_within(FP32_REDUCTION, norm_factors(out.norm, 3), ref.norm_factor_ref(residual, EPS))
    assert not other.squares.any()


def test_a_norm_that_was_not_cleared_is_a_wrong_norm() -> None:
    """Both routes add: what forgets to clear fails on a host too."""
    _, buffer = columns(1, 256, 1)
    (product,) = products([matrix(32, 256, 5)], 1, programs=4)
    residual, weight = normal(1, 32), torch.zeros(32)
    out, other = columns_buffer(32, 1, "cpu", EPS), cleared_norm(1)
    assert out.norm is not None
    op.product_residual(buffer, 1, product, residual.clone(), weight, out, other)
    once = out.norm.squares.clone()
    op.product_residual(buffer, 1, product, residual.clone(), weight, out, other)
    assert torch.equal(out.norm.squares, 2 * once)


def test_the_gate_of_the_feed_forward() -> None:
    stored = matrix(192, 256, 4)
    x, buffer = columns(3, 256, 8)
    out = columns_buffer(96, 8, "cpu")
    op.product_silu_mul(buffer, 3, paired_product(stored, 3, programs=4), out)
    assert_within(BF16_ROUNDED, from_columns(out, 3), ref.silu_mul_ref(ref.product_ref(x, stored.wide)))
    assert not out.storage[:, 3:].any()


@pytest.mark.parametrize("tokens", [1, 5, 17])
def test_two_launches_give_the_bits_of_one(tokens: int) -> None:
    _, x = columns(tokens, 256, tokens, eps=EPS)
    _, plain = columns(tokens, 256, tokens)
    norm = set_norm(x, tokens)
    (product,) = products([matrix(96, 256, 4)], tokens, programs=5)
    op.multiply(x, tokens, [product])
    one, two = torch.empty(tokens, 96, dtype=torch.bfloat16), torch.empty(tokens, 96, dtype=torch.bfloat16)
    op.product_rows(x, tokens, [product], [one])
    op.finish_rows(product.sums, tokens, norm, two)
    assert torch.equal(one, two)
    gate = paired_product(matrix(96, 256, 4), tokens, programs=5)
    op.multiply(x, tokens, [gate])
    ones, twos = columns_buffer(48, tokens, "cpu"), columns_buffer(48, tokens, "cpu")
    op.product_silu_mul(x, tokens, gate, ones)
    op.finish_silu_mul(gate.sums, tokens, norm, twos)
    assert torch.equal(ones.storage, twos.storage)
    op.multiply(plain, tokens, [product])
    weight, other = normal(96, seed=4), cleared_norm(tokens)
    ones, twos = columns_buffer(96, tokens, "cpu", EPS), columns_buffer(96, tokens, "cpu", EPS)
    residual_one, residual_two = normal(tokens, 96, seed=3), normal(tokens, 96, seed=3)
    op.product_residual(plain, tokens, product, residual_one, weight, ones, other)
    op.finish_residual(product.sums, residual_two, weight, twos, other)
    assert torch.equal(residual_one, residual_two)
    assert torch.equal(ones.storage, twos.storage)
    assert ones.norm is not None
    assert twos.norm is not None
    assert torch.equal(ones.norm.squares, twos.norm.squares)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_squares_are_as_good_as_fp32(scale: float) -> None:
    value = scale * normal(4, 5120, seed=5)
    x = columns_buffer(5120, 4, "cpu", 0.0)
    assert x.norm is not None
    x.norm.squares[:, :4] = squares_of(value)
    assert_within(FP32_REDUCTION, norm_factors(x.norm, 4), ref.norm_factor_ref(value, 0.0))


@pytest.mark.parametrize("keep", [1, 20])
def test_candidates_come_in_order_and_the_lowest_of_equals_first(keep: int) -> None:
    logits = (2 * normal(3, 128)).round()  # many ties
    values, rows = op.candidates(logits, 100, keep)
    expected = ref.candidates_ref(logits, 100, keep)
    assert torch.equal(values, expected[0])
    assert torch.equal(rows.long(), expected[1])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("paired", [False, True])
def test_a_chunk_matches_the_oracle_whatever_its_length(
    bits: int, paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_dequantised, "_BLOCK_ELEMENTS", 2 * 16 * 320)  # two row tiles at a time
    stored = matrix(48 if paired else 40, 320, bits)
    weight = stored.paired if paired else stored.packed
    x = normal(7, 320, seed=2, dtype=torch.bfloat16)
    buffer = torch.empty(7, weight.rows + 24, dtype=torch.bfloat16)
    whole = buffer[:, 16 : 16 + weight.rows]
    op.product_chunk(x, weight, whole)
    assert_within(BF16_ROUNDED, whole, ref.product_ref(x, stored.wide.float().bfloat16()))
    assert int(buffer.isnan().sum()) == 7 * 24
    for tokens in (1, 2, 5):
        few = torch.empty(tokens, weight.rows, dtype=torch.bfloat16)
        op.product_chunk(x[:tokens].contiguous(), weight, few)
        assert torch.equal(few, whole[:tokens])


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
