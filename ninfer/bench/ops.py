"""``ninfer-bench ops``: the measurements of single kernels, one after the other, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ninfer.bench.report import Json, Output, Parser, add_output, columns, device_object, head

_TAIL_LINES = 5


@dataclass(frozen=True, slots=True)
class Op:
    """A module with a command of its own. rows_on_stdout: it prints its report instead of writing a list of rows."""

    module: str
    rows_on_stdout: bool = False


OPS = {
    "linear": Op("ninfer.bench.linear", rows_on_stdout=True),
    "chunks": Op("ninfer.bench.linear_chunks", rows_on_stdout=True),
    "dequantise": Op("ninfer.bench.linear_dequantise"),
    "attention": Op("ninfer.bench.kernels_attention"),
    "gdn": Op("ninfer.bench.kernels_gdn"),
}


def main(argv: Sequence[str]) -> int:
    """The subcommand; status 1 if one of the measurements failed."""
    parser = Parser("ninfer-bench ops", __doc__)
    parser.add_argument("--op", action="append", choices=sorted(OPS), help="only this one; repeatable (all)")
    add_output(parser)
    options = parser.parse_args(argv)
    output = Output.of(options)
    rows: list[Json] = []
    failures: list[str] = []
    for name in options.op or sorted(OPS):
        try:
            rows += [{"op": name, **row} for row in measure(OPS[name])]
        except (subprocess.CalledProcessError, ValueError, OSError) as error:
            failures.append(f"{name}: {reason(error)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    report = {
        **head("ninfer_ops_report", argv),
        "device": device_object(device),
        "rows": rows,
        "failures": failures,
    }
    output.deliver(report, lambda: table(rows, failures))
    return 1 if failures else 0


def measure(op: Op) -> list[dict[str, Any]]:
    """The rows of one module's command. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        more = ["--json"] if op.rows_on_stdout else ["--json", str(file)]
        done = subprocess.run(
            [sys.executable, "-m", op.module, *more], capture_output=True, text=True, check=True
        )  # fmt: skip
        found = json.loads(done.stdout)["rows"] if op.rows_on_stdout else json.loads(file.read_text())
    return list(found)


def reason(error: Exception) -> str:
    """The last lines that a failed command wrote."""
    if isinstance(error, subprocess.CalledProcessError):
        return "\n".join(str(error.stderr).splitlines()[-_TAIL_LINES:])
    return str(error)


def table(rows: Sequence[Json], failures: Sequence[str]) -> str:
    """What, microseconds, and the share of the ceiling where there is one."""
    cells = [["op", "what", "us", "of ceiling"]]
    for row in rows:
        number, share = row.get("columns"), row.get("share")
        what = f"{row['what']}" + (f", {number} columns" if row["op"] == "linear" else "")
        if row["op"] == "chunks":
            what += f", {row['tokens']} tokens, {row['way']}"
        cells.append([str(row["op"]), what, f"{row['us']:.1f}", f"{share:.1%}" if isinstance(share, float) else ""])
    return columns(cells) + "".join(f"FAILED {failure}\n" for failure in failures)
