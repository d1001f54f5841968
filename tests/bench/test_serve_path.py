"""A server started, streamed from and stopped; and what its logs say about steady times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.bench import cli
from ninfer.bench.serve_path import Steady, steady, table


def write(file: Path, *records: dict[str, object]) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def throughput(decode: int, seconds: float, size: float | None = 2.0, prefill: int = 0) -> dict[str, object]:
    return {
        "event": "throughput",
        "interval_seconds": seconds,
        "tokens": {"computed_prefill": prefill, "committed_decode": decode},
        "scheduler": {"waiting": 0},
        "decode_batch": {"average_size": size},
    }


def landed(at: float, device_s: float, rows: int = 2, kind: str = "RoundLanded") -> dict[str, object]:
    return {"type": kind, "t": at, "device_s": device_s, "rows": [{}] * rows}


def rated(lanes: int, depth: int, rate: float) -> dict[str, object]:
    return {"lanes": lanes, "prompt_tokens": depth, "output_tokens": 16, "decode_output_tok_s": {"mean": rate}}


def test_only_times_of_decoding_alone_count(tmp_path: Path) -> None:
    requests = write(
        tmp_path / "requests", {"event": "server_start"}, throughput(5, 1.0, prefill=9), throughput(100, 1.0),
        throughput(60, 0.5), throughput(7, 1.0, size=1.5), throughput(0, 1.0, size=None),
    )  # fmt: skip
    events = write(
        tmp_path / "events", {"event": "start", "settings": {}}, landed(0.0, 9.0), landed(1.0, 0.9),
        {"type": "RunRound"}, landed(2.0, 0.7), landed(2.5, 5.0, kind="ChunkLanded"), landed(3.0, 0.1),
        landed(3.5, 0.4), landed(3.6, 0.1, rows=1), landed(4.0, 0.1),
    )  # fmt: skip
    assert steady(requests, events, 2) == Steady(
        intervals=2, tok_s=160 / 1.5, rounds=3, idle_share=pytest.approx(1 - 2.0 / 2.5),
        round_ms=pytest.approx(2000 / 3),
    )  # fmt: skip
    assert steady(requests, None, 2).idle_share is None
    assert steady(write(tmp_path / "none"), None, 2) == Steady(0, None, 0, None, None)


def test_a_server_is_started_measured_and_stopped(tmp_path: Path) -> None:
    tests = [rated(2, depth, rate) for depth, rate in ((1, 70.0), (128, 50.0), (4096, 30.0))]
    engine = write(tmp_path / "engine", {"tests": [*tests, rated(1, 150, 9.0)]})
    file = tmp_path / "report.json"
    words = ["--clients", "2", "--seconds", "3", "--interval-ms", "300", "--max-tokens", "300", "--output", str(file)]
    server = ["--max-context", "512", "--kv-capacity", "1024", "--device", "cpu"]
    assert cli.main(["serve-path", *words, "--engine-report", str(engine), "--", *server]) == 0
    report = json.loads(file.read_text())
    assert report["server"]["id"] == "ninfer-embedded"
    assert report["first_errors"] == []
    assert report["steady_intervals"] > 0
    assert report["of_engine"] == report["http_tok_s"] / 50.0 > 0
    assert 0 <= report["device_idle_share"] < 1
    assert report["start_to_ready_s"] > 0
    assert report["gap_ms"]["p50"] > 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--", "/nowhere.ninfer"], "ended with status 1 before it was ready"),
        (["--engine-report", "/nowhere.json"], "/nowhere.json"),
        (["--clients", "many"], "--clients"),
    ],
    ids=["no model", "no report", "no number"],
)
def test_faults_are_said(words: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve-path", *words]) == 1
    assert text in capfd.readouterr().err.splitlines()[-1]


def test_a_report_must_have_as_many_lanes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "engine", {"tests": [rated(1, 1, 5.0)]})
    assert cli.main(["serve-path", "--engine-report", str(file)]) == 1
    assert "no decoding of 8 lanes" in capsys.readouterr().err


def test_the_table_says_what_was_not_measured() -> None:
    missing = ("engine_tok_s", "of_engine", "device_idle_share", "round_device_ms", "http_tok_s", "gap_ms")
    shown = table({"start_to_ready_s": 1.0, "requests": 3, "errors": 1, **dict.fromkeys(missing)})
    assert shown.count("not measured") == 7
    assert "3, 1" in shown
