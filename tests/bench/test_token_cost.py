"""The parts of a streamed token's cost are measured, all of them, and add up as they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.bench.token_cost import main


def test_every_part_takes_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer.bench.token_cost.WINDOW_S", 0.3)
    out = tmp_path / "report.json"
    assert main(["--streams", "2", "--tokens", "100", "--repeats", "1", "--output", str(out)]) == 0
    report = json.loads(out.read_text())
    parts = report["us_per_token"]
    assert set(parts) == {"parse", "encode", "write", "ordinary", "system", "actors", "server"}
    assert all(value > 0 for value in parts.values())
    assert report["adds_us"] == pytest.approx(parts["parse"] + parts["encode"] + parts["write"])
    assert parts["write"] < parts["ordinary"], "a piece that is written at once costs less than one that is sent"
