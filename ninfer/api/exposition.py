"""Prometheus text format 0.0.4 as the contract has it: integers as integers, seconds with six decimals (4.4). Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4"
COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

Value = int | float


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: what is added to the series' name, its labels, and an integer count or seconds."""

    value: Value
    labels: Mapping[str, str] | None = None
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric of one kind and all its lines."""

    name: str
    kind: str
    samples: tuple[Sample, ...]


class Histogram:
    """Counts of seconds by upper bound; the bounds ascend, and everything counts below infinity."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a value, or several that are equal."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    def samples(self) -> tuple[Sample, ...]:
        """Cumulative buckets, sum and count."""
        total = 0
        lines = []
        for bound, count in zip((*(f"{bound:g}" for bound in self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(Sample(total, {"le": bound}, "_bucket"))
        return (*lines, Sample(self._sum, suffix="_sum"), Sample(total, suffix="_count"))


def exposition(series: Iterable[Series]) -> bytes:
    """The document."""
    lines: list[str] = []
    for one in series:
        lines.append(f"# TYPE {one.name} {one.kind}")
        lines += (f"{one.name}{sample.suffix}{_labels(sample)} {_number(sample.value)}" for sample in one.samples)
    return "\n".join([*lines, ""]).encode()


def _labels(sample: Sample) -> str:
    if not sample.labels:
        return ""
    return "{" + ",".join(f'{name}="{value}"' for name, value in sample.labels.items()) + "}"


def _number(value: Value) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}"
