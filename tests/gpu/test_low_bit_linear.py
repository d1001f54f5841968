"""The Triton route on a device: against the plain route and, where a launch does two things, against two launches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ninfer.bench.linear_stack import Shapes, Stack, random_weight
from ninfer.engine.devices import settle_device
from ninfer.kernels.low_bit_linear import op, torch_dequantised
from ninfer.kernels.low_bit_linear.buffers import (
    Columns,
    Norm,
    columns_buffer,
    from_columns,
    norm_factors,
    partial_sums,
    squares_of,
    to_columns,
)
from ninfer.kernels.low_bit_linear.chunk_route import tuned_for
from ninfer.kernels.low_bit_linear.op import Product
from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from ninfer.kernels.low_bit_linear.variants import ChunkTile
from ninfer.model.chunk_products import by_library

triton_launch = pytest.importorskip("ninfer.kernels.low_bit_linear.triton_launch")
triton_chunk_launch = pytest.importorskip("ninfer.kernels.low_bit_linear.triton_chunk_launch")

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda:0")


EPS = 1e-6
TOKENS = [1, 3, 8, 11, 16, 20, 32]


def weight_of(rows: int, inner: int, bits: int, seed: int = 0, *, paired: bool = False) -> LowBitWeight:
    return random_weight((rows, inner, bits), DEVICE, torch.Generator(DEVICE).manual_seed(seed), paired=paired)


def product_of(*weights: LowBitWeight, tokens: int) -> list[Product]:
    programs = triton_launch.default_programs(DEVICE)
    sums = partial_sums(weights, tokens, programs)
    return [Product(weight, part) for weight, part in zip(weights, sums, strict=True)]


def values(tokens: int, columns: int, seed: int = 1) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(32, columns, generator=source)[:tokens].to(DEVICE, torch.bfloat16)


def columns_of(tokens: int, columns: int, *, normed: bool) -> Columns:
    x = columns_buffer(columns, tokens, DEVICE, EPS if normed else None)
    to_columns(values(tokens, columns), x)
    if x.norm is not None:
        x.norm.squares[:, :tokens] = squares_of(3 * values(tokens, columns, seed=2).float())
    return x


def one_norm(tokens: int) -> Norm:
    norm = columns_buffer(32, tokens, DEVICE, EPS).norm
    assert norm is not None
    return norm


def rows_of(product: Product, tokens: int, dtype: torch.dtype) -> Tensor:
    return torch.full((tokens, product.weight.rows), float("nan"), dtype=dtype, device=DEVICE)


def assert_clear(product: Product) -> None:
    """What the next launch has to find: counters of zero, and no word that looks like a sum."""
    assert not product.sums.counters.any()
    assert not product.sums.storage.view(torch.int32).any()


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("first", "second"), [
    ((4096, 5120, 4), (12288, 5120, 5)), ((7168, 5120, 4), (7168, 5120, 5)), ((1000, 640, 4), (72, 640, 5)),
], ids=str)  # fmt: skip
def test_rows_of_two_matrices_have_the_bits_of_separate_launches(
    first: tuple[int, int, int], second: tuple[int, int, int], tokens: int
) -> None:
    x = columns_of(tokens, first[1], normed=True)
    weights = weight_of(*first), weight_of(*second, seed=1)
    both, apart = product_of(*weights, tokens=tokens), product_of(*weights, tokens=tokens)
    op.multiply(x, tokens, apart)
    separate = [rows_of(product, tokens, torch.bfloat16) for product in apart]
    for product, out in zip(apart, separate, strict=True):
        op.finish_rows(product.sums, tokens, x.norm, out)
    for _ in range(3):
        outs = [rows_of(product, tokens, torch.bfloat16) for product in both]
        op.product_rows(x, tokens, both, outs)
        for product, out, expected in zip(both, outs, separate, strict=True):
            assert torch.equal(out, expected)
            assert_clear(product)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("rows", "inner", "bits"), [(34816, 5120, 4), (1024, 2048, 8), (96, 256, 5)], ids=str)
def test_the_gate_has_the_bits_of_separate_launches(rows: int, inner: int, bits: int, tokens: int) -> None:
    x = columns_of(tokens, inner, normed=True)
    weight = weight_of(rows, inner, bits, paired=True)
    (product,), (apart,) = (product_of(weight, tokens=tokens) for _ in range(2))
    out, separate = (columns_buffer(rows // 2, tokens, DEVICE) for _ in range(2))
    op.multiply(x, tokens, [apart])
    op.finish_silu_mul(apart.sums, tokens, x.norm, separate)
    for _ in range(3):
        out.storage.zero_()
        op.product_silu_mul(x, tokens, product, out)
        assert torch.equal(out.storage, separate.storage)
        assert_clear(product)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    ("rows", "inner", "bits"), [(5120, 6144, 5), (5120, 17408, 5), (2048, 4096, 8), (300, 512, 4)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_residual_has_the_bits_of_separate_launches(
    rows: int, inner: int, bits: int, tokens: int, dtype: torch.dtype
) -> None:
    x = columns_of(tokens, inner, normed=False)
    matrix = weight_of(rows, inner, bits)
    (product,), (apart,) = (product_of(matrix, tokens=tokens) for _ in range(2))
    weight = 0.1 * values(1, rows, seed=3)[0]
    outs = [columns_buffer(rows, tokens, DEVICE, EPS) for _ in range(2)]
    streams = [values(tokens, rows, seed=4).to(dtype) for _ in range(2)]
    norms = [out.norm for out in outs if out.norm is not None]
    other = one_norm(tokens)
    op.multiply(x, tokens, [apart])
    for _ in range(3):
        for norm in norms:
            norm.squares.zero_()
        other.squares.fill_(7)
        op.finish_residual(apart.sums, streams[0], weight, outs[0], one_norm(tokens))
        op.product_residual(x, tokens, product, streams[1], weight, outs[1], other)
        assert torch.equal(streams[0], streams[1])
        assert torch.equal(outs[0].storage, outs[1].storage)
        assert torch.equal(norms[0].squares, norms[1].squares)
        assert not other.squares.any()
        assert_clear(product)
    factor = norm_factors(norms[1], tokens).double()
    expected = 1 / torch.sqrt(streams[1].double().square().mean(-1, keepdim=True) + EPS)
    assert torch.allclose(factor, expected, rtol=1e-5, atol=0)


def test_sums_of_zero_are_there() -> None:
    (product,) = product_of(weight_of(4096, 5120, 4), tokens=5)
    for _ in range(3):
        out = rows_of(product, 5, torch.float32)
        op.product_rows(columns_buffer(5120, 5, DEVICE), 5, [product], [out])
        assert not out.view(torch.int32).any()
        assert_clear(product)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_token_does_not_see_its_neighbours(dtype: torch.dtype) -> None:
    weight = weight_of(5120, 6144, 5)
    results = []
    for tokens in TOKENS:
        x = columns_of(tokens, 6144, normed=True)
        (product,) = product_of(weight, tokens=tokens)
        out = rows_of(product, tokens, dtype)
        op.product_rows(x, tokens, [product], [out])
        results.append(out)
    for out in results:
        assert torch.equal(out, results[-1][: out.shape[0]])


@pytest.mark.parametrize("tokens", [1, 5, 32])
def test_rows_are_those_of_the_plain_route(tokens: int) -> None:
    x = columns_of(tokens, 640, normed=True)
    (product,) = product_of(weight_of(1000, 640, 6), tokens=tokens)
    out = rows_of(product, tokens, torch.float32)
    op.product_rows(x, tokens, [product], [out])
    wide = torch.empty(1000, 640, dtype=torch.float32, device=DEVICE)
    torch_dequantised.dequantise(product.weight, wide)
    assert x.norm is not None
    expected = from_columns(x, tokens).double() @ wide.double().t() * norm_factors(x.norm, tokens).double()
    assert float((out.double() - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("tokens", [1, 7, 32])
def test_the_first_norm_is_that_of_the_plain_route(tokens: int) -> None:
    residual, weight = values(tokens, 5120), 0.1 * values(1, 5120, seed=3)[0]
    outs = [columns_buffer(5120, tokens, DEVICE, EPS) for _ in range(2)]
    others = [one_norm(tokens) for _ in range(2)]
    norms = [out.norm for out in outs if out.norm is not None]
    for norm in (*others, *norms):
        norm.squares.fill_(7)
    op.first_norm(residual, weight, outs[0], others[0])
    torch_dequantised.first_norm(residual, weight, outs[1], norms[1], others[1])
    assert torch.equal(outs[0].storage, outs[1].storage)
    assert torch.allclose(norm_factors(norms[0], tokens), norm_factors(norms[1], tokens), rtol=1e-6, atol=0)
    assert not any(other.squares.any() for other in others)


def test_a_chain_of_early_launches_keeps_its_bits() -> None:
    """Layers in one graph, each launched before its predecessor ends: counters, slots and norms are reused at once."""
    stack = Stack(Shapes(6, 2048, 1536, 4096, 8192, 6, 4096), DEVICE, triton_launch.default_programs(DEVICE))
    for tokens in (1, 8, 16):
        run = stack.run(tokens)
        run.token(fused=False)
        expected = run.logits.clone()
        run.token(fused=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                run.token(fused=True)
        for _ in range(50):
            run.logits.fill_(float("nan"))
            graph.replay()
            assert torch.equal(run.logits, expected)


@pytest.mark.parametrize("keep", [1, 20])
def test_candidates_are_those_of_the_plain_route(keep: int) -> None:
    logits = (4 * torch.randn(5, 248320, generator=torch.Generator().manual_seed(0))).to(torch.bfloat16).float()
    logits = logits.to(DEVICE)  # many ties
    for got, expected in zip(
        op.candidates(logits, 248077, keep), torch_dequantised.candidates(logits, 248077, keep), strict=True
    ):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(("bits", "rows", "inner", "paired"), [
    (4, 34816, 5120, True), (5, 5120, 17408, False), (6, 1000, 5128, False), (8, 4096, 2048, True), (5, 43, 520, False),
])  # fmt: skip
def test_a_whole_matrix_is_that_of_the_plain_route(bits: int, rows: int, inner: int, paired: bool) -> None:
    weight = weight_of(rows, inner, bits, paired=paired)
    plain, out = (torch.full((rows, inner), float("nan"), dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    torch_dequantised.dequantise(weight, plain)
    op.dequantise(weight, out)
    assert torch.equal(out, plain)


CHUNKS = [1, 15, 16, 17, 33, 64, 65, 128, 129, 300, 512]
CHUNK_SHAPES = [
    (34816, 5120, 4, True), (5120, 17408, 5, False), (12288, 5120, 5, False), (4096, 5120, 4, False),
    (14336, 5120, 8, False), (34816, 5120, 8, True), (5120, 17408, 8, False), (1000, 640, 6, False),
    (72, 320, 8, False), (43264, 128, 6, False),
]  # fmt: skip


def chunk_values(tokens: int, columns: int) -> Tensor:
    return torch.randn(tokens, columns, generator=torch.Generator().manual_seed(5)).to(DEVICE, torch.bfloat16)


def in_registers(x: Tensor, weight: LowBitWeight) -> Tensor:
    """Some columns of a buffer, all others of which stay NaN."""
    buffer = torch.full((x.shape[0], weight.rows + 24), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    out = buffer[:, 8 : 8 + weight.rows]
    op.product_chunk(x, weight, out)
    assert int(buffer.isnan().sum()) == 24 * x.shape[0]
    return out


@pytest.mark.parametrize(("rows", "inner", "bits", "paired"), CHUNK_SHAPES, ids=str)
def test_a_chunk_in_registers_is_right_whatever_its_length(rows: int, inner: int, bits: int, paired: bool) -> None:
    weight = weight_of(rows, inner, bits, paired=paired)
    x = chunk_values(max(CHUNKS), inner)
    wide = torch.empty(rows, inner, dtype=torch.bfloat16, device=DEVICE)
    op.dequantise(weight, wide)
    expected = x.double() @ wide.double().t()
    whole = in_registers(x, weight)
    allowed = 2**-8 * expected.abs() + 1e-4 * expected.abs().max()  # one rounding to bf16, and fp32 sums
    assert bool(((whole.double() - expected).abs() <= allowed).all())
    for tokens in CHUNKS:
        assert torch.equal(in_registers(x[:tokens], weight), whole[:tokens]), tokens
    assert torch.equal(in_registers(x[37:51].contiguous(), weight), whole[37:51])


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_weights_in_registers_are_those_that_dequantise_writes(bits: int) -> None:
    """Rows of x that pick one column each return its weights as they are."""
    weight = weight_of(1000, 512, bits)
    wide = torch.empty(1000, 512, dtype=torch.bfloat16, device=DEVICE)
    op.dequantise(weight, wide)
    assert torch.equal(in_registers(torch.eye(512, dtype=torch.bfloat16, device=DEVICE), weight).t(), wide)


@pytest.mark.parametrize(("rows", "inner", "bits", "paired"), CHUNK_SHAPES[:5], ids=str)
def test_a_chunk_in_registers_against_the_library(rows: int, inner: int, bits: int, paired: bool) -> None:
    """Whether the bits are the same is printed, and has to be where the GPU's entry says so: `auto` relies on it."""
    settle_device(DEVICE)
    weight = weight_of(rows, inner, bits, paired=paired)
    x = chunk_values(max(CHUNKS), inner)
    scratch = torch.empty(rows * inner, dtype=torch.bfloat16, device=DEVICE)
    tuned = tuned_for(torch.cuda.get_device_name(DEVICE))
    for tokens in CHUNKS:
        library = torch.empty(tokens, rows, dtype=torch.bfloat16, device=DEVICE)
        by_library(x[:tokens], [weight], None, scratch, library)
        registers = in_registers(x[:tokens], weight)
        different = int((library != registers).sum())
        worst = float((library.double() - registers.double()).norm() / library.double().norm())
        print(f"[{rows}, {inner}], {bits} bits, {tokens} tokens: {different} results differ, {worst:.1e} in all")
        assert worst < 2e-3
        assert different == 0 or tuned is None or not tuned.same_bits


def test_a_tile_changes_no_bit() -> None:
    weight, x = weight_of(1024, 1024, 5), chunk_values(100, 1024)
    expected = in_registers(x, weight)
    for tile in (ChunkTile(4, 64, 64, 2, 4), ChunkTile(8, 64, 128, 2, 4), ChunkTile(8, 128, 64, 2, 8)):
        out = torch.empty(100, 1024, dtype=torch.bfloat16, device=DEVICE)
        triton_chunk_launch.product_chunk(x, weight, out, tile)
        assert torch.equal(out, expected), tile
