"""Row-wise ops against their oracles, and each row alone against the same row in company."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ninfer.kernels.causal_conv.op import causal_conv
from ninfer.kernels.causal_conv.ref import causal_conv_ref
from ninfer.kernels.embedding.op import embedding
from ninfer.kernels.embedding.ref import embedding_ref
from ninfer.kernels.gated_norm.op import gated_norm
from ninfer.kernels.gated_norm.ref import gated_norm_ref
from ninfer.kernels.gdn.op import gdn_gates
from ninfer.kernels.gdn.ref import gdn_gates_ref
from ninfer.kernels.linear import torch_packed
from ninfer.kernels.linear.op import linear, plain, prepare, prepared_rows
from ninfer.kernels.linear.ref import linear_ref
from ninfer.kernels.numerics.activations import sigmoid, silu, softplus
from ninfer.kernels.paged_attention.op import output_gate
from ninfer.kernels.paged_attention.ref import output_gate_ref
from ninfer.kernels.rmsnorm.op import offset_rmsnorm, plain_rmsnorm
from ninfer.kernels.rmsnorm.ref import offset_rmsnorm_ref, plain_rmsnorm_ref
from ninfer.kernels.silu_mul.op import silu_mul
from ninfer.kernels.silu_mul.ref import silu_mul_ref
from tests.kernels.data import DTYPES, normal
from tests.support.tolerance import BF16_ROUNDED, FP32_ELEMENTWISE, FP32_REDUCTION, Tolerance, assert_within

ROWS = (1, 3, 7, 8, 9, 16, 33, 63, 64, 65, 200, 257, 300)


def tolerance(dtype: torch.dtype, fp32: Tolerance = FP32_REDUCTION) -> Tolerance:
    return fp32 if dtype == torch.float32 else BF16_ROUNDED


def assert_rows_independent(op: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Rows of op(x) are those of any run of rows of x, also of a single one."""
    whole = op(x)
    rows = x.shape[0]
    for begin, count in ((0, 1), (rows // 2, 1), (rows - 1, 1), (1, 2), (2, 5), (0, 8), (3, 17), (1, rows - 1)):
        part = op(x[begin : begin + count].clone())
        assert torch.equal(part, whole[begin : begin + count]), f"rows [{begin}, {begin + count})"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 8, 17, 64, 80, 211, 1000])
def test_rmsnorm(width: int, dtype: torch.dtype) -> None:
    x, weight = normal(65, width, dtype=dtype) * 3, normal(width, seed=1)
    assert_within(tolerance(dtype), offset_rmsnorm(x, weight, 1e-6), offset_rmsnorm_ref(x, weight, 1e-6))
    assert_within(tolerance(dtype), plain_rmsnorm(x, weight, 1e-6), plain_rmsnorm_ref(x, weight, 1e-6))
    assert_rows_independent(lambda rows: offset_rmsnorm(rows, weight, 1e-6), x)
    heads = normal(40, 5, width, dtype=dtype)
    assert_rows_independent(lambda rows: plain_rmsnorm(rows, weight, 1e-6), heads)


def test_rmsnorm_of_zero_and_of_tiny_rows() -> None:
    weight = torch.zeros(16)
    assert torch.equal(offset_rmsnorm(torch.zeros(2, 16), weight, 1e-6), torch.zeros(2, 16))
    x = torch.full((1, 16), 1e-3)
    expected = 1e-3 / (1e-6 + 1e-6) ** 0.5  # epsilon stands inside the root
    assert offset_rmsnorm(x, weight, 1e-6)[0, 0].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("route", ["plain", "prepared"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "inner"), [(1, 5), (6, 80), (37, 64), (211, 80), (80, 211), (384, 1024)], ids=str)
def test_linear(columns: int, inner: int, dtype: torch.dtype, route: str) -> None:
    matrix = normal(columns, inner, seed=1, dtype=dtype)
    weight = plain(matrix)
    if route == "prepared":
        filled = torch.zeros(prepared_rows(columns, dtype), inner, dtype=dtype)
        filled[:columns] = matrix
        weight = prepare(filled, columns)
        assert weight.nbytes == filled.nbytes, "the memory plan counts on this"
    x = normal(max(ROWS), inner, dtype=dtype)
    whole = linear(x, weight)
    assert (whole.shape, whole.dtype, whole.stride(1)) == ((max(ROWS), columns), dtype, 1)
    assert_within(tolerance(dtype), whole, linear_ref(x, matrix))
    for rows in ROWS:
        assert torch.equal(linear(x[:rows], weight), whole[:rows]), f"{rows} rows"
    assert_rows_independent(lambda part: linear(part, weight), x)


