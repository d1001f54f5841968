"""A step on its way through a device, and the time that the device took for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from ninfer.errors import DeviceFault

R = TypeVar("R")


class Marks:
    """When the device began and ended a step."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._begin = _event() if self._on_gpu else None
        self._end = _event() if self._on_gpu else None
        self._times = [0.0, 0.0]

    def begin(self) -> None:
        self._mark(0, self._begin)

    def end(self) -> None:
        self._mark(1, self._end)

    def _mark(self, which: int, event: torch.cuda.Event | None) -> None:
        if event is not None:
            event.record()
        else:
            self._times[which] = time.perf_counter()

    def wait(self) -> float:
        """Seconds the device took; blocks until it is done, without the interpreter's lock."""
        if self._begin is None or self._end is None:
            return self._times[1] - self._times[0]
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3

    def since(self, before: Marks) -> float:
        """Seconds from the end of an earlier step to the begin of this one; both have been waited for."""
        if self._begin is None or before._end is None:
            return self._times[0] - before._times[1]
        return float(before._end.elapsed_time(self._begin)) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class DeviceStep(Generic[R]):
    """A step on its way. `wait` may be called from another thread than the one that launches."""

    marks: Marks
    read: Callable[[float], R]

    def wait(self) -> R:
        """The result; blocks until the device has it. Raises DeviceFault."""
        try:
            seconds = self.marks.wait()
        except RuntimeError as error:
            raise DeviceFault(f"the device failed: {error}") from error
        return self.read(seconds)

    def idle_since(self, before: DeviceStep[Any]) -> float:
        """Seconds the device did nothing between an earlier step and this one; both have been waited for."""
        return self.marks.since(before.marks)
