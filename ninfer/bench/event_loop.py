"""How long the event loop is kept from its work: ``python -m ninfer.bench.event_loop [--prompt-tokens N] [--json]``.

A prompt is rendered and tokenised on a worker thread and read by a real engine on the device thread, while a probe on
the event loop sleeps for one millisecond again and again. How late it wakes up is how long the loop was blocked: by our
code, by a thread that held the interpreter, or by a busy machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import anyio
import orjson
import torch
from anyio import to_thread

from ninfer.actors.eventlog import EventLog
from ninfer.actors.messages import Finished, GenerationRequest
from ninfer.actors.system import System
from ninfer.artifact.container import Artifact
from ninfer.artifact.tiny import build_tiny
from ninfer.config import EngineSettings, SchedulerSettings, Settings
from ninfer.served import ArtifactBuilder, Served, open_served
from ninfer.types import Sampling

PROBE_S = 0.001
BOUND_S = 0.005
SHARES = (0.5, 0.99, 1.0)
GREEDY = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Delays:
    """How late the probe woke up during one phase, milliseconds."""

    phase: str
    seconds: float
    samples: int
    median_ms: float
    p99_ms: float
    max_ms: float
    above_bound: int


class Probe:
    """Collects delays of the event loop while it runs."""

    def __init__(self) -> None:
        self._late_s: list[float] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Probe the loop while the body runs."""
        self._late_s.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            await anyio.lowlevel.checkpoint()
            yield
            tasks.cancel_scope.cancel()

    async def _run(self) -> None:
        while True:
            begin = time.perf_counter()
            await anyio.sleep(PROBE_S)
            self._late_s.append(time.perf_counter() - begin - PROBE_S)

    def delays(self, phase: str, seconds: float) -> Delays:
        """What was seen since watching began."""
        late = sorted(self._late_s)
        median, p99, most = (late[min(len(late) - 1, int(share * len(late)))] if late else 0.0 for share in SHARES)
        above = sum(value > BOUND_S for value in late)
        return Delays(phase, seconds, len(late), 1e3 * median, 1e3 * p99, 1e3 * most, above)


async def measure(served: Served, settings: Settings, prompt_tokens: int, read_tokens: int) -> list[Delays]:
    """Delays while a prompt of about `prompt_tokens` is tokenised, and while `read_tokens` of it are read."""
    probe = Probe()
    text = _text(served, prompt_tokens)
    async with probe.watching():
        begin = time.perf_counter()
        ids = await to_thread.run_sync(served.model.tokenizer.encode, text)
        tokenised = time.perf_counter() - begin
    delays = [probe.delays(f"tokenise {len(ids)} tokens", tokenised)]
    builder = ArtifactBuilder(served.bound, settings.engine, served.model.tokenizer.id_count)
    system = System(settings.scheduler, builder, served.model.tokenizer, EventLog(None), time.time)
    async with anyio.create_task_group() as tasks:
        ready = anyio.Event()
        tasks.start_soon(system.run, lambda: None, ready.set)
        await ready.wait()
        ticket = await system.gateway.arrive()
        request = GenerationRequest(tuple(ids[:read_tokens]), False, GREEDY, 1, (), (), progress=True)
        async with probe.watching():
            begin = time.perf_counter()
            await ticket.submit(request)
            last = [reply async for reply in ticket.replies][-1]
            seconds = time.perf_counter() - begin
        assert isinstance(last, Finished), last
        delays.append(probe.delays(f"prefill {len(request.prompt_ids)} tokens", seconds))
        await ticket.release()
        system.stop()
    return delays


def _text(served: Served, tokens: int) -> str:
    line = "The quick brown fox jumps over the lazy dog, and then it thinks about 1234567 other things.\n"
    return line * -(-tokens // len(served.model.tokenizer.encode(line)))


def settings_for(artifact: Path, context_tokens: int) -> Settings:
    """A server with one lane and room for the whole prompt."""
    context = -(-context_tokens // 64) * 64 + 64
    settings = Settings(artifact)
    return replace(
        settings,
        engine=replace(EngineSettings(), max_context_tokens=context, kv_capacity_tokens=context),
        scheduler=replace(SchedulerSettings(), max_context_tokens=context),
    )


def run(model: Path | None, prompt_tokens: int, read_tokens: int) -> list[Delays]:
    """Measure with a model of your own or the tiny one."""
    with tempfile.TemporaryDirectory() as folder:
        path = model if model is not None else Path(folder) / "tiny.ninfer"
        if model is None:
            build_tiny(path)
        settings = settings_for(path, read_tokens + 1024)
        with Artifact.open(path) as artifact:
            return anyio.run(measure, open_served(artifact, settings), settings, prompt_tokens, read_tokens)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m ninfer.bench.event_loop", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="an artifact; without one a tiny model is built")
    parser.add_argument("--prompt-tokens", type=int, default=100_000, help="tokens to tokenise (100000)")
    parser.add_argument("--read-tokens", type=int, default=None, help="how many of them to read (all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    read_tokens = options.prompt_tokens if options.read_tokens is None else options.read_tokens
    delays = run(options.model, options.prompt_tokens, read_tokens)
    if options.json:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        report = {"machine": machine, "torch": torch.__version__, "bound_ms": 1e3 * BOUND_S}
        sys.stdout.write(orjson.dumps({**report, "phases": [asdict(phase) for phase in delays]}).decode() + "\n")
        return 0
    print(f"{'phase':28}{'seconds':>9}{'median ms':>11}{'p99 ms':>9}{'max ms':>9}{'above 5 ms':>12}")
    for row in delays:
        times = f"{row.seconds:9.2f}{row.median_ms:11.2f}{row.p99_ms:9.2f}{row.max_ms:9.2f}"
        print(f"{row.phase:28}{times}{row.above_bound:6} of {row.samples}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
