"""Log-probabilities against the definition, and the order of the likeliest."""

from __future__ import annotations

import math

import torch

from ninfer.kernels.sampler.logprobs import ROWS_AT_ONCE, logprob_rows
from ninfer.step import TokenLogprobs


def test_they_are_the_log_softmax_in_double_precision() -> None:
    rows = 2 * ROWS_AT_ONCE + 1
    logits = torch.randn(rows, 331, generator=torch.Generator().manual_seed(3)) * 9
    chosen = torch.arange(rows) * 7
    found = logprob_rows(logits, chosen, 20).to_host(pinned=False)
    expected = torch.log_softmax(logits.double(), dim=1)
    for row in range(rows):
        told = found.of(row, int(chosen[row]))
        assert math.isclose(told.logprob, float(expected[row, chosen[row]]), abs_tol=1e-5)
        assert [token for token, _ in told.alternatives] == expected[row].argsort(descending=True)[:20].tolist()
        for token, value in told.alternatives:
            assert math.isclose(value, float(expected[row, token]), abs_tol=1e-5)


def test_of_equal_ones_the_lower_id_comes_first() -> None:
    logits = torch.tensor([[1.0, 3.0, -2.0, 3.0, 3.0, -2.0, 1.0], [0.0, -0.0, 0.0, -0.0, -0.0, 0.0, 0.0]])
    found = logprob_rows(logits, torch.tensor([4, 0]), 6)
    assert [[token for token, _ in found.of(row, 0).alternatives] for row in (0, 1)] == [
        [1, 3, 4, 0, 6, 2],
        [0, 1, 2, 3, 4, 5],
    ]


def test_without_alternatives_and_with_more_than_there_are_ids() -> None:
    logits = torch.zeros(1, 4)
    quarter = math.log(0.25)
    none = logprob_rows(logits, torch.tensor([2]), 0).of(0, 2)
    assert none == TokenLogprobs(2, none.logprob)
    assert math.isclose(none.logprob, quarter, abs_tol=1e-6)
    assert [token for token, _ in logprob_rows(logits, torch.tensor([2]), 9).of(0, 2).alternatives] == [0, 1, 2, 3]


def test_what_was_not_drawn_may_be_any_number() -> None:
    found = logprob_rows(torch.zeros(2, 4), torch.tensor([-1, 9]), 1)
    assert found.values.isfinite().all()
