"""Prints `docs/state-machines.md` from the tables: ``python -m ninfer.scheduler.pictures > docs/state-machines.md``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from ninfer.scheduler import transitions as t

S = TypeVar("S", bound=Enum)
G = TypeVar("G", bound=Enum)

HEAD = """# State machines

Printed from `ninfer/scheduler/transitions.py` by `python -m ninfer.scheduler.pictures`; do not edit. A step that is not
listed is illegal and raises `IllegalTransition`.
"""


def comments(states: type[Enum]) -> dict[str, str]:
    """What each state owns, from the comment behind it in the source."""
    return dict(re.findall(r"^\s+(\w+) = auto\(\)  # (.+)$", inspect.getsource(states), re.MULTILINE))


def section(title: str, states: type[S], table: Mapping[tuple[S, G], S]) -> str:
    """One machine: what its states own, and a diagram of its steps."""
    owns = comments(states)
    lines = [f"## {title}", "", inspect.getdoc(states) or "", "", "| state | owns |", "|---|---|"]
    lines += [f"| `{state.name}` | {owns.get(state.name, '')} |" for state in states]
    lines += ["", "```mermaid", "stateDiagram-v2"]
    lines += [f"    {before.name} --> {after.name}: {signal.name}" for (before, signal), after in table.items()]
    return "\n".join([*lines, "```", ""])


def document() -> str:
    """The whole page."""
    parts = [
        HEAD,
        section("Process", t.Lifecycle, t.LIFECYCLE),
        section("Request", t.RequestState, t.REQUEST),
        section("Lane", t.LaneState, t.LANE),
        section("Device", t.DeviceState, t.DEVICE),
    ]
    return "\n".join(parts)


if __name__ == "__main__":  # pragma: no cover
    sys.stdout.write(document())
