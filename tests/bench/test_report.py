"""Statistics as the specification defines them, and reports that replace nothing by accident."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from ninfer.bench import report
from ninfer.bench.report import Output, columns, percentile, percentiles, spread
from ninfer.errors import StartupError
from ninfer.options import OptionError


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"json": False, "output": None, "plot": None, "overwrite": False, **given})


def test_percentiles_interpolate_between_neighbours() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, p) for p in (0, 50, 95, 100)] == [1.0, 2.5, pytest.approx(3.85), 4.0]
    assert percentile([7.0], 99) == 7.0
    assert percentiles(values) == {"mean": 2.5, "p50": 2.5, "p95": pytest.approx(3.85), "p99": pytest.approx(3.97)}
    assert percentiles(values, mean=False) == {
        "p50": 2.5, "p95": pytest.approx(3.85), "p99": pytest.approx(3.97), "max": 4.0
    }  # fmt: skip
    assert percentiles([]) is None


def test_one_value_has_no_deviation() -> None:
    assert spread([2.0]) == {"mean": 2.0, "stdev": None, "min": 2.0, "max": 2.0}
    assert spread([1.0, 3.0]) == {"mean": 2.0, "stdev": pytest.approx(2**0.5), "min": 1.0, "max": 3.0}
    assert spread([]) is None


def test_a_file_is_replaced_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    Output.of(options(output=file)).deliver({"a": 1}, lambda: "table\n")
    assert json.loads(file.read_text()) == {"a": 1}
    assert capsys.readouterr().out == "table\n"
    with pytest.raises(OptionError, match="--overwrite"):
        Output.of(options(output=file))
    Output.of(options(output=file, overwrite=True, json=True)).deliver({"b": 2}, lambda: "table\n")
    assert json.loads(file.read_text()) == json.loads(capsys.readouterr().out) == {"b": 2}


def test_a_picture_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_missing", lambda package: package == "matplotlib")
    with pytest.raises(StartupError, match="matplotlib"):
        Output.of(options(plot=tmp_path / "a.png"))


def test_the_key_is_not_in_a_report() -> None:
    first = report.head("ninfer_cohort_report", ["--api-key", "secret", "--url", "u"])
    assert first["argv"] == ["--api-key", "<redacted>", "--url", "u"]
    assert first["artifact_type"] == "ninfer_cohort_report"
    assert first["schema_version"] == 100


def test_the_processor_has_a_name_and_no_driver() -> None:
    device = report.device_object(torch.device("cpu"))
    assert device["name"] == "cpu"
    assert device["driver"] is None
    assert device["torch"] == torch.__version__


def test_columns_line_up() -> None:
    assert columns([["a", "b"], ["long", "12"]]) == "a      b\nlong  12\n"
    assert columns([]) == ""
