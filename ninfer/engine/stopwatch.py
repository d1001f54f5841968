"""How long the device takes over work that is queued and not waited for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds seconds up. On a GPU a piece of work counts once it is done; reading never waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._under_way: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time what the body does, or queues on the device's current stream."""
        if self._device.type != "cuda":
            begin = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begin
            return
        self._collect()
        stream = torch.cuda.current_stream(self._device)
        begin_event, end_event = (_event() for _ in range(2))
        begin_event.record(stream)
        yield
        end_event.record(stream)
        self._under_way.append((begin_event, end_event))

    @property
    def seconds(self) -> float:
        """Of all work that was done when the newest was begun."""
        return self._seconds

    def _collect(self) -> None:
        while self._under_way and _is_done(self._under_way[0][1]):
            begin, end = self._under_way.popleft()
            self._seconds += begin.elapsed_time(end) / 1000.0


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _is_done(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]
