"""``ninfer-bench load``: many clients of several kinds on few lanes of a scripted server, and what it has left of them.

Readers take their answers to the end. Slow ones pause between events, greedy ones ask for much and read nothing for a
while, leavers go away before or in the middle of an answer. Each client's answer has words of its own, so that nothing
can be mixed up unseen. Before the crowd, as many clients as there are lanes stream for a while: the processor time of
the server over their tokens is what everything but the model costs.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from ninfer.bench.child import server, wait_ready
from ninfer.bench.clients import CHAT, served_model
from ninfer.bench.http_client import Refused, Target
from ninfer.bench.report import Json, Output, Parser, add_output, columns, head, percentiles

# Of ten clients: how many are of each kind, and how many words their answers have.
KINDS = (*["reader"] * 6, *["leaver"] * 2, "slow", "greedy")
WORDS = {"reader": 24, "leaver": 60, "slow": 24, "greedy": 300}
SLOW_S = 0.02
GREEDY_S = 1.0
COST = "stream for the cost"
COST_WORDS = 1500
SAMPLE_S = 1.0
PREDICTED = "llamacpp:tokens_predicted_total"


def _parser() -> Parser:
    parser = Parser("ninfer-bench load [options]", __doc__)
    add = parser.add_argument
    add("--clients", type=int, default=500, metavar="N", help="clients at once (500)")
    add("--lanes", type=int, default=8, metavar="N", help="--max-concurrency of the server (8)")
    add("--seconds", type=float, default=600.0, metavar="S", help="how long clients begin anew (600)")
    add("--cost-seconds", type=float, default=10.0, metavar="S", help="how long the cost is measured (10)")
    add("--start-timeout", type=float, default=120.0, metavar="S", help="until the server is ready (120)")
    add_output(parser)
    return parser


@dataclass(slots=True)
class Seen:
    """What the clients saw.

    ended   answers that came to their end, by kind
    left    those that a client did not wait for
    wrong   answers that are not the client's own, or broke off
    """

    ended: Counter[str] = field(default_factory=Counter)
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)


def words_of(client: int, kind: str) -> str:
    """The answer of a client."""
    return " ".join(f"w{client}x{n}" for n in range(WORDS[kind]))


def kind_of(client: int) -> str:
    return KINDS[client % len(KINDS)]


def question_of(client: int) -> str:
    return f"Client {client}."


def script(clients: int) -> Iterator[Mapping[str, str]]:
    """What the server says."""
    yield {"match": COST, "output": "</think>\n\n" + "one two three four " * (COST_WORDS // 4)}
    for client in range(clients):
        yield {"match": question_of(client), "output": f"</think>\n\n{words_of(client, kind_of(client))}"}


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises NinferError or OSError."""
    options = _parser().parse_args(argv)
    output = Output.of(options)
    with tempfile.TemporaryDirectory(prefix="ninfer-bench-") as folder:
        report = {**head("ninfer_load_report", argv), **_measure(options, Path(folder))}
    output.deliver(report, lambda: table(report))
    return 0 if report["passed"] else 1


def _measure(options: Any, folder: Path) -> Json:
    file, request_log = folder / "script.jsonl", folder / "requests.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in script(options.clients)))
    own = ["--engine", "scripted", "--script", str(file), "--max-concurrency", str(options.lanes)]
    own += ["--max-pending-requests", str(max(16, options.clients)), "--pending-timeout-ms", "600000"]
    with server(own, request_log, None) as (process, target):
        measured = anyio.run(_drive, target, options, process)
    log = ends_of(request_log)
    faults = faults_of(measured, log)
    return {**measured, "log": log, "faults": faults, "passed": not faults}


def ends_of(request_log: Path) -> Json:
    """Requests of a log by their ends; `open` began and never ended, `twice` ended more than once."""
    begun: set[int] = set()
    ends: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    with request_log.open() as lines:
        for record in map(json.loads, lines):
            kind = record.get("event")
            if kind == "request_start":
                begun.add(record["request"]["request_id"])
            elif kind in ("request_done", "request_error", "request_rejected"):
                ends[record["request"]["request_id"]] += 1
                kinds[kind] += 1
    return {
        "started": len(begun),
        "ends": dict(kinds),
        "open": len(begun - ends.keys()),
        "twice": sum(count > 1 for count in ends.values()),
    }


def faults_of(measured: Mapping[str, Any], log: Mapping[str, Any]) -> list[str]:
    """What must not be."""
    found = [f"{log[name]} requests are {name} in the log" for name in ("open", "twice") if log[name]]
    found += [f"{len(measured['wrong'])} answers are wrong: {measured['wrong'][:3]}"] if measured["wrong"] else []
    found += [f"{measured['in_flight']} requests are left"] if measured["in_flight"] else []
    growth = measured["memory_mib"]["end"] - measured["memory_mib"]["middle"]
    if growth > 8 + 0.02 * measured["memory_mib"]["middle"]:
        found.append(f"memory grew by {growth:.1f} MiB in the second half")
    if measured["files"]["end"] > measured["files"]["begin"] + 2:
        found.append(f"{measured['files']['end'] - measured['files']['begin']} more files are open than before")
    return found


