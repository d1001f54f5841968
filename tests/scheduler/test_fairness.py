"""What streams feel of a long prompt on a device that takes its time by a law: virtual seconds, no chance in them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from tests.scheduler.test_machine import serving
from tests.support.memory import Part

ROUND_S = 0.006
LONG, SHORT = 131_203, 1_000


class Device:
    """Measured on one H200 with a model of 27 billion weights: matrices are widened for every unit, attention grows
    with depth.
    """

    def __init__(self, parts: tuple[int, ...], *, steps_ahead: int) -> None:
        self.machine = serving(
            20_000, parts=parts, folds_late=True, lanes=8, steps_ahead=steps_ahead, prefill_chunk_tokens=8192,
            max_context_tokens=163_840, max_inter_token_s=0.1,
        )  # fmt: skip
        self.now = 0.0
        self.first: dict[int, float] = {}
        self.gaps: list[tuple[float, float]] = []  # when they ended, and how long they were
        self._last: dict[int, float] = {}
        self._flight: deque[cmd.StartChunk | cmd.StartRound | Part] = deque()
        self._chunk: cmd.StartChunk | None = None

    def ask(self, prompt: int, limit: int) -> int:
        known = set(self.machine.requests)
        self._send(ev.Arrived(1))
        (number,) = set(self.machine.requests) - known
        self._send(ev.Prepared(number, prompt, limit))
        return number

    def land(self) -> None:
        step = self._flight.popleft()
        if isinstance(step, cmd.StartRound):
            self.now += ROUND_S
            for row in step.rows:
                self.gaps.append((self.now, self.now - self._last[row.request_id]))
                self._last[row.request_id] = self.now
            rows = tuple(ev.RowLanded(row.request_id, 1, False) for row in step.rows)
            self._send(ev.RoundLanded(step.step, rows, ROUND_S))
            return
        assert self._chunk is not None
        chunk = step if isinstance(step, cmd.StartChunk) else self._chunk
        tokens = chunk.end - chunk.begin
        seconds = 0.046 + tokens * (82e-6 + 1.05e-9 * (chunk.begin + tokens / 2))
        self.now += seconds / chunk.parts
        if isinstance(step, Part):
            self._send(ev.PartLanded(step.step, seconds / chunk.parts))
            return
        if chunk.sample:
            self.first[chunk.request_id] = self._last[chunk.request_id] = self.now
        self._send(ev.ChunkLanded(step.step, int(chunk.sample), False, seconds / chunk.parts))

    def _send(self, event: ev.Event) -> None:
        for command in self.machine.handle(event, self.now):
            match command:
                case cmd.StartChunk():
                    self._chunk = command
                    self._flight.append(command if command.parts == 1 else Part(command.step))
                case cmd.ContinueChunk():
                    assert self._chunk is not None
                    whole = replace(self._chunk, step=command.step)
                    self._flight.append(whole if command.last else Part(command.step))
                case cmd.StartRound():
                    self._flight.append(command)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_long_prompt_beside_streams_keeps_the_bound_and_most_of_its_speed(steps_ahead: int) -> None:
    device = Device((1, 2, 4, 8, 16), steps_ahead=steps_ahead)
    for _ in range(4):
        device.ask(60, 10_000)
    while device.now < 2.0:
        device.land()
    arrived = device.now
    long = device.ask(LONG, 4)
    while device.now < arrived + 0.2:
        device.land()
    asked = device.now
    short = device.ask(SHORT, 8)
    while long not in device.first:
        device.land()
    assert max(gap for ended, gap in device.gaps if ended > arrived) < 0.09
    assert device.first[short] - asked < 0.5
    # Alone it takes 20.5 s in units of 8,192.
    assert device.first[long] - arrived < 27


def test_without_parts_the_bound_is_kept_where_one_page_keeps_it() -> None:
    device = Device((1,), steps_ahead=1)
    for _ in range(4):
        device.ask(60, 10_000)
    while device.now < 2.0:
        device.land()
    arrived = device.now
    long = device.ask(8_000, 4)
    while long not in device.first:
        device.land()
    assert max(gap for ended, gap in device.gaps if ended > arrived) < 0.1
