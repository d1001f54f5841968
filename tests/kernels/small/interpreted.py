"""The Triton routes on a CPU: run by `test_small.py` in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.embedding import triton_gather
from ninfer.kernels.embedding.stored import StoredRows
from ninfer.kernels.low_bit_linear.buffers import columns_buffer, from_columns
from ninfer.kernels.rmsnorm import triton_added, triton_joined
from ninfer.kernels.rmsnorm.joined import joined_offset_rmsnorm
from ninfer.kernels.rmsnorm.ref import offset_rmsnorm_ref
from ninfer.kernels.rotary import columns, triton_columns
from ninfer.kernels.sampler import triton_draw
from ninfer.kernels.sampler.lanes import NOT_FINITE, STOPPED, draw, draw_buffers
from ninfer.kernels.sampler.verify import verify
from ninfer.kernels.silu_mul import triton_into
from tests.kernels.small.cases import GROUPS, lane_tables, source, stored_rows
from tests.support import ptx
from tests.support.tolerance import BF16_ROUNDED, FP32_ELEMENTWISE, assert_within

ptx.install()  # rounds to bf16 as a GPU does

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


@pytest.mark.parametrize("bits", GROUPS)
@pytest.mark.parametrize("through", [False, True])
def test_embedding_rows(bits: int, through: bool) -> None:
    table, values = stored_rows(bits, 9, 200)
    ids = torch.tensor([8, 0, 3, 3], dtype=torch.int32)
    lanes = torch.tensor([2, 0], dtype=torch.int32) if through else None
    wanted = ids if lanes is None else ids[lanes.long()]
    out = torch.full((wanted.shape[0], 200), float("nan"), dtype=torch.bfloat16)
    triton_gather.gather(ids, table, out, lanes)
    assert_within(BF16_ROUNDED, out, values[wanted.long()])


def test_embedding_rows_in_bf16() -> None:
    base = torch.randn(5, 40, generator=source(1)).bfloat16()
    out = torch.empty(2, 40, dtype=torch.bfloat16)
    triton_gather.gather(torch.tensor([4, 1], dtype=torch.int32), StoredRows(base, None, None, 40, 16, 1), out, None)
    assert torch.equal(out, base[[4, 1]])


@pytest.mark.parametrize("adds", [False, True])
def test_add_and_norm(adds: bool) -> None:
    residual = torch.randn(3, 200, generator=source(1)).bfloat16()
    y = torch.randn(3, 200, generator=source(2)).bfloat16()
    weight = torch.randn(200, generator=source(3))
    exact = residual.double() + (y.double() if adds else 0)
    out = y  # in place, as a chunk does it
    triton_added.add_offset_rmsnorm(residual, y if adds else None, weight, 1e-6, out)
    assert_within(BF16_ROUNDED, residual, exact)
    assert_within(BF16_ROUNDED, out, offset_rmsnorm_ref(residual, weight, 1e-6))


def test_silu_mul() -> None:
    gate_up = torch.randn(2, 2 * 2500, generator=source(4)).bfloat16()
    out = torch.full((2, 2500), float("nan"), dtype=torch.bfloat16)
    triton_into.silu_mul_into(gate_up, out)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_within(BF16_ROUNDED, out, gate * torch.sigmoid(gate) * up)


def test_rotary_angles() -> None:
    first = torch.tensor([200_000, 5], dtype=torch.int32)
    frequencies = 1.0 / (1e7 ** (torch.arange(0, 64, 2) / 64))
    plain, out = ([torch.empty(6, 32) for _ in range(2)] for _ in range(2))
    columns.rotary_columns(first, 3, frequencies, *plain)
    triton_columns.rotary_columns(first, 3, frequencies, *out)
    for mine, theirs in zip(out, plain, strict=True):
        assert_within(FP32_ELEMENTWISE, mine, theirs)


def test_drawing_is_that_of_the_plain_route() -> None:
    """Few tokens: the interpreter takes a second to sort a block."""
    vocabulary, public = 1100, 1060
    buffers, tables, plain_tables = draw_buffers(4, vocabulary, "cpu"), lane_tables(vocabulary), lane_tables(vocabulary)
    logits = 3 * torch.randn(4, vocabulary, generator=source(1))
    logits[:, public:] = 100.0
    logits[0, 1050], logits[3, 2] = 50.0, float("inf")
    tables.stops[0, 3] = plain_tables.stops[0, 3] = 1050
    for masks in (tables.masks, plain_tables.masks):
        masks[1, ::2] = 0x0F0F0F0F
        masks[1, 1::2] = 0
    lanes, uniforms = torch.tensor([0, 1, 3, 2], dtype=torch.int32), torch.tensor([0.0, 0.9, 0.3, 0.5])
    results, plain = (torch.full((4, 2), -1, dtype=torch.int32) for _ in range(2))
    draw(logits, public, lanes, uniforms, plain_tables, buffers, plain)
    triton_draw.draw(logits, public, lanes, uniforms, tables, buffers, results)
    assert torch.equal(results[:3], plain[:3])
    assert results[0].tolist() == [1050, STOPPED]
    assert int(results[3, 1]) & NOT_FINITE
    assert torch.equal(tables.counts[[0, 1, 3]], plain_tables.counts[[0, 1, 3]])
    assert torch.equal(tables.anchors[[0, 1, 3]], plain_tables.anchors[[0, 1, 3]])


def test_guesses_are_verified_as_by_the_plain_route() -> None:
    """Right guesses, a wrong one, a stop id among right ones, fewer guesses than columns; penalties see the guesses."""
    vocabulary, public, columns = 300, 290, 3
    buffers = draw_buffers(4 * columns, vocabulary, "cpu")
    logits = 3 * torch.randn(4 * columns, vocabulary, generator=source(2))
    lanes, live = torch.tensor([1, 0, 3, 2], dtype=torch.int32), torch.tensor([2, 2, 2, 1], dtype=torch.int32)
    uniforms = torch.rand(4 * columns, generator=source(3))
    ids = torch.randint(0, public, (4 * columns,), generator=source(4), dtype=torch.int32)
    for _ in range(columns):  # make the guesses what is drawn, one column after the other
        results = torch.zeros(4, 2 + columns, dtype=torch.int32)
        verify(logits, public, lanes, columns, ids, live, uniforms, lane_tables(vocabulary), buffers, results)
        for row in range(4):
            ids.view(4, columns)[row, 1:] = results[row, 2 : 1 + columns]
    ids[3 + 2] = (ids[3 + 2] + 1) % public  # of lane 0, the second guess
    tables, plain_tables = lane_tables(vocabulary), lane_tables(vocabulary)
    for each in (tables, plain_tables):
        each.stops[3, 5] = ids[2 * columns + 1]
    results, plain = (torch.zeros(4, 2 + columns, dtype=torch.int32) for _ in range(2))
    verify(logits, public, lanes, columns, ids, live, uniforms, plain_tables, buffers, plain)
    triton_draw.verify(logits, public, lanes, columns, ids, live, uniforms, tables, buffers, results)
    assert plain[:, :2].tolist() == [[2, 0], [1, 0], [0, STOPPED], [1, 0]]
    for row in range(4):
        count = 3 + int(plain[row, 0])
        assert torch.equal(results[row, :count], plain[row, :count])
    assert torch.equal(tables.counts, plain_tables.counts)
    assert torch.equal(tables.anchors, plain_tables.anchors)


def test_joined_norms_are_those_of_the_plain_route() -> None:
    left, right = (torch.randn(9, 96, generator=source(seed)).bfloat16() for seed in (1, 2))
    weights = [0.1 * torch.randn(96, generator=source(seed)) for seed in (3, 4)]
    plain, rows = torch.empty(9, 192, dtype=torch.bfloat16), torch.empty(9, 192, dtype=torch.bfloat16)
    joined_offset_rmsnorm(left, right, *weights, 1e-6, plain)
    triton_joined.joined_offset_rmsnorm(left, right, *weights, 1e-6, rows)
    columns = columns_buffer(192, 9, "cpu")
    triton_joined.joined_offset_rmsnorm(left, right, *weights, 1e-6, columns)
    assert torch.equal(from_columns(columns, 9), rows)
    assert_within(BF16_ROUNDED, rows, plain.double())