async def _drive(target: Target, options: Any, process: Any) -> Json:
    await wait_ready(target, process, options.start_timeout)
    model = str((await served_model(target))["id"])
    cost = await _cost(target, model, options, process.pid)
    files = open_files(process.pid)
    seen, memory = Seen(), [resident_mib(process.pid)]
    begun = time.perf_counter()
    end = begun + options.seconds
    async with anyio.create_task_group() as crowd:
        for client in range(options.clients):
            crowd.start_soon(_client, target, model, client, end, seen)
        while time.perf_counter() < end:
            await anyio.sleep(SAMPLE_S)
            memory.append(resident_mib(process.pid))
    wall_s = time.perf_counter() - begun
    left = await _settled(target)
    return {
        "settings": {"clients": options.clients, "lanes": options.lanes, "seconds": options.seconds},
        "cost": cost,
        "wall_s": wall_s,
        "ended": dict(seen.ended),
        "left": seen.left,
        "wrong": seen.wrong,
        "first_token_s": percentiles(seen.first_s),
        "in_flight": left["llamacpp:requests_processing"] + left["llamacpp:requests_deferred"],
        "memory_mib": {
            "begin": memory[0],
            "middle": max(memory[: len(memory) // 2 + 1]),
            "end": resident_mib(process.pid),
            "most": max(memory),
        },
        "files": {"begin": files, "end": open_files(process.pid)},
    }


async def _settled(target: Target) -> dict[str, float]:
    """The metrics, once nothing is in flight or ten seconds have passed."""
    found: dict[str, float] = {}
    with anyio.move_on_after(10):
        while True:
            found = await metrics(target)
            if not found["llamacpp:requests_processing"] + found["llamacpp:requests_deferred"]:
                break
            await anyio.sleep(0.1)
    await anyio.sleep(0.5)  # for the connections to close
    return found


async def _client(target: Target, model: str, client: int, end: float, seen: Seen) -> None:
    kind, turn = kind_of(client), 0
    while time.perf_counter() < end:
        turn += 1
        text, ended = "", False
        leave_at = (client + turn) % 30 if kind == "leaver" else -1
        begun = time.perf_counter()
        try:
            async with aclosing(target.events(CHAT, _body(model, question_of(client)))) as events:
                count = 0
                async for _, data in events:
                    if data == b"[DONE]":
                        ended = True
                        break
                    piece = _piece(data)
                    if piece and not text:
                        seen.first_s.append(time.perf_counter() - begun)
                        if kind == "greedy":
                            await anyio.sleep(GREEDY_S)
                    text += piece
                    count += 1
                    if count > leave_at >= 0:
                        break
                    if kind == "slow":
                        await anyio.sleep(SLOW_S)
        except (OSError, Refused, anyio.BrokenResourceError, ValueError) as error:
            seen.wrong.append(f"client {client}: {error!r}")
            return
        whole = words_of(client, kind)
        if ended and text.strip() == whole:
            seen.ended[kind] += 1
        elif not ended and kind == "leaver" and whole.startswith(text.strip()):
            seen.left += 1
        else:
            seen.wrong.append(f"client {client}: {text[:80]!r}")


def _body(model: str, question: str) -> bytes:
    return json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": question}]}).encode()


def _piece(data: bytes) -> str:
    choices = json.loads(data)["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""


async def _cost(target: Target, model: str, options: Any, pid: int) -> Json:
    """Processor time of the server for each streamed token, with every lane streaming."""
    body = _body(model, COST)

    async def stream() -> None:
        while True:
            async with aclosing(target.parts("POST", CHAT, body)) as parts:
                async for _ in parts:
                    pass

    with anyio.move_on_after(options.cost_seconds + 1):
        async with anyio.create_task_group() as tasks:
            for _ in range(options.lanes):
                tasks.start_soon(stream)
            await anyio.sleep(1)
            before, cpu, at = await metrics(target), cpu_seconds(pid), time.perf_counter()
            await anyio.sleep(options.cost_seconds - 0.5)
            after, cpu_after, at_after = await metrics(target), cpu_seconds(pid), time.perf_counter()
            tasks.cancel_scope.cancel()
    tokens = after[PREDICTED] - before[PREDICTED]
    return {
        "tokens": tokens,
        "tok_s": tokens / (at_after - at),
        "cpu_us_per_token": 1e6 * (cpu_after - cpu) / tokens if tokens else None,
    }


async def metrics(target: Target) -> dict[str, float]:
    lines = (await target.get("/metrics")).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken, in the system and out of it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Memory of a process that is in use."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def open_files(pid: int) -> int:
    """Files and connections that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def table(report: Mapping[str, Any]) -> str:
    """One measure per line."""
    cost, memory, files = report["cost"], report["memory_mib"], report["files"]
    first = report["first_token_s"] or {}
    rows = [
        ("processor time per streamed token", f"{cost['cpu_us_per_token'] or 0:.1f} µs at {cost['tok_s']:.0f} tok/s"),
        ("answers to their end", ", ".join(f"{kind} {count}" for kind, count in sorted(report["ended"].items()))),
        ("answers left by their clients", str(report["left"])),
        ("first text", ", ".join(f"{name} {value:.2f} s" for name, value in first.items())),
        ("requests of the log", f"{report['log']['started']} started, {report['log']['ends']}"),
        ("memory, MiB", ", ".join(f"{name} {value:.1f}" for name, value in memory.items())),
        ("open files", f"{files['begin']} before, {files['end']} behind"),
        ("faults", "; ".join(report["faults"]) or "none"),
    ]
    return columns(rows)
