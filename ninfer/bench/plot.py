"""Reports as pictures. The only file that knows matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ninfer.bench.report import Json

_HEIGHT, _WIDTH = 0.42, 9.0  # inches: of a bar, of the picture
REQUIRED, AIM = 0.6, 0.8  # lines to hold a share of the floor against


def shares(report: Json) -> list[tuple[str, float]]:
    """Labels and shares of the floor, in the order of an engine's report."""
    tests: Any = report["tests"]
    found = []
    for test in tests:
        for kind in ("prefill", "decode"):
            if test[f"{kind}_share_of_floor"] is not None:
                found.append((f"{test['name']} {kind}", test[f"{kind}_share_of_floor"]))
    measured: Any = report.get("columns") or []
    found += [(f"round {row['lanes']} x {row['columns']}", row["share_of_floor"]) for row in measured]
    return found


def rates(report: Json) -> list[tuple[str, float]]:
    """Labels and tokens per second, in the order of a cohort's report."""
    waves: Any = report["waves"]
    return [(f"{wave['concurrency']} clients", wave["decode_tok_s"]) for wave in waves if wave["decode_tok_s"]]


def plot_engine(report: Json, file: Path) -> None:
    """Shares of the floor as bars."""
    device: Any = report["device"]
    _bars(shares(report), f"share of the floor, {device['name']}", file, marks=(REQUIRED, AIM))


def plot_cohort(report: Json, file: Path) -> None:
    """Tokens per second as bars."""
    _bars(rates(report), "decoded tokens per second over HTTP", file)


def _bars(values: Sequence[tuple[str, float]], title: str, file: Path, marks: Sequence[float] = ()) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, 1.2 + _HEIGHT * max(1, len(values))), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([label for label, _value in values], [value for _label, value in values])
    axes.bar_label(bars, fmt="%.3g", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    for mark in marks:
        axes.axvline(mark, linestyle=":", color="grey")
    axes.set_title(title)
    figure.savefig(file)
