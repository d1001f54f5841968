"""What the scheduler's decisions take: ``ninfer-bench scheduling [--lanes N] [--depth N] [--json]``.

Time of `handle`, the whole of what is decided on an event: one that lands a round of lanes that all draw
behind long prompts and launches another; and the longest of those by which a prompt as long as the pool is admitted
when a finished session has filled it. No engine is behind it: steps land as soon as they are asked for.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ninfer.bench.report import Parser, columns, percentile
from ninfer.config import SchedulerSettings
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.step import PAGE_TOKENS, pages_for


@dataclass
class Server:
    """A machine that serves, and the seconds that each event has taken."""

    machine: Scheduler
    seconds: list[float] = field(default_factory=list)
    flight: deque[cmd.StartChunk | cmd.StartRound] = field(default_factory=deque)
    requests: int = 0

    def send(self, event: ev.Event) -> None:
        """Have an event handled."""
        begin = time.perf_counter()
        commands = self.machine.handle(event, 0.0)
        self.seconds.append(time.perf_counter() - begin)
        self.flight.extend(c for c in commands if isinstance(c, cmd.StartChunk | cmd.StartRound))

    def ask(self, history: str, prompt: int, limit: int) -> int:
        """A prepared request for a history that no other name has; returns its number."""
        self.requests += 1
        self.send(ev.Arrived(self.requests))
        blocks = tuple(f"{history} {block}" for block in range(prompt // PAGE_TOKENS))
        self.send(ev.Prepared(self.requests, prompt, limit, blocks))
        return self.requests

    def land(self) -> None:
        """The oldest step lands."""
        step = self.flight.popleft()
        if isinstance(step, cmd.StartChunk):
            self.send(ev.ChunkLanded(step.step, int(step.sample), False, 0.01))
            return
        rows = []
        for row in step.rows:
            filled = (row.position + 2) % PAGE_TOKENS == 0
            name = (f"drawn {row.request_id} {row.position}",) if filled else ()
            rows.append(ev.RowLanded(row.request_id, 1, False, name))
        self.send(ev.RoundLanded(step.step, tuple(rows), 0.01))


def serving(lanes: int, depth: int, pages: int, host_pages: int) -> Server:
    """A server that is ready."""
    settings = SchedulerSettings(
        lanes=lanes, max_context_tokens=2 * depth, prefill_chunk_tokens=8192, max_pending=64, images=32,
        host_pages=host_pages,
    )  # fmt: skip
    server = Server(Scheduler(settings))
    for event in (ev.PlanMade(1, 2, ""), ev.ModelLoaded(1, 2, pages, "", True, (1,), True), ev.WarmedUp()):
        server.send(event)
    return server


def rounds(lanes: int, depth: int, count: int) -> list[float]:
    """Seconds of each of so many events that land a full round."""
    server = serving(lanes, depth, lanes * pages_for(2 * depth), 0)
    for lane in range(lanes):
        server.ask(f"lane {lane}", depth, depth)
    while not (isinstance(server.flight[0], cmd.StartRound) and len(server.flight[0].rows) == lanes):
        server.land()
    server.seconds.clear()
    for _ in range(count):
        server.land()
    return server.seconds


def admissions(depth: int, host_pages: int, count: int) -> list[float]:
    """Seconds of the longest event of so many requests, each as long as the pool, which the one before has filled."""
    server = serving(1, depth, pages_for(2 * depth), host_pages)
    longest = []
    for number in range(count + 2):
        server.seconds.clear()
        request = server.ask(f"history {number}", 2 * depth - 1, 1)
        longest.append(max(server.seconds))
        while server.flight:
            server.land()
        server.send(ev.Released(request))
    return longest[2:]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser("ninfer-bench scheduling [options]", __doc__)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--depth", type=int, default=65_536, help="tokens of each prompt; the pool has twice as many")
    parser.add_argument("--count", type=int, default=2000, help="rounds that are landed")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    options = parser.parse_args(argv)
    few = max(5, options.count // 100)
    host_pages = pages_for(2 * options.depth)
    measured = {
        f"a round of {options.lanes} lanes": rounds(options.lanes, options.depth, options.count),
        "a request takes the whole pool": admissions(options.depth, 0, few),
        "the same, with a full cache in host memory": admissions(options.depth, host_pages, few),
    }
    report = {
        name: {
            "p50_us": 1e6 * percentile(seconds, 50),
            "p99_us": 1e6 * percentile(seconds, 99),
            "max_us": 1e6 * max(seconds),
        }
        for name, seconds in measured.items()
    }
    if options.json:
        print(json.dumps(report, indent=1))
        return 0
    lines = [(name, *(f"{value:.0f}" for value in row.values())) for name, row in report.items()]
    print(columns([("event", "p50 us", "p99 us", "max us"), *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
