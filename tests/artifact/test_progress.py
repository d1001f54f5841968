"""The progress bar is for people: stderr only, and only on a terminal."""

from __future__ import annotations

import sys

import pytest

from ninfer.artifact.progress import progress_bar


def test_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("working") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_shown_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("working") as progress:
        progress(1, 2)
        progress(2, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "working" in err
