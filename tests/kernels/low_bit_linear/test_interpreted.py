"""Triton decides at import whether it interprets, hence a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = [Path(__file__).with_name(name) for name in ("interpreted.py", "interpreted_chunk.py")]


def test_the_triton_route_on_a_cpu() -> None:
    _run("not slow")


@pytest.mark.slow
def test_the_triton_route_on_a_cpu_with_more_shapes() -> None:
    _run("slow")


def _run(marked: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        marked,
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *map(str, CASES),
    ]
    done = subprocess.run(
        command, env=environment, cwd=CASES[0].parents[3], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
