"""Low-bit products against the speed of memory: ``python -m ninfer.bench.linear [--model NAME] [--json]``.

Measures the device's read ceiling, every kind of matrix of the model at several numbers of columns, and all linears of
one token in a single CUDA graph: bare, with what finishes them in launches of its own, and with that in their own
launch. Checks a few rows against float64, that both ways give the same bits, and that the bits of a column do not
depend on the others. Without a GPU it runs the plain route on the `tiny` shapes, to try the command.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata

import torch

from ninfer.bench.linear_stack import MODELS, Run, Stack
from ninfer.kernels.low_bit_linear import ref
from ninfer.kernels.low_bit_linear.buffers import from_columns
from ninfer.kernels.low_bit_linear.op import finish_rows
from ninfer.kernels.low_bit_linear.pack import unpack
from ninfer.kernels.read_sweep.op import STEPS, WARPS, read_sweep

CHECKED_TILES = 4
FALLBACK_PROGRAMS = 64  # without a GPU, where programs only shape the buffers


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. what, columns; launches: of products in the measured graph; us: of one launch, or of the whole
    token; nbytes: weights read in that time; share: of the read ceiling."""

    what: str
    columns: int
    launches: int
    us: float
    nbytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Check:
    what: str
    columns: int
    passed: bool
    detail: str


