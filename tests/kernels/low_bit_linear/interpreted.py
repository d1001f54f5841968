"""The Triton route on a CPU: run by `test_interpreted.py` in a process with TRITON_INTERPRET=1.

Proves packing, assembly, operand permutations, schedule, slots and finishing; layouts, registers and speed are the
compile matrix's and the benchmark's business.
"""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from ninfer.kernels.low_bit_linear import op, ref, triton_fragments, triton_launch, variants
from ninfer.kernels.low_bit_linear.buffers import (
    Norm,
    PartialSums,
    add_slots,
    columns_buffer,
    from_columns,
    to_columns,
    write_sums,
)
from ninfer.kernels.read_sweep import triton_sweep
from ninfer.kernels.read_sweep.op import read_sweep
from tests.kernels.data import normal
from tests.kernels.low_bit_linear.cases import EPS, columns, product_rows, products
from tests.kernels.low_bit_linear.data import matrix
from tests.support import ptx
from tests.support.tolerance import BF16_ROUNDED, FP32_REDUCTION, assert_within

ptx.install()

# The columns of tokens that do not exist are computed too and never stored.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


@pytest.mark.parametrize(
    ("bits", "rows", "inner", "programs", "tokens"),
    [(4, 64, 768, 5, 1), (5, 60, 500, 3, 3), (6, 32, 1024, 7, 8), (8, 40, 384, 4, 2), (5, 48, 512, 4, 11),
     (8, 32, 256, 3, 16), (4, 32, 512, 3, 32)],
    ids=str,
)  # fmt: skip
def test_products_match_the_oracle(bits: int, rows: int, inner: int, programs: int, tokens: int) -> None:
    stored = matrix(rows, inner, bits)
    x, buffer = columns(tokens, inner, tokens)
    (product,) = products([stored], tokens, programs)
    triton_launch.multiply(buffer, tokens, [(product.weight, product.sums)])
    assert_within(FP32_REDUCTION, product_rows(product.sums, tokens), ref.product_ref(x, stored.wide))
    assert product.sums.slots > 1
    # Another launch writes the same places with the same bits, so sums need no clearing between launches.
    once = add_slots(product.sums, tokens)
    triton_launch.multiply(buffer, tokens, [(product.weight, product.sums)])
    assert torch.equal(add_slots(product.sums, tokens), once)


@pytest.mark.parametrize("k_width", [2, 4])
@pytest.mark.parametrize("bits", [5, 8])
def test_both_numberings_of_the_releases_of_triton(bits: int, k_width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_fragments, "K_WIDTH", tl.constexpr(k_width))
    stored = matrix(16, 512, bits)
    x, buffer = columns(8, 512, 8)
    (product,) = products([stored], 8, programs=2)
    triton_launch.multiply(buffer, 8, [(product.weight, product.sums)])
    assert_within(FP32_REDUCTION, product_rows(product.sums, 8), ref.product_ref(x, stored.wide))


def test_a_token_does_not_see_its_neighbours() -> None:
    stored = matrix(32, 512, 5)
    x, _ = columns(32, 512, 32)
    results = []
    for tokens in (1, 2, 8, 9, 32):
        buffer = columns_buffer(512, tokens, "cpu")
        buffer.storage.fill_(float("nan"))
        to_columns(x[:tokens], buffer)
        (product,) = products([stored], tokens, programs=3)
        triton_launch.multiply(buffer, tokens, [(product.weight, product.sums)])
        results.append(product_rows(product.sums, tokens))
    for result in results:
        assert torch.equal(result, results[-1][: result.shape[0]])


def test_sums_for_many_tokens_serve_few() -> None:
    stored = matrix(48, 512, 5)
    _, buffer = columns(2, 512, 8)
    (wide,) = products([stored], 32, programs=4)
    (narrow,) = products([stored], 2, programs=4)
    for product in (wide, narrow):
        triton_launch.multiply(buffer, 2, [(product.weight, product.sums)])
    assert torch.equal(product_rows(wide.sums, 2), product_rows(narrow.sums, 2))


def test_two_matrices_of_one_launch_equal_two_launches() -> None:
    matrices = [matrix(64, 512, 4), matrix(96, 512, 5, seed=1)]
    x, buffer = columns(5, 512, 8)
    both = products(matrices, 5, programs=9)
    triton_launch.multiply(buffer, 5, [(product.weight, product.sums) for product in both])
    for product, stored in zip(both, matrices, strict=True):
        assert_within(FP32_REDUCTION, product_rows(product.sums, 5), ref.product_ref(x, stored.wide))
        (alone,) = products([stored], 5, product.sums.schedule.programs)
        triton_launch.multiply(buffer, 5, [(alone.weight, alone.sums)])
        assert torch.equal(add_slots(alone.sums, 5), add_slots(product.sums, 5))


