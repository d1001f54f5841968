"""The Triton route of `verify` on a CPU: run by `test_verify.py` in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ninfer.kernels.sampler import triton_draw
from ninfer.kernels.sampler.lanes import LaneTables, draw_buffers
from tests.kernels.sampler.cases import Columns, check, columns_of, copied, drawn_one_by_one, guess_right, tables_of
from tests.support import ptx

ptx.install()  # loops over numbers that are tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]
VOCABULARY = 70


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes seconds to sort a block of the size that a GPU takes."""
    monkeypatch.setattr(triton_draw, "BLOCK", 128)
    monkeypatch.setattr(triton_draw, "MERGED", 32)


def test_what_is_drawn_is_drawn_one_by_one() -> None:
    tables = tables_of(VOCABULARY, 5)
    tables.masks[1, 1] = 0x0F0F0F0F
    case = columns_of(VOCABULARY, [2, 1], 3, [1, 2], 3)
    # The likeliest of each column of a greedy lane with penalties is the same, so that guesses have to count.
    tables.laws[1] = tables.laws[0]
    case.logits[4:6] = case.logits[3]
    guess_right(case, tables, [2, 2])
    assert len(set(drawn_one_by_one(case, tables, 1))) > 1
    _verify_and_check(case, tables, 6)


def test_a_stop_token_a_fault_and_a_fault_that_nobody_reaches() -> None:
    tables = tables_of(VOCABULARY, 5)
    case = columns_of(VOCABULARY, [0, 2, 3], 3, [2, 2, 1], 3)
    guess_right(case, tables, [2, 2, 1])
    tables.stops[0, 9] = case.ids[1]
    case.logits[4, 50] = float("nan")
    case.logits[8, 2] = float("inf")
    _verify_and_check(case, tables, 5)


def test_tokens_that_halt() -> None:
    """One as the first of two right guesses, one as the second, one as the last; none of them is a stop token."""
    tables = tables_of(VOCABULARY, 5)
    case = columns_of(VOCABULARY, [0, 2, 3], 3, [2, 2, 2], 3)
    guess_right(case, tables, [2, 2, 2])
    for row, place in enumerate((0, 1, 2)):
        token, lane = drawn_one_by_one(case, tables, row)[place], int(case.lanes[row])
        tables.halts[lane, token // 32] = 1 << token % 32 if token % 32 < 31 else -(1 << 31)
    tables.halts[1].fill_(-1)
    results = _verify_and_check(case, tables, 5)
    assert results[:, :2].tolist() == [[0, 0], [1, 0], [2, 0]]


def _verify_and_check(case: Columns, tables: LaneTables, width: int) -> Tensor:
    before, results = copied(tables), torch.full((case.lanes.shape[0], width), -9, dtype=torch.int32)
    buffers = draw_buffers(case.ids.shape[0], VOCABULARY, "cpu")
    for tensor in (*buffers.keys, buffers.faults):
        tensor.fill_(-1)
    triton_draw.verify(
        case.logits, case.public_ids, case.lanes, case.columns, case.ids, case.live, case.uniforms, tables, buffers,
        results,
    )  # fmt: skip
    check(case, before, tables, results)
    return results
