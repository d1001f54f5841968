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
class Window:
    """Guesses that a row may have: `own` of the engine's, or so many `copies` instead; and what the row behind it is
    made ready for, see :class:`ninfer.scheduler.commands.RowStart`.

    wished   guesses of the engine's that are worth while
    """

    own: int = 0
    copies: int = 0
    foresee: int = 0
    recall: int = 0
    wished: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the device: a decode round of `requests`, prompt positions ``[begin, end)`` of the only one, or a
    part of those that is not the last, with which nothing lands.

    images   that are stored behind it
    windows  guesses that each row of a round may have
    """

    number: int
    requests: tuple[Request, ...]
    begin: int = 0
    end: int = 0
    images: tuple[Image, ...] = ()
    windows: tuple[Window, ...] = ()

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a chunk that others follow."""
        return not self.requests

    @property
    def is_round(self) -> bool:
        """Whether it is a decode round."""
        return not self.is_part and self.begin == self.end


@dataclass(slots=True)
class OpenChunk:
    """A chunk that has parts which are not launched yet: `left` of them; the newest one that is was step `newest`."""

    request: Request
    begin: int
    end: int
    images: tuple[Image, ...]
    left: int
    newest: int


class Flight:
    """Launches and lands steps in order. Numbers count up from 1 and are never used twice.

    device   the state of the device machine; `steps` are what it has in flight
    chunk    that goes on with a next part before any other begins; its last part is the step that it lands with
    """

    def __init__(self) -> None:
        self.device = DeviceState.IDLE
        self.steps: deque[Step] = deque()
        self.chunk: OpenChunk | None = None
        self._last = 0

    def launch_round(self, requests: Sequence[Request], windows: tuple[Window, ...]) -> int:
        """Note a round as launched behind what is in flight; returns its number."""
        number = self._next(DeviceSignal.ROUND)
        self.steps.append(Step(number, tuple(requests), windows=windows))
        return number

    def launch_chunk(self, request: Request, begin: int, end: int, images: tuple[Image, ...], parts: int) -> int:
        """Note a chunk, or the first of its parts, as launched behind what is in flight; returns its number."""
        if self.chunk is not None:
            raise IllegalTransition(f"a chunk of request {request.id} between the parts of another")
        number = self._next(DeviceSignal.CHUNK)
        if parts == 1:
            self.steps.append(Step(number, (request,), begin, end, images))
        else:
            self.chunk = OpenChunk(request, begin, end, images, parts - 1, number)
            self.steps.append(Step(number, ()))
        return number

    def launch_part(self, chunk: OpenChunk) -> int:
        """Note the next part of the chunk that is open as launched; returns its number."""
        number = self._next(DeviceSignal.CHUNK)
        chunk.left, chunk.newest = chunk.left - 1, number
        if chunk.left:
            self.steps.append(Step(number, ()))
        else:
            self.chunk = None
            self.steps.append(Step(number, (chunk.request,), chunk.begin, chunk.end, chunk.images))
        return number

    def drop_chunk(self) -> tuple[Request, ...]:
        """The chunk that is open goes on no more, after a fault; returns whose it was."""
        chunk, self.chunk = self.chunk, None
        return (chunk.request,) if chunk is not None else ()

    def _next(self, signal: DeviceSignal) -> int:
        self.move(signal)
        self._last += 1
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
