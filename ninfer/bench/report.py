"""What every report of ``ninfer-bench`` has in common: its head, its statistics, and where it goes (speculation spec,
14.3 and 15.5)."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import torch

from ninfer.errors import StartupError
from ninfer.options import OptionError, redacted
from ninfer.version import VERSION

SCHEMA_VERSION = 100
Json = dict[str, object]


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line as the other commands do: by an OptionError."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def apart(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's own words, and those behind ``--``, which are the server's."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


@dataclass(frozen=True, slots=True)
class Output:
    """Where a report goes: `as_json` to stdout instead of the table, and to a file if one is named."""

    as_json: bool
    file: Path | None
    plot: Path | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Output:
        """From the options of :func:`add_output`; refuses files that exist before anything is measured."""
        for path in (options.output, options.plot):
            if path is not None and path.exists() and not options.overwrite:
                raise OptionError(f"{path} exists; --overwrite replaces it")
        if options.plot is not None and _missing("matplotlib"):
            raise StartupError("--plot needs matplotlib: pip install 'ninfer[bench]'")
        return cls(options.json, options.output, options.plot)

    def deliver(self, report: Json, table: Callable[[], str]) -> None:
        """Print and write."""
        text = json.dumps(report, indent=1) + "\n"
        if self.file is not None:
            self.file.write_text(text)
        sys.stdout.write(text if self.as_json else table())


def add_output(parser: Parser, *, drawn: bool = False) -> None:
    """The options that say where a report goes; --plot only where the report can be drawn."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the report to this file")
    if drawn:
        parser.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw it (needs matplotlib)")
    else:
        parser.set_defaults(plot=None)
    parser.add_argument("--overwrite", action="store_true", help="replace these files if they exist")


def _missing(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return True
    return False


def head(artifact_type: str, argv: Sequence[str]) -> Json:
    """The first members of a report."""
    return {
        "artifact_type": artifact_type,
        "schema_version": SCHEMA_VERSION,
        "timestamp_unix_ms": time.time_ns() // 1_000_000,
        "version": VERSION,
        "argv": list(redacted(argv)),
    }


def device_object(device: torch.device) -> Json:
    """Name and versions of a device."""
    on_gpu = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if on_gpu else None
    return {
        "name": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "driver": _driver() if on_gpu else None,
        "torch": torch.__version__,
        "triton": None if _missing("triton") else metadata.version("triton"),
    }


def _driver() -> str | None:
    """Version of the driver, from the first line that says it; None where the kernel does not tell."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def spread(values: Sequence[float]) -> Json | None:
    """Mean, sample standard deviation (None for one value), least and most; None for no values."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "stdev": deviation, "min": min(values), "max": max(values)}


def percentile(values: Sequence[float], p: float) -> float:
    """Linear interpolation at (n - 1) p / 100 of the sorted values, of which there is one at least."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * p / 100
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def percentiles(values: Sequence[float], *, mean: bool = True) -> Json | None:
    """Mean or largest beside p50, p95 and p99; None for no values."""
    if not values:
        return None
    points: Json = {f"p{p}": percentile(values, p) for p in (50, 95, 99)}
    return {"mean": statistics.fmean(values), **points} if mean else {**points, "max": max(values)}


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines: the first column to the left, the others to the right."""
    if not rows:
        return ""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"
