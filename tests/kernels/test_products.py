"""Products whose rows do not know their neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ninfer.kernels.linear import torch_rows
from ninfer.kernels.numerics import products
from ninfer.kernels.numerics.products import batched_rows, single_rows, sum_pairs, width_for
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


def test_single_rows() -> None:
    a, b = normal(7, 1, 64), normal(7, 64, 40, seed=1)
    whole = single_rows(a, b)
    assert_within(FP32_REDUCTION, whole, a.double() @ b.double())
    for first, count in ((0, 1), (6, 1), (2, 2), (1, 5)):
        assert torch.equal(
            single_rows(a[first : first + count], b[first : first + count]), whole[first : first + count]
        )


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
    checks = (products._base_width, products._width_agrees, torch_rows._base_width, torch_rows._width_agrees)
    for check in checks:
        check.cache_clear()
    yield
    for check in checks:
        check.cache_clear()


@pytest.mark.usefixtures("fresh_checks")
@pytest.mark.parametrize("base", [64, 1])
def test_a_library_whose_widths_disagree_is_used_at_the_base_width(base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, weight = normal(2, 70, 24), normal(2, 24, 40, seed=1), normal(40, 24, seed=2)
    for module in (products, torch_rows):
        monkeypatch.setattr(module, "_base_width", lambda *shape: base)
        monkeypatch.setattr(module, "_width_agrees", lambda *shape: False)
    for whole, part in (
        (batched_rows(a, b)[:, 3:5], batched_rows(a[:, 3:5], b)),
        (torch_rows.linear(a[0], weight)[3:5], torch_rows.linear(a[0, 3:5], weight)),
    ):
        assert torch.equal(whole, part)
    assert_within(FP32_REDUCTION, batched_rows(a, b), a.double() @ b.double())
    assert_within(FP32_REDUCTION, torch_rows.linear(a[0], weight), a[0].double() @ weight.double().t())


@pytest.mark.usefixtures("fresh_checks")
def test_a_product_that_depends_on_the_batch_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.bmm

    def careless(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Another rounding for small matrices, and for the odd rows of larger ones."""
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