def timed_s(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of a replay of `work`, captured in a CUDA graph; of a call where there is no GPU."""
    work()
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        return sorted(times)[repeats // 2]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(repeats):
        first, last = _event(), _event()
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        times.append(float(first.elapsed_time(last)) / 1e3)
    return sorted(times)[repeats // 2]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def read_ceiling(device: torch.device, nbytes: int, repeats: int) -> float:
    """Bytes per second of the best read-only sweep."""
    x = torch.zeros(nbytes // 4, dtype=torch.int32, device=device)
    best = 0.0
    multiprocessors = _multiprocessors(device)
    for step in STEPS:
        for warps in WARPS:
            for per_multiprocessor in (4, 8, 16):
                out = torch.empty(multiprocessors * per_multiprocessor, dtype=torch.int32, device=device)
                seconds = timed_s(lambda: read_sweep(x, out, step, warps), device, repeats)  # noqa: B023
                best = max(best, x.nbytes / seconds)
    return best


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return FALLBACK_PROGRAMS
    from ninfer.kernels.low_bit_linear import triton_launch
    from ninfer.kernels.served.kernels import settle_cache_keys

    settle_cache_keys()
    return triton_launch.default_programs(device)


def measure(stack: Stack, kinds: list[str], columns: list[int], ceiling: float, repeats: int) -> list[Row]:
    """Each kind by itself, then the token."""
    rows = []
    for tokens in columns:
        run = stack.run(tokens)
        for kind in kinds:
            nbytes = sum(weight.nbytes for weight in stack.of_kind(kind)[0])
            for name, work in (
                (f"{kind}, bare", run.multiply),
                (f"{kind}, separate", run.separate),
                (f"{kind}, fused", run.fused),
            ):
                launches = run.one_kind(kind, work)
                seconds = timed_s(lambda: run.one_kind(kind, work), stack.device, repeats) / launches  # noqa: B023
                rows.append(Row(name, tokens, launches, 1e6 * seconds, nbytes, nbytes / seconds / ceiling))
        for name, whole in (
            ("token, bare", run.products),
            ("token, separate", lambda: run.token(fused=False)),  # noqa: B023
            ("token, fused", lambda: run.token(fused=True)),  # noqa: B023
        ):
            seconds = timed_s(whole, stack.device, repeats)
            share = stack.nbytes / seconds / ceiling
            rows.append(Row(name, tokens, len(stack.weights), 1e6 * seconds, stack.nbytes, share))
    return rows


def check(stack: Stack, kinds: list[str], columns: list[int]) -> list[Check]:
    """A few rows of the kinds against float64; bits of the logits across numbers of columns and runs."""
    checks = []
    logits: dict[int, torch.Tensor] = {}
    for tokens in columns:
        run = stack.run(tokens)
        for kind in kinds:
            checks.append(Check(kind, tokens, *_against_float64(run, kind)))
        run.token(fused=True, mixed=True)
        logits[tokens] = run.logits.clone()
        finite = bool(torch.isfinite(run.logits).all())
        for name, fused in (("two runs", True), ("separate launches", False)):
            run.logits.fill_(float("nan"))
            run.token(fused=fused, mixed=True)
            checks.append(Check(name, tokens, torch.equal(run.logits, logits[tokens]) and finite, "bits of logits"))
    widest = max(columns)
    for tokens in columns:
        same = torch.equal(logits[tokens], logits[widest][:tokens])
        checks.append(Check(f"columns inside {widest}", tokens, same, "bits of logits"))
    return checks


def _against_float64(run: Run, kind: str) -> tuple[bool, str]:
    weights = run.stack.of_kind(kind)[0]
    run.multiply(kind, weights)
    x = from_columns(run.columns(kind), run.tokens)
    errors = []
    for weight, sums in zip(weights, run.left[kind], strict=True):
        out = torch.empty(run.tokens, weight.rows, device=run.stack.device)
        finish_rows(sums, run.tokens, None, out)
        for first in (0, weight.words.shape[0] - CHECKED_TILES):
            codes, scales = unpack(weight, first, first + CHECKED_TILES)
            expected = ref.product_ref(x, ref.weight_ref(codes, scales, weight.packing.group))
            got = out[:, first * 16 : first * 16 + expected.shape[1]].double()
            errors.append(float((got - expected).norm() / expected.norm()))
    # Zeros give NaN, and NaN fails.
    return all(error < 1e-5 for error in errors), f"relative error {max(errors):.1e}"


def main(argv: list[str] | None = None) -> int:
    """The command; exit code 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m ninfer.bench.linear", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), help="shapes (qwen3_6_27b; tiny without a GPU)")
    parser.add_argument("--columns", default="1,4,8,16,32", help="numbers of columns (1,4,8,16,32)")
    parser.add_argument("--kinds", help="kinds of launches measured alone (those of a token), such as draft_head")
    parser.add_argument("--repeats", type=int, default=11, help="replays per measurement (11)")
    parser.add_argument("--sweep-mib", type=int, help="memory of the read sweep, MiB (8192; 16 without a GPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    model = options.model or ("qwen3_6_27b" if on_gpu else "tiny")
    columns = [int(text) for text in options.columns.split(",")]
    begin = time.perf_counter()
    ceiling = read_ceiling(device, (options.sweep_mib or (8192 if on_gpu else 16)) << 20, options.repeats)
    stack = Stack(MODELS[model], device, _programs(device))
    kinds = options.kinds.split(",") if options.kinds else list(dict.fromkeys(stack.shapes.order()))
    checks = check(stack, kinds, columns)
    rows = measure(stack, kinds, columns, ceiling, options.repeats)
    report = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "triton": metadata.version("triton") if on_gpu else None,
        "model": model,
        "read_ceiling_tb_s": ceiling / 1e12,
        "floor_ms": 1e3 * stack.nbytes / ceiling,
        "seconds": time.perf_counter() - begin,
        "rows": [asdict(row) for row in rows],
        "checks": [asdict(item) for item in checks],
    }
    if options.json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        _print(report, rows, checks)
    return 0 if all(item.passed for item in checks) else 1


def _print(report: dict[str, object], rows: list[Row], checks: list[Check]) -> None:
    print(f"{report['device']}, torch {report['torch']}, triton {report['triton']}, {report['model']}")
    print(f"read ceiling {report['read_ceiling_tb_s']:.3f} TB/s, floor of a token {report['floor_ms']:.3f} ms")
    print(f"{'what':22}{'columns':>8}{'launches':>10}{'us':>12}{'MB':>10}{'of ceiling':>12}{'of 1 column':>13}")
    first = {row.what: row.us for row in reversed(rows)}
    for row in rows:
        numbers = f"{row.columns:8}{row.launches:10}{row.us:12.2f}{row.nbytes / 1e6:10.1f}{row.share:12.1%}"
        print(f"{row.what:22}{numbers}{row.us / first[row.what]:13.3f}")
    for item in checks:
        print(f"{'pass' if item.passed else 'FAIL'}  {item.what}, {item.columns} columns: {item.detail}")
    print(f"{report['seconds']:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
