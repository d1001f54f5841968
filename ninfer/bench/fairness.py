"""``ninfer-bench fairness``: streams run, a long prompt arrives, a short one right behind it (serving spec, 13.4).

Starts ``ninfer-serve``. Gaps between tokens are those at the clients: before the long prompt, and while it is read. The
prompt is then read once more with nobody streaming (after a change of its first words), which says what sharing the
device costs it.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio

from ninfer.bench.child import server, wait_ready
from ninfer.bench.clients import Answer, ask, served_model
from ninfer.bench.http_client import Target
from ninfer.bench.report import Json, Output, Parser, add_output, apart, columns, head, percentiles
from ninfer.bench.workloads import Overrides, workload


def _parser() -> Parser:
    parser = Parser("ninfer-bench fairness [options] -- [MODEL.ninfer] [options of ninfer-serve]", __doc__)
    add = parser.add_argument
    add("--streams", type=int, default=4, metavar="N", help="streaming clients; the server gets two lanes more (4)")
    add("--prompt-tokens", type=int, default=131072, metavar="N", help="about this long is the long prompt (131072)")
    add("--quiet-seconds", type=float, default=4.0, metavar="S", help="streaming before it arrives (4)")
    add("--start-timeout", type=float, default=300.0, metavar="S", help="until the server is ready (300)")
    add_output(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises NinferError or OSError."""
    own_words, serve = apart(argv)
    options = _parser().parse_args(own_words)
    output = Output.of(options)
    own = ["--max-concurrency", str(options.streams + 2), "--pending-timeout-ms", "600000"]
    with tempfile.TemporaryDirectory(prefix="ninfer-bench-") as folder:
        log = Path(folder, "requests.jsonl")
        with server([*serve, *own], log, None) as (process, target):
            measured = anyio.run(_measure, target, options, process)
    report = {**head("ninfer_fairness_report", argv), **measured}
    output.deliver(report, lambda: table(report))
    return 0


async def _measure(target: Target, options: argparse.Namespace, process: subprocess.Popen[bytes]) -> Json:
    ready_s = await wait_ready(target, process, options.start_timeout)
    model = await served_model(target)
    fields = {"model": model["id"], "temperature": 0}
    stream = workload("generation_1k", Overrides(None, 4096, fields))
    long = workload("prefill", Overrides(options.prompt_tokens, 4, fields))
    short = workload("generation_1k", Overrides(None, 8, fields))
    streams = [Answer(number, 0.0) for number in range(options.streams)]
    read, behind, alone = (Answer(100 + number, 0.0) for number in range(3))

    async def send(answer: Answer, body: Mapping[str, object]) -> None:
        answer.sent_at = time.perf_counter()
        await ask(target, body, answer)

    async with anyio.create_task_group() as streaming:
        for answer in streams:
            streaming.start_soon(send, answer, stream(answer.number))
        while not all(answer.arrivals or answer.error for answer in streams):  # noqa: ASYNC110 - lists of moments
            await anyio.sleep(0.01)
        quiet_from = time.perf_counter()
        await anyio.sleep(options.quiet_seconds)
        async with anyio.create_task_group() as arriving:
            arriving.start_soon(send, read, long(read.number))
            await anyio.sleep(0.2)
            arriving.start_soon(send, behind, short(behind.number))
        streaming.cancel_scope.cancel()
    await send(alone, long(alone.number))
    failed = [answer.error for answer in (*streams, read, behind, alone) if answer.error is not None]
    first = read.arrivals[0] if read.arrivals else time.perf_counter()
    return {
        "server": model,
        "settings": {"streams": options.streams, "prompt_tokens": options.prompt_tokens},
        "start_to_ready_s": ready_s,
        "errors": failed[:3],
        "prompt_tokens": read.prompt_tokens,
        "gap_before_ms": _gaps(streams, quiet_from, read.sent_at),
        "gap_during_ms": _gaps(streams, read.sent_at, first),
        "prompt_s": read.ttft_s,
        "prompt_alone_s": alone.ttft_s,
        "prompt_cached_tokens": read.cached_tokens,
        "short_ttft_s": behind.ttft_s,
    }


def _gaps(answers: Sequence[Answer], begin: float, end: float) -> Any:
    """Percentiles of the gaps that lie between two moments, in milliseconds."""
    gaps = [
        1e3 * (after - before)
        for answer in answers
        for before, after in pairwise(answer.arrivals)
        if begin <= before and after <= end
    ]
    return percentiles(gaps, mean=False)


def table(report: Json) -> str:
    """One measure per line."""

    def gap(name: str, which: str) -> str:
        found: Any = report[name] or {}
        return format(found[which], ".1f") if which in found else "not measured"

    def seconds(name: str) -> str:
        value: Any = report[name]
        return "not measured" if value is None else f"{value:.2f}"

    lines = [
        ["tokens of the long prompt", str(report["prompt_tokens"])],
        ["gap before it, p50 / p99 ms", f"{gap('gap_before_ms', 'p50')} / {gap('gap_before_ms', 'p99')}"],
        ["gap while it is read, p50 / p99 ms", f"{gap('gap_during_ms', 'p50')} / {gap('gap_during_ms', 'p99')}"],
        ["long prompt, s", seconds("prompt_s")],
        ["the same with nobody streaming, s", seconds("prompt_alone_s")],
        ["short request behind it, first token, s", seconds("short_ttft_s")],
        ["errors", str(report["errors"])],
    ]
    return columns(lines)
