"""The crowd: what its clients check, what a log must say, and a small one over a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer.bench import load
from ninfer.bench.load import ends_of, faults_of, kind_of, main, question_of, script, words_of

GOOD: dict[str, Any] = {
    "wrong": [],
    "in_flight": 0,
    "memory_mib": {"begin": 200.0, "middle": 210.0, "end": 211.0, "most": 212.0},
    "files": {"begin": 20, "end": 20},
}
CLOSED = {"open": 0, "twice": 0}


def test_every_client_has_words_and_a_question_of_its_own() -> None:
    lines = list(script(200))[1:]
    for client, line in enumerate(lines):
        assert [one for one in lines if one["match"] in question_of(client)] == [line]
        assert line["output"].endswith(words_of(client, kind_of(client)))
    assert len({line["output"] for line in lines}) == 200


def test_ends_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events = [("request_start", 1), ("request_start", 2), ("request_start", 3), ("request_rejected", 4)]
    events += [("request_done", 1), ("request_error", 2), ("request_done", 2)]
    path.write_text("".join(json.dumps({"event": kind, "request": {"request_id": n}}) + "\n" for kind, n in events))
    ends = {"request_rejected": 1, "request_done": 2, "request_error": 1}
    assert ends_of(path) == {"started": 3, "ends": ends, "open": 1, "twice": 1}


@pytest.mark.parametrize(
    ("measured", "log", "fault"),
    [
        ({}, {"open": 2, "twice": 0}, "2 requests are open in the log"),
        ({}, {"open": 0, "twice": 1}, "1 requests are twice in the log"),
        ({"wrong": ["client 1"]}, CLOSED, "1 answers are wrong: ['client 1']"),
        ({"in_flight": 3}, CLOSED, "3 requests are left"),
        ({"memory_mib": {"middle": 210.0, "end": 223.0}}, CLOSED, "memory grew by 13.0 MiB in the second half"),
        ({"files": {"begin": 20, "end": 23}}, CLOSED, "3 more files are open than before"),
    ],
)
def test_what_must_not_be(measured: dict[str, Any], log: dict[str, Any], fault: str) -> None:
    assert faults_of(GOOD, CLOSED) == []
    assert faults_of({**GOOD, **measured}, log) == [fault]


def test_a_small_crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "GREEDY_S", 0.1)
    out = tmp_path / "report.json"
    status = main(["--clients", "10", "--seconds", "1", "--cost-seconds", "1", "--output", str(out)])
    report = json.loads(out.read_text())
    assert (status, report["faults"]) == (0, [])
    assert set(report["ended"]) >= {"reader", "slow", "greedy"}
    assert report["left"] > 0
    assert report["log"]["started"] > sum(report["ended"].values())
    assert report["cost"]["tokens"] > 100
