"""The steps on the device, oldest first, and the device machine that says how many and which there may be."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.errors import IllegalTransition
from ninfer.scheduler.images import Image
from ninfer.scheduler.requests import Request
from ninfer.scheduler.transitions import DEVICE, DeviceSignal, DeviceState, after


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the device: a decode round of `requests`, or prompt positions ``[begin, end)`` of the only one.

    images   that are stored behind it
    drafts   guesses that each row of a round may have: the engine's own, and copied ones instead
    """

    number: int
    requests: tuple[Request, ...]
    begin: int = 0
    end: int = 0
    images: tuple[Image, ...] = ()
    drafts: tuple[tuple[int, int], ...] = ()


class Flight:
    """Launches and lands steps in order. Numbers count up from 1 and are never used twice.

    device   the state of the device machine; `steps` are what it has in flight
    """

    def __init__(self) -> None:
        self.device = DeviceState.IDLE
        self.steps: deque[Step] = deque()
        self._last = 0

    def launch(
        self,
        signal: DeviceSignal,
        requests: Sequence[Request],
        begin: int = 0,
        end: int = 0,
        images: tuple[Image, ...] = (),
        drafts: tuple[tuple[int, int], ...] = (),
    ) -> int:
        """Note a step as launched behind those in flight; returns its number."""
        self.move(signal)
        self._last += 1
        self.steps.append(Step(self._last, tuple(requests), begin, end, images, drafts))
        return self._last

    def land(self, number: int, signal: DeviceSignal) -> Step:
        """Take the oldest step off the device: the only one that can land."""
        if not self.steps or self.steps[0].number != number:
            in_flight = [step.number for step in self.steps]
            raise IllegalTransition(f"step {number} landed, in flight are {in_flight}")
        self.move(signal)
        return self.steps.popleft()

    def move(self, signal: DeviceSignal) -> None:
        """Move the device on."""
        self.device = after(DEVICE, self.device, signal)
