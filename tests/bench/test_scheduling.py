"""The benchmark of the scheduler's decisions."""

from __future__ import annotations

import json

import pytest

from ninfer.bench.cli import main
from ninfer.bench.scheduling import admissions, rounds, serving
from ninfer.scheduler import commands as cmd
from ninfer.step import pages_for


def test_every_event_is_that_of_a_full_round() -> None:
    assert len(rounds(3, 640, 20)) == 20
    server = serving(2, 640, 2 * pages_for(1280), 0)
    for lane in range(2):
        server.ask(f"lane {lane}", 640, 640)
    seen = []
    for _ in range(80):
        step = server.flight[0]
        if isinstance(step, cmd.StartRound):
            seen.append(len(step.rows))
        server.land()
    assert seen[-70:] == [2] * 70
    server.machine.audit()


def test_a_request_as_long_as_the_pool_takes_all_of_it() -> None:
    assert len(admissions(640, 0, 3)) == 3
    assert len(admissions(640, 20, 3)) == 3


def test_the_command_prints_what_it_has_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduling", "--lanes", "2", "--depth", "640", "--count", "10", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [*report] == [
        "a round of 2 lanes", "a request takes the whole pool", "the same, with a full cache in host memory",
    ]  # fmt: skip
    for row in report.values():
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"]
    assert main(["scheduling", "--lanes", "2", "--depth", "640", "--count", "10"]) == 0
    assert "a round of 2 lanes" in capsys.readouterr().out
