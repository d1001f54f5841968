"""``ninfer-bench serve-path``: start ``ninfer-serve``, stream from it, and see what HTTP costs.

Measured while every client is being answered and nobody's prompt is read: tokens per second from the server's request
log, idle time of the device from its event log, gaps between events at the clients. Idle is what the time between two
rounds' landings has beyond the time that the device was busy with the round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from ninfer.bench.child import server, wait_ready
from ninfer.bench.clients import Answer, ask, served_model
from ninfer.bench.http_client import Target
from ninfer.bench.report import Json, Output, Parser, add_output, apart, columns, head, percentiles
from ninfer.bench.workloads import Overrides, workload
from ninfer.options import OptionError


def _parser() -> Parser:
    parser = Parser("ninfer-bench serve-path [options] -- [MODEL.ninfer] [options of ninfer-serve]", __doc__)
    add = parser.add_argument
    add("--clients", type=int, default=8, metavar="N", help="streams at once; --max-concurrency of the server (8)")
    add("--seconds", type=float, default=20.0, metavar="S", help="how long to stream (20)")
    add(
        "--max-tokens",
        type=int,
        default=1024,
        metavar="N",
        help="length of an answer; the next begins behind it (1024)",
    )
    add("--start-timeout", type=float, default=300.0, metavar="S", help="until the server is ready (300)")
    add("--interval-ms", type=int, default=1000, metavar="N", help="of the server's records (1000)")
    add("--no-event-log", action="store_true", help="do without the event log, and without idle time")
    add("--engine-rate", type=float, metavar="TOK/S", help="decode rate of the engine alone, to compare with")
    add("--engine-report", type=Path, metavar="FILE", help="take it from a report of ninfer-bench engine")
    add_output(parser)
    return parser


@dataclass(frozen=True, slots=True)
class Steady:
    """What the server's logs say of the times when all clients were decoding and nothing else went on.

    tok_s          committed tokens per second over whole intervals; None if there was no such interval
    idle_share     of the device, between landings of rounds; None without an event log
    round_ms       that the device needed, mean
    """

    intervals: int
    tok_s: float | None
    rounds: int
    idle_share: float | None
    round_ms: float | None


def steady(request_log: Path, event_log: Path | None, clients: int) -> Steady:
    """Read the logs of a server that has ended."""
    rates = []
    for record in _records(request_log):
        if record.get("event") != "throughput":
            continue
        whole = record["scheduler"]["waiting"] == 0 and record["tokens"]["computed_prefill"] == 0
        if whole and record["decode_batch"]["average_size"] == clients:
            rates.append((record["tokens"]["committed_decode"], record["interval_seconds"]))
    tokens, seconds = sum(count for count, _ in rates), sum(interval for _, interval in rates)
    spans, busy = _between_rounds(event_log, clients) if event_log is not None else ([], [])
    return Steady(
        intervals=len(rates),
        tok_s=tokens / seconds if seconds else None,
        rounds=len(busy),
        idle_share=max(0.0, 1 - sum(busy) / sum(spans)) if spans else None,
        round_ms=1e3 * statistics.fmean(busy) if busy else None,
    )


def _between_rounds(event_log: Path, clients: int) -> tuple[list[float], list[float]]:
    """Seconds between landings of two rounds of all clients with no other step in between, and the device's seconds
    for the later of them."""
    spans, busy = [], []
    before: float | None = None
    for record in _records(event_log):
        kind = record.get("type")
        if kind == "RoundLanded" and len(record["rows"]) == clients:
            if before is not None:
                spans.append(record["t"] - before)
                busy.append(record["device_s"])
            before = record["t"]
        elif kind in ("PartLanded", "ChunkLanded", "RoundLanded", "StepFailed"):
            before = None
    return spans, busy


def _records(file: Path) -> Iterator[dict[str, Any]]:
    with file.open() as lines:
        for line in lines:
            yield json.loads(line)


def engine_rate(options: argparse.Namespace) -> float | None:
    """Tokens per second of the engine alone with as many lanes, at the depth that is nearest to the answers' middle.
    Raises OptionError if the report has no such test.
    """
    if options.engine_rate is not None:
        return float(options.engine_rate)
    if options.engine_report is None:
        return None
    report = json.loads(options.engine_report.read_text())
    middle = options.max_tokens / 2
    rates = {
        abs(test["prompt_tokens"] + test["output_tokens"] / 2 - middle): test["decode_output_tok_s"]["mean"]
        for test in report["tests"]
        if test["lanes"] == options.clients and test["decode_output_tok_s"] is not None
    }
    if not rates:
        raise OptionError(f"{options.engine_report} has no decoding of {options.clients} lanes")
    return float(rates[min(rates)])


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises NinferError or OSError."""
    own_words, serve = apart(argv)
    options = _parser().parse_args(own_words)
    output = Output.of(options)
    rate = engine_rate(options)
    with tempfile.TemporaryDirectory(prefix="ninfer-bench-") as folder:
        report = _measure(options, serve, rate, Path(folder))
    report = {**head("ninfer_serve_path_report", argv), **report}
    output.deliver(report, lambda: table(report))
    return 0


