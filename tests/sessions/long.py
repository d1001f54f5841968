"""Many histories in several processes: ``python -m tests.sessions.long --processes 16 --seconds 540``.

It stops when all are done, or when the time is over and those that were begun have ended; then it says with which
``--first`` to go on. What fails is written to a file at once, with the options that play it again.
It needs torch, numpy, tokenizers and what the server imports, and nothing of the tests' own packages.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any, TextIO

import torch

from tests.sessions.histories import HISTORIES, InUse
from tests.sessions.worlds import World, embedded, small

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

IN_CI = 2000  # those of every run of the tests come first
WORLDS = {"embedded": embedded, "small": small}
PROGRESS_S = 15.0


@dataclass(frozen=True)
class Played:
    """The histories of one server; `failure` is empty if every answer was right."""

    server: int
    events: Counter[str]
    failure: str = ""


def play(world: World, server: int) -> Played:
    """The histories of one server. A fault of any kind is a failure of theirs."""
    in_use = InUse(world, server)
    try:
        in_use.play()
    except Exception:
        return Played(server, in_use.events, traceback.format_exc(limit=-4))
    return Played(server, in_use.events)


@dataclass
class Tally:
    """What came back: of all servers below `gapless`, and of `ahead`, which are done already."""

    gapless: int
    done: int = 0
    failed: list[int] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    ahead: set[int] = field(default_factory=set)

    def add(self, played: Played) -> None:
        """Count one more."""
        self.done += 1
        self.events.update(played.events)
        if played.failure:
            self.failed.append(played.server)
        self.ahead.add(played.server)
        while self.gapless in self.ahead:
            self.ahead.remove(self.gapless)
            self.gapless += 1

    def line(self, seconds: float) -> str:
        """For people."""
        done, failed = self.done * HISTORIES, len(self.failed)
        where = f"all below {self.gapless * HISTORIES} done"
        return f"{seconds:.0f} s: {done} histories done, {failed} servers of {HISTORIES} with failures, {where}"


def _work(name: str, turn: Any, end: int, until: float, results: Queue[Played]) -> None:
    """Take servers in turn, until there are no more or the time is over (the wall clock, which processes share)."""
    torch.set_num_threads(1)
    world = WORLDS[name]()
    while time.time() < until:
        with turn.get_lock():
            server = turn.value
            turn.value += 1
        if server >= end:
            return
        results.put(play(world, server))


def run(name: str, servers: range, processes: int, seconds: float, failures: Path, out: TextIO) -> Tally:
    """Play the histories of `servers`; failures are appended to a file as they come."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    turn = context.Value("q", servers.start)
    results: Queue[Played] = context.Queue()
    begin = time.time()
    arguments = (name, turn, servers.stop, begin + seconds, results)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    tally, told = Tally(servers.start), begin
    while True:
        alive = any(worker.is_alive() for worker in workers)  # asked first: what it has put comes out below
        try:
            played = results.get(timeout=1)
        except Empty:
            if not alive:
                break
            continue
        tally.add(played)
        if played.failure:
            with failures.open("a") as file:
                file.write(f"--world {name} --first {played.server * HISTORIES} --histories {HISTORIES}\n")
                file.write(f"{played.failure}\n")
        if time.time() - told > PROGRESS_S:
            told = time.time()
            out.write(tally.line(told - begin) + "\n")
            out.flush()
    out.write(tally.line(time.time() - begin) + "\n")
    if broken := [worker.exitcode for worker in workers if worker.exitcode]:
        out.write(f"{len(broken)} processes ended early, with status {broken}\n")
    return tally


def conclusion(tally: Tally, servers: range, failures: Path) -> tuple[list[str], int]:
    """What is said at the end, and the exit status: 0 for all right, 1 for a failure, 3 for not all played."""
    lines = ["happened: " + ", ".join(f"{event} {count}" for event, count in sorted(tally.events.items()))]
    if tally.failed:
        lines.append(f"failed: those from {[server * HISTORIES for server in tally.failed]} on; see {failures}")
    left = servers.stop - tally.gapless
    if left:
        lines.append(f"not all played: go on with --first {tally.gapless * HISTORIES} --histories {left * HISTORIES}")
    return lines, 1 if tally.failed else 3 if left else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Play histories as the options say; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.sessions.long", description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--histories", type=int, default=50_000, metavar="N", help="how many (50000)")
    add("--first", type=int, default=IN_CI, metavar="N", help=f"number of the first one ({IN_CI})")
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="at a time (one a core)")
    add("--seconds", type=float, default=86400.0, metavar="S", help="begin nothing after these (a day)")
    add("--world", choices=sorted(WORLDS), default="embedded", help="the model (embedded)")
    add("--failures", type=Path, default=Path("failing-histories.txt"), metavar="FILE", help="failures go there")
    options = parser.parse_args(argv)
    servers = range(options.first // HISTORIES, -(-(options.first + options.histories) // HISTORIES))
    tally = run(options.world, servers, options.processes, options.seconds, options.failures, sys.stdout)
    lines, status = conclusion(tally, servers, options.failures)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