def test_weights_are_packed_where_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins the operators that the fast route borrows from torch; without them the plain route serves."""
    filled = normal(64, 80)
    assert prepare(filled.clone(), 60).packed
    assert not prepare(filled[:60].bfloat16(), 60).packed
    monkeypatch.setattr(torch_packed, "packed_bytes", lambda packed: 1)
    weight = prepare(filled, 60)
    assert not weight.packed
    assert weight.storage is filled
    assert torch.equal(linear(normal(3, 80, seed=1), weight), linear(normal(3, 80, seed=1), plain(filled[:60])))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inner", [1, 7, 96, 211])
def test_silu_mul(inner: int, dtype: torch.dtype) -> None:
    gate_up = normal(65, 2 * inner, dtype=dtype) * 4
    assert_within(tolerance(dtype), silu_mul(gate_up), silu_mul_ref(gate_up))
    assert_rows_independent(silu_mul, gate_up)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_norm(dtype: torch.dtype) -> None:
    o, z, weight = normal(65, 3, 40, dtype=dtype), normal(65, 3, 40, seed=1, dtype=dtype), normal(40, seed=2)
    assert_within(tolerance(dtype), gated_norm(o, z, weight, 1e-6), gated_norm_ref(o, z, weight, 1e-6))
    both = torch.cat([o, z], dim=-1)
    assert_rows_independent(lambda x: gated_norm(x[..., :40].contiguous(), x[..., 40:], weight, 1e-6), both)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_output_gate(dtype: torch.dtype) -> None:
    o, gate = normal(65, 3, 24, dtype=dtype), normal(65, 3, 24, seed=1, dtype=dtype) * 6
    assert_within(tolerance(dtype), output_gate(o, gate), output_gate_ref(o, gate))


def test_gdn_gates() -> None:
    a, b, a_log, dt_bias = normal(65, 6) * 8, normal(65, 6, seed=1), normal(6, seed=2), normal(6, seed=3) * 10
    got = gdn_gates(a, b, -torch.exp(a_log), dt_bias)
    for actual, expected in zip(got, gdn_gates_ref(a, b, a_log, dt_bias), strict=True):
        assert_within(FP32_REDUCTION, actual, expected)
    assert float(got[0].max()) <= 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("taps", "channels"), [(2, 5), (3, 17), (4, 96)], ids=str)
def test_causal_conv(taps: int, channels: int, dtype: torch.dtype) -> None:
    columns, weight = normal(3, taps - 1 + 50, channels, dtype=dtype), normal(taps, channels, seed=1)
    whole = causal_conv(columns, weight)
    assert_within(tolerance(dtype), whole, causal_conv_ref(columns, weight))
    # Token by token and lane by lane, with the columns before it as history.
    for token in (0, 1, 24, 49):
        assert torch.equal(causal_conv(columns[1:2, token : token + taps], weight)[0, 0], whole[1, token])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding(dtype: torch.dtype) -> None:
    table, ids = normal(53, 17, dtype=dtype), torch.tensor([0, 52, 7, 7])
    got = embedding(ids, table)
    assert got.dtype == dtype
    assert torch.equal(got.double(), embedding_ref(ids, table))


@pytest.mark.parametrize("function", [sigmoid, silu, softplus])
def test_activations_do_not_depend_on_the_place(function: Callable[[Tensor], Tensor]) -> None:
    """torch's own sigmoid, silu and softplus fail this on a CPU: the remainder of a vector takes another formula."""
    x = normal(70001) * 8
    whole = function(x)
    # Short runs, hundreds of elements in all: only a few per cent of the remainders' values differ.
    runs = [(begin, 1 + begin % 7) for begin in range(0, 70000, 97)]
    for begin, count in (*runs, (5, 9), (1003, 31), (33000, 33001), (70000, 1)):
        assert torch.equal(function(x[begin : begin + count].clone()), whole[begin : begin + count])


def test_activations_at_the_ends() -> None:
    x = torch.tensor([-1000.0, -100.0, 0.0, 20.0, 20.5, 100.0, 1000.0])
    assert_within(FP32_ELEMENTWISE, sigmoid(x), torch.sigmoid(x.double()))
    assert_within(FP32_ELEMENTWISE, silu(x), x.double() * torch.sigmoid(x.double()))
    assert_within(FP32_ELEMENTWISE, softplus(x), torch.nn.functional.softplus(x.double()))
    assert float(softplus(x)[-1]) == 1000.0
