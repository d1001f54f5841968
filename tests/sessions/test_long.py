"""The run of many histories: what it counts, what it says of failures, where it goes on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.sessions import long
from tests.sessions.long import Played, Tally, conclusion, main, play
from tests.sessions.worlds import World, small


@dataclass
class Wrong(World):
    """A world whose cold server says something else of long prompts."""

    def cold(self, prompt: tuple[int, ...], limit: int) -> tuple[int, ...]:
        answer = super().cold(prompt, limit)
        return answer if len(prompt) < 100 else (answer[0] + 1, *answer[1:])


def test_a_wrong_answer_is_a_failure_that_comes_again() -> None:
    torch.set_num_threads(1)
    right = small()
    wrong = Wrong(right.load, right.vocabulary, right.text, right.preambles, right.messages, right.limits)
    first, again = play(wrong, 0), play(wrong, 0)
    assert first.failure.splitlines()[-1].startswith("AssertionError: (")
    assert first.failure.splitlines()[-1] == again.failure.splitlines()[-1]
    assert first.events == again.events  # whatever is known of the world by now
    assert play(right, 0).failure == ""


def test_a_tally_knows_below_which_server_all_are_done() -> None:
    tally = Tally(5)
    for server, failure in ((6, ""), (7, "why"), (9, "")):
        tally.add(Played(server, Counter(requests=3), failure))
    assert (tally.gapless, tally.done, tally.failed) == (5, 3, [7])
    tally.add(Played(5, Counter(requests=1)))
    assert (tally.gapless, tally.ahead, tally.events["requests"]) == (8, {9}, 10)
    assert tally.line(12.0) == "12 s: 40 histories done, 1 servers of 10 with failures, all below 80 done"


def test_processes_play_what_they_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--world", "small", "--processes", "1", "--first", "20", "--failures", str(tmp_path / "failures")]
    assert main([*options, "--histories", "11"]) == 0
    out = capsys.readouterr().out
    assert "20 histories done, 0 servers of 10 with failures, all below 40 done" in out
    assert not list(tmp_path.iterdir())


def test_over_time_it_says_where_to_go_on(tmp_path: Path) -> None:
    tally = Tally(3)
    for server in (3, 5):
        tally.add(Played(server, Counter(left=1)))
    lines, status = conclusion(tally, range(3, 8), tmp_path)
    assert status == 3
    assert lines == ["happened: left 2", "not all played: go on with --first 40 --histories 40"]
    tally.add(Played(4, Counter(), "why"))
    lines, status = conclusion(tally, range(3, 6), tmp_path)
    assert status == 1
    assert lines[1:] == [f"failed: those from [40] on; see {tmp_path}"]


def test_the_long_run_begins_behind_that_of_every_run() -> None:
    assert long.IN_CI % long.HISTORIES == 0
