"""Products whose rows do not know their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from ninfer.kernels.numerics import products, widths
from ninfer.kernels.numerics.products import batched_rows, minus_single_rows, sum_pairs
from ninfer.kernels.numerics.widths import rows_product, width_for
from tests.kernels.data import normal
from tests.support.tolerance import FP32_REDUCTION, assert_within


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (8, 8), (9, 16), (33, 64), (64, 64), (65, 128), (384, 384)])
def test_width_for(rows: int, width: int) -> None:
    assert width_for(rows) == width


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("inner", "columns"), [(16, 64), (64, 16), (64, 64), (96, 64), (24, 40), (64, 1)], ids=str)
def test_batched_rows(inner: int, columns: int, transposed: bool) -> None:
    a = normal(5, 130, inner)
    b = normal(5, columns, inner, seed=1).transpose(1, 2) if transposed else normal(5, inner, columns, seed=1)
    whole = batched_rows(a, b)
    assert_within(FP32_REDUCTION, whole, a.double() @ b.double())
    for first, count in ((0, 1), (3, 1), (1, 2), (0, 5)):
        for begin, rows in ((0, 1), (129, 1), (4, 3), (7, 8), (0, 9), (60, 40), (2, 64), (1, 65), (0, 130)):
            part = batched_rows(a[first : first + count, begin : begin + rows].clone(), b[first : first + count])
            assert torch.equal(part, whole[first : first + count, begin : begin + rows])


def test_minus_single_rows() -> None:
    start, a, b = normal(7, 1, 40, seed=2), normal(7, 1, 64), normal(7, 64, 40, seed=1)
    whole = minus_single_rows(start, a, b)
    assert_within(FP32_REDUCTION, whole, start.double() - a.double() @ b.double())
    for first, count in ((0, 1), (6, 1), (2, 2), (1, 5)):
        some = slice(first, first + count)
        assert torch.equal(minus_single_rows(start[some], a[some], b[some]), whole[some])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_sum_pairs_ignores_zeros_at_the_end(count: int) -> None:
    x = normal(count, 9)
    total = sum_pairs(x)
    assert_within(FP32_REDUCTION, total, x.double().sum(0))
    for more in range(1, 9):
        assert torch.equal(sum_pairs(torch.cat([x, torch.zeros(more, 9)])), total)


@pytest.fixture
def fresh_checks() -> Iterator[None]:
    """Forget which widths were found to agree, before and after."""
    checks = (products._base_width, products._width_agrees)
    for check in checks:
        check.cache_clear()
    widths.forget()
    yield
    for check in checks:
        check.cache_clear()
    widths.forget()


@pytest.mark.usefixtures("fresh_checks")
@pytest.mark.parametrize("base", [64, 1])
def test_a_library_whose_widths_disagree_is_used_at_the_base_width(base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(2, 70, 24), normal(2, 24, 40, seed=1)
    monkeypatch.setattr(products, "_base_width", lambda *shape: base)
    monkeypatch.setattr(products, "_width_agrees", lambda *shape: False)
    assert torch.equal(batched_rows(a, b)[:, 3:5], batched_rows(a[:, 3:5], b))
    assert_within(FP32_REDUCTION, batched_rows(a, b), a.double() @ b.double())


@pytest.mark.usefixtures("fresh_checks")
def test_a_product_that_depends_on_the_batch_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.bmm

    def careless(a: Tensor, b: Tensor) -> Tensor:
        """Another rounding for the odd rows of a tile."""
        out = real(a, b)
        if a.shape[1] == 64:
            out[:, 1::2] += out[:, 1::2].abs() * 1e-6
        return out

    monkeypatch.setattr(torch, "bmm", careless)
    assert products._base_width(24, 40, False, 1) == 1
    products._base_width.cache_clear()
    monkeypatch.setattr(torch, "bmm", lambda a, b: real(a, b) if a.shape[1] >= 64 else real(a, b) * (1 + 1e-6))
    assert products._base_width(24, 40, False, 1) == 64
    assert not products._width_agrees(8, 24, 40, False, 1)
    assert products._width_agrees(128, 24, 40, False, 1)


def odd_rows_differ(x: Tensor, weight: Tensor) -> Tensor:
    out = x @ weight
    out[1::2] *= 1 + 1e-6
    return out


def few_rows_differ(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight) * (1 + 1e-6) if x.shape[0] < 32 else x @ weight


def wide_tiles_differ(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight) * (1 + 1e-6) if x.shape[0] > 64 else x @ weight


@pytest.mark.usefixtures("fresh_checks")
@pytest.mark.parametrize("smallest", [0, 8])
@pytest.mark.parametrize("library", [odd_rows_differ, few_rows_differ, wide_tiles_differ])
def test_rows_come_out_alike_from_a_library_that_treats_them_differently(
    library: Callable[[Tensor, Tensor], Tensor], smallest: int
) -> None:
    x, weight = normal(300, 24), normal(24, 40, seed=1)

    def product(rows: Tensor) -> Tensor:
        return library(rows, weight)

    whole = rows_product(x, product, library, smallest)
    assert_within(FP32_REDUCTION, whole, x.double() @ weight.double())
    for begin, count in ((0, 1), (1, 1), (299, 1), (3, 2), (5, 8), (1, 30), (7, 64), (1, 100), (0, 256), (9, 291)):
        part = rows_product(x[begin : begin + count], product, library, smallest)
        assert torch.equal(part, whole[begin : begin + count])
