"""The Triton route on a CPU: run by `test_interpreted.py` in a process with TRITON_INTERPRET=1.

Proves packing, assembly, operand permutations, schedule, slots and finishing; layouts, registers and speed are the
compile matrix's and the benchmark's business.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl
from torch import Tensor

from ninfer.kernels.low_bit_linear import op, ref, triton_fragments, triton_launch, variants
from ninfer.kernels.low_bit_linear.buffers import add_slots, columns_buffer, from_columns, norm_factors, to_columns
from ninfer.kernels.low_bit_linear.op import Product
from ninfer.kernels.read_sweep import triton_sweep
from ninfer.kernels.read_sweep.op import read_sweep
from tests.kernels.data import normal
from tests.kernels.low_bit_linear.cases import EPS, cleared_norm, columns, paired_product, products, set_norm, summed
from tests.kernels.low_bit_linear.data import matrix
from tests.support import ptx
from tests.support.tolerance import BF16_ROUNDED, FP32_REDUCTION, Tolerance, assert_within

ptx.install()

# The columns of tokens that do not exist are computed too and never stored.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


def some_slow(*cases: object) -> list[Any]:
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    ("bits", "rows", "inner", "programs", "tokens"),
    [(5, 28, 500, 3, 3), (6, 16, 1024, 3, 8), (8, 24, 256, 3, 2), (8, 32, 256, 3, 16),
     *some_slow((4, 64, 768, 5, 1), (6, 32, 1024, 7, 8), (5, 48, 512, 4, 11), (4, 32, 512, 3, 32))],
    ids=str,
)  # fmt: skip
def test_products_match_the_oracle(bits: int, rows: int, inner: int, programs: int, tokens: int) -> None:
    stored = matrix(rows, inner, bits)
    x, buffer = columns(tokens, inner, tokens)
    (product,) = products([stored], tokens, programs)
    triton_launch.multiply(buffer, tokens, [(product.weight, product.sums)])
    assert_within(FP32_REDUCTION, summed(product.sums, tokens), ref.product_ref(x, stored.wide))
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
    assert_within(FP32_REDUCTION, summed(product.sums, 8), ref.product_ref(x, stored.wide))


def test_a_token_does_not_see_its_neighbours() -> None:
    stored = matrix(16, 512, 5)
    x, _ = columns(20, 512, 20)
    results = []
    for tokens in (1, 2, 9, 20):
        buffer = columns_buffer(512, tokens, "cpu")
        buffer.storage.fill_(float("nan"))
        to_columns(x[:tokens], buffer)
        (product,) = products([stored], tokens, programs=3)
        triton_launch.multiply(buffer, tokens, [(product.weight, product.sums)])
        results.append(summed(product.sums, tokens))
    for result in results:
        assert torch.equal(result, results[-1][: result.shape[0]])


def test_sums_for_many_tokens_serve_few() -> None:
    stored = matrix(48, 512, 5)
    _, buffer = columns(2, 512, 8)
    (wide,) = products([stored], 32, programs=4)
    (narrow,) = products([stored], 2, programs=4)
    for product in (wide, narrow):
        triton_launch.multiply(buffer, 2, [(product.weight, product.sums)])
    assert torch.equal(summed(wide.sums, 2), summed(narrow.sums, 2))


@pytest.mark.slow
def test_two_matrices_of_one_launch_equal_two_launches() -> None:
    matrices = [matrix(32, 512, 4), matrix(48, 512, 5, seed=1)]
    x, buffer = columns(5, 512, 8)
    both = products(matrices, 5, programs=9)
    triton_launch.multiply(buffer, 5, [(product.weight, product.sums) for product in both])
    for product, stored in zip(both, matrices, strict=True):
        assert_within(FP32_REDUCTION, summed(product.sums, 5), ref.product_ref(x, stored.wide))
        (alone,) = products([stored], 5, product.sums.schedule.programs)
        triton_launch.multiply(buffer, 5, [(alone.weight, alone.sums)])
        assert torch.equal(add_slots(alone.sums, 5), add_slots(product.sums, 5))


def assert_clear(product: Product) -> None:
    """What the next launch has to find: counters of zero, and no word that looks like a sum."""
    assert not product.sums.counters.any()
    assert not product.sums.storage.view(torch.int32).any()


def _empty(tokens: int, product: Product, dtype: torch.dtype) -> Tensor:
    return torch.empty(tokens, product.weight.rows, dtype=dtype)


# Tiles of one program and of several, runs inside a tile and over many; tokens of one and of several groups.
SHAPES = [(4, 48, 512, 5, 1), (8, 16, 256, 2, 11), (5, 80, 256, 2, 3), (6, 16, 512, 2, 19), (8, 32, 512, 7, 11)]
DTYPES = [torch.bfloat16, torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]
CASES = list(zip(SHAPES, DTYPES, strict=True))


def _rounded_to(dtype: torch.dtype) -> Tolerance:
    return BF16_ROUNDED if dtype == torch.bfloat16 else FP32_REDUCTION


@pytest.mark.parametrize(("shape", "dtype"), [*CASES[:2], *some_slow(*CASES[2:])], ids=str)
def test_rows_in_one_launch_have_the_bits_of_two(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> None:
    bits, rows, inner, programs, tokens = shape
    x, buffer = columns(tokens, inner, tokens, eps=EPS)
    norm = set_norm(buffer, tokens)
    stored = matrix(rows, inner, bits)
    (one,), (two,) = (products([stored], tokens, programs) for _ in range(2))
    out, separate = _empty(tokens, one, dtype), _empty(tokens, two, dtype)
    triton_launch.product_rows(buffer, tokens, [(one.weight, one.sums)], [out])
    triton_launch.multiply(buffer, tokens, [(two.weight, two.sums)])
    triton_launch.finish_rows(two.sums, tokens, norm, separate)
    assert torch.equal(out, separate)
    assert_clear(one)
    expected = ref.product_ref(x, stored.wide) * norm_factors(norm, tokens).double()
    assert_within(_rounded_to(dtype), out, expected)


@pytest.mark.parametrize("normed", [True, *some_slow(False)])
def test_rows_of_two_matrices_in_one_launch_have_the_bits_of_two(normed: bool) -> None:
    matrices = [matrix(16, 512, 4), matrix(24, 512, 5, seed=1)]
    _, x = columns(5, 512, 8, eps=EPS if normed else None)
    norm = set_norm(x, 5) if normed else None
    both, apart = (products(matrices, 5, programs=5) for _ in range(2))
    outs, separate = ([_empty(5, product, torch.bfloat16) for product in both] for _ in range(2))
    triton_launch.product_rows(x, 5, [(product.weight, product.sums) for product in both], outs)
    triton_launch.multiply(x, 5, [(product.weight, product.sums) for product in apart])
    for fused, product, expected, out in zip(both, apart, separate, outs, strict=True):
        triton_launch.finish_rows(product.sums, 5, norm, expected)
        assert torch.equal(out, expected)
        assert_clear(fused)


def test_sums_of_zero_are_there() -> None:
    """Between launches a slot holds zero bits, so that a sum of zero has to look otherwise."""
    (product,) = products([matrix(32, 512, 4)], 2, programs=3)
    out = _empty(2, product, torch.float32)
    triton_launch.product_rows(columns_buffer(512, 2, "cpu"), 2, [(product.weight, product.sums)], [out])
    assert not out.view(torch.int32).any()
    assert_clear(product)


@pytest.mark.parametrize("shape", [SHAPES[2], *some_slow((SHAPES[0],), (SHAPES[1],), (SHAPES[4],))], ids=str)
def test_the_gate_in_one_launch_has_the_bits_of_two(shape: tuple[int, int, int, int, int]) -> None:
    bits, rows, inner, programs, tokens = shape
    x, buffer = columns(tokens, inner, tokens, eps=EPS)
    norm = set_norm(buffer, tokens)
    stored = matrix(rows, inner, bits)
    one, two = (paired_product(stored, tokens, programs) for _ in range(2))
    out, separate = (columns_buffer(rows // 2, tokens, "cpu") for _ in range(2))
    triton_launch.product_silu_mul(buffer, tokens, one.weight, one.sums, out)
    triton_launch.multiply(buffer, tokens, [(two.weight, two.sums)])
    triton_launch.finish_silu_mul(two.sums, tokens, norm, separate)
    assert torch.equal(out.storage, separate.storage)
    assert_clear(one)
    expected = ref.silu_mul_ref(ref.product_ref(x, stored.wide) * norm_factors(norm, tokens).double())
    assert_within(BF16_ROUNDED, from_columns(out, tokens), expected)
    # Rows beyond the last and tokens that do not exist stay zero.
    assert not out.storage[:, -(-(rows // 2) // 32) :].any()
    assert not from_columns(out, out.capacity)[tokens:].any()


@pytest.mark.parametrize(("shape", "dtype"), [
    ((4, 28, 512, 3, 2), torch.bfloat16), CASES[1],
    *some_slow(*CASES[2:], CASES[0], ((4, 32, 2304, 16, 1), torch.bfloat16)),
], ids=str)  # fmt: skip
def test_the_residual_in_one_launch_has_the_bits_of_two(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype
) -> None:
    """Twice: the second launch finds the counters of the first."""
    bits, rows, inner, programs, tokens = shape
    x, buffer = columns(tokens, inner, tokens)
    weight = 0.1 * normal(rows, seed=9)
    stored = matrix(rows, inner, bits)
    (one,), (two,) = (products([stored], tokens, programs) for _ in range(2))
    outs = [columns_buffer(rows, tokens, "cpu", EPS) for _ in range(2)]
    streams = [normal(tokens, rows, seed=10, dtype=dtype) for _ in range(2)]
    norms = [out.norm for out in outs if out.norm is not None]
    other = cleared_norm(tokens)
    expected = streams[0].double() + ref.product_ref(x, stored.wide)
    triton_launch.multiply(buffer, tokens, [(two.weight, two.sums)])
    for turn in range(2):
        for norm in norms:
            norm.squares.zero_()
        triton_launch.product_residual(
            buffer, tokens, one.weight, one.sums, streams[0], weight, outs[0], norms[0], other
        )
        triton_launch.finish_residual(two.sums, streams[1], weight, outs[1], norms[1], cleared_norm(tokens))
        if turn == 0:
            assert_within(_rounded_to(dtype), streams[0], expected)
    assert torch.equal(streams[0], streams[1])
    assert torch.equal(outs[0].storage, outs[1].storage)
    assert torch.equal(norms[0].squares, norms[1].squares)
    assert_clear(one)
    assert not other.squares.any()
    assert_within(BF16_ROUNDED, from_columns(outs[0], tokens), streams[0].double() * (1 + weight.double()))
    assert_within(FP32_REDUCTION, norm_factors(norms[0], tokens), ref.norm_factor_ref(streams[0], EPS))


@pytest.mark.parametrize(("rows", "tokens", "dtype"), [
    (300, 1, torch.bfloat16), (40, 18, torch.float32),
])  # fmt: skip
def test_the_first_norm_is_that_of_the_plain_route(
    rows: int, tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "FIRST_ROWS", 128)
    residual, weight = normal(tokens, rows, seed=10, dtype=dtype), 0.1 * normal(rows, seed=9)
    plain, out = columns_buffer(rows, tokens, "cpu", EPS), columns_buffer(rows, tokens, "cpu", EPS)
    other = cleared_norm(tokens)
    norm = set_norm(out, tokens)
    op.first_norm(residual, weight, plain, cleared_norm(tokens))
    triton_launch.first_norm(residual, weight, out, norm, other)
    assert torch.equal(out.storage, plain.storage)
    assert plain.norm is not None
    assert_within(FP32_REDUCTION, norm_factors(norm, tokens), norm_factors(plain.norm, tokens).double())
    assert not other.squares.any()


@pytest.mark.parametrize(("rows", "legal", "tokens", "keep"), [(100, 90, 2, 20), (1000, 999, 1, 1), (200, 200, 9, 1)])
def test_candidates_are_those_of_the_plain_route(
    rows: int, legal: int, tokens: int, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks, so that they are merged in two passes; many ties, zeros of both signs."""
    monkeypatch.setattr(variants, "HEAD_KEYS", 64)
    logits = (2 * normal(tokens, rows, seed=11)).round()
    values, ids = triton_launch.candidates(logits, legal, keep)
    expected = op.candidates(logits, legal, keep)
    assert torch.equal(values, expected[0])
    assert torch.equal(ids, expected[1])


@pytest.mark.parametrize(("bits", "rows", "inner", "paired"), [
    (4, 27, 264, False), (5, 16, 520, True), (6, 16, 256, False), (8, 16, 200, True),
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
