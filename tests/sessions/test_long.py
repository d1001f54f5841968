"""Fifty thousand histories more, behind those of every run: ``make histories-long``."""

from __future__ import annotations

import pytest
import torch

from tests.sessions.test_histories import HISTORIES, history_of

LONG_HISTORIES = 50_000
LONG_PARTS = 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(LONG_PARTS))
def test_fifty_thousand_histories_give_the_answers_of_a_cold_server(part: int) -> None:
    torch.set_num_threads(1)
    for seed in range(HISTORIES + part, HISTORIES + LONG_HISTORIES, LONG_PARTS):
        history_of(seed).play()
