"""The README's programs run as printed, and the model really gives the answers that it shows."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.support.process import Process

README = (Path(__file__).parents[1] / "README.md").read_text()
ADDRESS = "http://127.0.0.1:8080"
# A program, and the block after it if that is what it prints.
PROGRAMS = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", README, re.DOTALL)


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    process = Process()
    process.wait_for("ready: ")
    yield process
    process.process.terminate()
    assert process.end() == 0


def test_programs_print_what_the_readme_shows(server: Process) -> None:
    assert any(shown for _, shown in PROGRAMS)
    for program, shown in PROGRAMS:
        assert ADDRESS in program
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program.replace(ADDRESS, f"http://127.0.0.1:{server.port}"), {})
        assert printed.getvalue().strip()
        if shown:
            assert printed.getvalue() == shown


def test_the_start_names_the_model_that_the_readme_names(server: Process) -> None:
    assert "no model was named: this is the embedded one" in server.console
    (ready,) = (line for line in server.console.splitlines() if "ready: " in line)
    assert "model=ninfer-embedded (the embedded model)" in ready
    (body,) = re.findall(r"curl \S+ -d '(.*?)'", README, re.DOTALL)
    assert orjson.loads(body)["model"] == "ninfer-embedded"