def _measure(options: argparse.Namespace, server_options: Sequence[str], rate: float | None, folder: Path) -> Json:
    request_log = folder / "requests.jsonl"
    event_log = None if options.no_event_log else folder / "events.jsonl"
    own = ["--max-concurrency", str(options.clients), "--log-stats-interval-ms", str(options.interval_ms)]
    with server([*server_options, *own], request_log, event_log) as (process, target):
        ready_s, model, answers = anyio.run(_drive, target, options, process)
    measured = steady(request_log, event_log, options.clients)
    good = [answer for answer in answers if answer.error is None]
    return {
        "server": model,
        "settings": {"clients": options.clients, "seconds": options.seconds, "max_tokens": options.max_tokens},
        "start_to_ready_s": ready_s,
        "requests": len(answers),
        "errors": len(answers) - len(good),
        "http_tok_s": measured.tok_s,
        "steady_intervals": measured.intervals,
        "engine_tok_s": rate,
        "of_engine": measured.tok_s / rate if measured.tok_s is not None and rate else None,
        "device_idle_share": measured.idle_share,
        "device_idle_source": None if event_log is None else "event log",
        "round_device_ms": measured.round_ms,
        "rounds": measured.rounds,
        "ttft_ms": percentiles([1e3 * answer.ttft_s for answer in answers if answer.ttft_s is not None]),
        "gap_ms": percentiles([1e3 * gap for answer in answers for gap in answer.gaps_s], mean=False),
        "first_errors": sorted({answer.error for answer in answers if answer.error is not None})[:3],
    }


async def _drive(
    target: Target, options: argparse.Namespace, process: subprocess.Popen[bytes]
) -> tuple[float, Json, list[Answer]]:
    """Wait for the server, then stream for the asked time. Returns seconds to ready, the model, what was answered."""
    ready_s = await wait_ready(target, process, options.start_timeout)
    model = await served_model(target)
    body_of = workload("generation_1k", Overrides(None, options.max_tokens, {"model": model["id"], "temperature": 0}))
    answers: list[Answer] = []

    async def client() -> None:
        while True:
            answer = Answer(len(answers), time.perf_counter())
            answers.append(answer)
            await ask(target, body_of(answer.number), answer)
            if answer.error is not None:
                return

    with anyio.move_on_after(options.seconds):
        async with anyio.create_task_group() as tasks:
            for _ in range(options.clients):
                tasks.start_soon(client)
    return ready_s, model, answers


def table(report: Json) -> str:
    """One measure per line."""

    def shown(value: Any, form: str) -> str:
        return "not measured" if value is None else format(value, form)

    gap: Any = report["gap_ms"] or {}
    lines = [
        ["start to ready, s", shown(report["start_to_ready_s"], ".1f")],
        ["decode over HTTP, tok/s", shown(report["http_tok_s"], ".1f")],
        ["engine alone, tok/s", shown(report["engine_tok_s"], ".1f")],
        ["of the engine", shown(report["of_engine"], ".1%")],
        ["device idle between rounds", shown(report["device_idle_share"], ".2%")],
        ["round on the device, ms", shown(report["round_device_ms"], ".3f")],
        ["gap between events, p50 ms", shown(gap.get("p50"), ".2f")],
        ["gap between events, p99 ms", shown(gap.get("p99"), ".2f")],
        ["requests, errors", f"{report['requests']}, {report['errors']}"],
    ]
    return columns(lines)
