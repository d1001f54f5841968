"""Embedding, norms, activations, positions and drawing: the plain route here, Triton's in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ninfer.kernels.compile_matrix.chips import CHIPS
from ninfer.kernels.compile_matrix.compiling import compiled, complaints
from ninfer.kernels.compile_matrix.small import matrix
from ninfer.kernels.embedding.stored import gather
from ninfer.kernels.rmsnorm.added import add_offset_rmsnorm
from ninfer.kernels.rmsnorm.ref import offset_rmsnorm_ref
from ninfer.kernels.sampler.lanes import NOT_FINITE, STOPPED, draw, draw_buffers
from ninfer.kernels.sampler.masks import mask_row
from ninfer.kernels.silu_mul.into import silu_mul_into
from tests.kernels.small.cases import GROUPS, lane_tables, source, stored_rows
from tests.support.tolerance import BF16_ROUNDED, assert_within

CASES = Path(__file__).with_name("interpreted.py")


@pytest.mark.parametrize("bits", GROUPS)
def test_embedding_rows(bits: int) -> None:
    table, values = stored_rows(bits, 7, 136)
    out = torch.full((3, 136), float("nan"), dtype=torch.bfloat16)
    gather(torch.tensor([6, 0, 2], dtype=torch.int32), table, out)
    assert_within(BF16_ROUNDED, out, values[[6, 0, 2]])


def test_add_and_norm_in_place() -> None:
    residual, y = (torch.randn(3, 96, generator=source(seed)).bfloat16() for seed in (1, 2))
    weight, exact = torch.randn(96, generator=source(3)), residual.double() + y.double()
    add_offset_rmsnorm(residual, y, weight, 1e-6, y)
    assert_within(BF16_ROUNDED, residual, exact)
    assert_within(BF16_ROUNDED, y, offset_rmsnorm_ref(residual, weight, 1e-6))


def test_silu_mul() -> None:
    gate_up = torch.randn(2, 60, generator=source(4)).bfloat16()
    out = torch.empty(2, 30, dtype=torch.bfloat16)
    silu_mul_into(gate_up, out)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_within(BF16_ROUNDED, out, gate * torch.sigmoid(gate) * up)


def test_a_draw_counts_moves_the_anchor_and_reports() -> None:
    tables = lane_tables(50)
    tables.stops[0, 31] = 40
    logits = torch.zeros(2, 50)
    logits[0, 40], logits[0, 45], logits[1, 3] = 9.0, 10.0, float("nan")
    before, results = tables.counts.clone(), torch.zeros(2, 2, dtype=torch.int32)
    lanes = torch.tensor([0, 2], dtype=torch.int32)
    draw(logits, 45, lanes, torch.tensor([0.5, 0.5]), tables, draw_buffers(2, 50, "cpu"), results)
    assert results[0].tolist() == [40, STOPPED]  # 45 is no public id
    assert int(results[1, 1]) & NOT_FINITE
    assert tables.anchors.tolist() == [40, -7, int(results[1, 0]), -7]
    changed = tables.counts - before
    assert (int(changed.sum()), int(changed[0, 40])) == (2, 1)


def test_a_draw_leaves_out_what_the_mask_of_its_lane_forbids() -> None:
    tables = lane_tables(50)
    tables.masks[1] = mask_row((1 << 7 | 1 << 44).to_bytes(8, "little"), 2)
    logits = torch.zeros(2, 50)
    logits[:, 40], logits[1, 44] = 9.0, -5.0
    results = torch.zeros(2, 2, dtype=torch.int32)
    tables.laws[:, 0] = 0.0
    tables.counts.zero_()
    draw(
        logits, 50, torch.tensor([0, 1], dtype=torch.int32), torch.zeros(2), tables, draw_buffers(2, 50, "cpu"), results
    )
    assert results[:, 0].tolist() == [40, 7]


def test_the_triton_routes_on_a_cpu() -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    done = subprocess.run(command, env=environment, cwd=CASES.parents[3], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_the_binaries_fit_every_chip(capability: int) -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    names = set()
    for variant in matrix():
        binary, _ = compiled(variant, CHIPS[capability])
        assert not complaints(variant, CHIPS[capability], binary), (variant.name, binary)
        names.add(variant.name)
    assert len(names) == len(list(matrix()))
