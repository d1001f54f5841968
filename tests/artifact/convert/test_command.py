"""The command line of ``ninfer-artifact convert``: usage faults, exit status, report (artifact spec, section 12.4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ninfer.artifact import cli
from ninfer.artifact.binder import bind
from ninfer.artifact.container import Artifact
from ninfer.artifact.verify import verify
from tests.support.checkpoints import save_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("command") / "Small-Model"
    save_checkpoint(directory, dtype=torch.bfloat16, tied=True, mtp=True)
    return directory


def convert(checkpoint: Path, out: Path, *words: str) -> int:
    return cli.main(["convert", "--model", str(checkpoint), "--out", str(out), *words])


def test_everything_the_checkpoint_has(checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.ninfer"
    assert convert(checkpoint, out, "--proposal", "--unranked", "--proposal-rows", "40") == 0
    printed = capfd.readouterr()
    assert f"{out}: {out.stat().st_size:,} bytes" in printed.out
    assert printed.err == ""
    assert verify(str(out), values=True) == []
    with Artifact.open(out) as artifact:
        assert bind(artifact, ("text", "mtp", "proposal")).target == "_mall_odel"
        provenance = artifact.directory.provenance
        assert provenance is not None
        assert provenance["recipe"] == "generic_int"
        assert provenance["sources"] == {"base": {"path": str(checkpoint)}}
    report = json.loads(Path(f"{out}.conversion.json").read_text())
    assert report["files"] == [{"name": "m.ninfer", "bytes": out.stat().st_size}]


def test_options_reach_the_artifact(checkpoint: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("x")
    words = ["--recipe", "direct", "--components", "text", "--name", "my-model"]
    words += ["--resource", f"chat_template.jinja={template}", "--max-file-bytes", "200000"]
    assert convert(checkpoint, tmp_path / "m.ninfer", *words) == 0
    with Artifact.open(tmp_path / "m.ninfer") as artifact:
        assert len(artifact.directory.files) > 1
        assert artifact.directory.metadata == {"name": "my-model"}
        assert artifact.directory.components.keys() == {"text"}
        assert artifact.resource("text", "chat_template.jinja") == b"x"


@pytest.mark.parametrize(
    "words",
    [
        ["--recipe", "q2"],
        ["--components", "vision"],
        ["--components", "text,audio"],
        ["--components", "text,text"],
        ["--source", "dflash"],
        ["--source", "base=DIR"],
        ["--resource", "tokenizer.json"],
        ["--proposal"],
        ["--unranked"],
        ["--proposal-rows", "5"],
        ["--proposal", "--unranked", "--proposal-rows", "0"],
        ["--proposal", "--unranked", "--ranking", "FILE"],
        ["--unknown"],
    ],
)
def test_usage_faults(words: list[str], checkpoint: Path, tmp_path: Path) -> None:
    assert convert(checkpoint, tmp_path / "m.ninfer", *words) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_bad_checkpoint_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert convert(tmp_path, tmp_path / "m.ninfer") == 1
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "BAD_SOURCE" in error


def test_limit_too_small(checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert convert(checkpoint, tmp_path / "m.ninfer", "--max-file-bytes", "5000") == 1
    assert "LIMIT_TOO_SMALL" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_target_exists(checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.ninfer.conversion.json").write_text("mine")
    assert convert(checkpoint, tmp_path / "m.ninfer") == 1
    assert "OUTPUT_EXISTS" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.ninfer.conversion.json"]
