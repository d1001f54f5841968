"""Time on the processor; on a GPU it is the device's."""

from __future__ import annotations

import time

import torch

from ninfer.engine.stopwatch import Stopwatch


def test_seconds_add_up() -> None:
    watch = Stopwatch(torch.device("cpu"))
    assert watch.seconds == 0.0
    begin = time.perf_counter()
    for _ in range(3):
        with watch.running():
            sum(range(20_000))
    assert 0.0 < watch.seconds <= time.perf_counter() - begin