def _sums(rows: int, tokens: int) -> PartialSums:
    """Sums with three slots, some of them unused."""
    (product,) = products([matrix(rows, 768, 4)], tokens, programs=-(-rows // 16) * 3 // 2)
    write_sums(normal(tokens, rows, seed=6), product.sums)
    product.sums.storage[1:] = normal(*product.sums.storage[1:].shape, seed=7)
    return product.sums


def _norm(tokens: int, dimension: int) -> Norm:
    squares = torch.zeros(max(8, columns_buffer(32, tokens, "cpu").capacity), -(-dimension // 128))
    squares[:tokens] = normal(tokens, squares.shape[1], seed=8).abs() * 128
    return Norm(squares, dimension, EPS)


@pytest.mark.parametrize(("rows", "tokens", "dtype"), [
    (300, 1, torch.bfloat16), (128, 8, torch.float32), (40, 11, torch.float32),
])  # fmt: skip
@pytest.mark.parametrize("normed", [False, True])
def test_rows_are_finished_as_by_the_plain_route(rows: int, tokens: int, dtype: torch.dtype, normed: bool) -> None:
    sums = _sums(rows, tokens)
    norm = _norm(tokens, 700) if normed else None
    plain, out = torch.empty(tokens, rows, dtype=dtype), torch.empty(tokens, rows, dtype=dtype)
    op.finish_rows(sums, tokens, norm, plain)
    triton_launch.finish_rows(sums, tokens, norm, out)
    if normed:
        assert_within(BF16_ROUNDED if dtype == torch.bfloat16 else FP32_REDUCTION, out, plain.double())
    else:
        assert torch.equal(out, plain)


@pytest.mark.parametrize(("inner", "tokens"), [(96, 1), (400, 5), (144, 17)])
def test_the_gate_is_finished_as_by_the_plain_route(inner: int, tokens: int) -> None:
    sums, norm = _sums(2 * inner, tokens), _norm(tokens, 700)
    plain, out = columns_buffer(inner, tokens, "cpu"), columns_buffer(inner, tokens, "cpu")
    op.finish_silu_mul(sums, tokens, norm, plain)
    triton_launch.finish_silu_mul(sums, tokens, norm, out)
    assert_within(BF16_ROUNDED, from_columns(out, tokens), from_columns(plain, tokens).double())
    # Rows beyond `inner` stay zero.
    assert not out.storage[:, -(-inner // 32) :].any()
    assert not from_columns(out, out.capacity)[tokens:].any()


@pytest.mark.parametrize(("rows", "tokens", "dtype"), [
    (300, 1, torch.bfloat16), (256, 8, torch.float32), (400, 11, torch.bfloat16),
])  # fmt: skip
@pytest.mark.parametrize("first", [False, True])
def test_the_residual_is_finished_as_by_the_plain_route(
    rows: int, tokens: int, dtype: torch.dtype, first: bool
) -> None:
    sums = None if first else _sums(rows, tokens)
    weight = 0.1 * normal(rows, seed=9)
    plain, out = columns_buffer(rows, tokens, "cpu", EPS), columns_buffer(rows, tokens, "cpu", EPS)
    expected, residual = (normal(tokens, rows, seed=10, dtype=dtype) for _ in range(2))
    op.finish_residual(sums, expected, weight, plain)
    assert plain.norm is not None
    assert out.norm is not None
    triton_launch.finish_residual(sums, residual, weight, out, out.norm)
    assert torch.equal(residual, expected)
    assert torch.equal(out.storage, plain.storage)
    assert_within(FP32_REDUCTION, out.norm.squares, plain.norm.squares.double())


@pytest.mark.parametrize(("rows", "legal", "tokens", "keep"), [(100, 90, 3, 20), (1000, 999, 1, 1), (200, 200, 9, 1)])
def test_candidates_are_those_of_the_plain_route(
    rows: int, legal: int, tokens: int, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks, so that they are merged in two passes; many ties, zeros of both signs."""
    monkeypatch.setattr(variants, "HEAD_TILES", 2)
    monkeypatch.setattr(variants, "MERGE_KEYS", 64)
    (product,) = products([matrix(rows, 256, 6)], tokens, programs=3)
    write_sums((2 * normal(tokens, rows, seed=11)).round(), product.sums)
    logits = torch.empty(tokens, rows)
    values, ids = triton_launch.finish_head(product.sums, tokens, None, legal, keep, logits)
    expected = op.finish_head(product.sums, tokens, None, legal, keep)
    assert torch.equal(logits, product_rows(product.sums, tokens))
    assert torch.equal(values, expected[0])
    assert torch.equal(ids, expected[1])


@pytest.mark.parametrize(("bits", "rows", "inner", "paired"), [
    (4, 43, 520, False), (5, 32, 1288, True), (6, 16, 256, False), (8, 48, 200, True),
])  # fmt: skip
def test_a_whole_matrix_is_that_of_the_plain_route(bits: int, rows: int, inner: int, paired: bool) -> None:
    stored = matrix(rows, inner, bits)
    weight = stored.paired if paired else stored.packed
    plain, out = (torch.empty(rows, inner, dtype=torch.bfloat16) for _ in range(2))
    op.dequantise(weight, plain)
    triton_launch.dequantise(weight, out)
    assert torch.equal(out, plain)


def test_the_sweep_of_the_benchmark_is_that_of_the_plain_route() -> None:
    # Small values: the interpreter does not wrap sums.
    x = torch.randint(-(2**16), 2**16, (16 * 64,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    plain, out = torch.empty(3, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
    read_sweep(x, plain, 64, 4)
    triton_sweep.read_sweep(x, out, 64, 4)
    assert torch.equal(out, plain)
