"""Triton decides at import whether it interprets, hence a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")

CASES = Path(__file__).with_name("interpreted.py")


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_triton_routes_on_a_cpu(marked: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marked]
    command = [sys.executable, "-m", "pytest", *options, str(CASES)]
    done = subprocess.run(command, env=environment, cwd=CASES.parents[3], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
