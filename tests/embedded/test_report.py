"""The pages about the embedded model show what the records hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.embedded import ARTIFACT, report

STALE = "run python -m ninfer.embedded.report"


@pytest.mark.parametrize("page", report.PAGES, ids=lambda page: page.name)
def test_pages_match_the_records(page: Path) -> None:
    text = page.read_text()
    assert "<!-- engine -->" in text
    assert report.filled(text, report.sections()) == text, STALE


def test_the_picture_matches_the_records() -> None:
    assert report.PICTURE.read_text() == report.loss_picture(report.read_training()), STALE


def test_only_marked_parts_are_replaced() -> None:
    page = "a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\n<!-- end -->\nc"
    assert report.filled(page, {"one": "1", "two": "2"}) == (
        "a\n<!-- one -->\n1\n<!-- end -->\nb\n<!-- two -->\n2\n<!-- end -->\nc"
    )


def test_a_missed_bound_is_shown_as_such() -> None:
    rows = {
        "addition": {"value": 0.5, "bound": 0.9, "passed": False},
        "rise of perplexity by quantisation": {"value": 0.01, "bound": 0.03, "passed": True},
    }
    lines = report.engine_table({"seed": 3, "cases": 8, "rows": rows}).splitlines()
    assert lines[0] == "Seed 3, 8 cases of each task."
    assert lines[-2:] == [
        "| addition | 0.500 | at least 0.90 | **failed** |",
        "| rise of perplexity by quantisation | 0.010 | at most 0.03 | passed |",
    ]


def test_the_training_run_met_every_bound_that_it_measured() -> None:
    """The stored weights, by the issue's table; the fact that is absent is shown there but not demanded."""
    stored = json.loads(report.TRAINED.read_text())["stored"]
    trained = json.loads(report.TRAINED.read_text())["trained"]
    least = {"one fact from 8k tokens": 0.9, "one fact from 16k tokens": 0.8, "five facts from 4k tokens": 0.8}
    for name, value in stored.items():
        if name.startswith("perplexity"):
            assert value <= 1.03 * trained[name]
        elif name.startswith("acceptance"):
            assert value >= (0.75 if name.endswith("structured") else 0.45)
        elif name != "fact that is absent":
            assert value >= least.get(name, 0.95)


def test_the_artifact_is_small() -> None:
    assert ARTIFACT.stat().st_size <= 20_000_000
