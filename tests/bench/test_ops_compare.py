"""Measurements of single kernels gathered in one report, and of others as far as a processor goes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from ninfer.artifact.registered import REGISTERED
from ninfer.bench import cli, compare, compare_others, compare_ours, ops
from ninfer.bench.compare import Pair, measured
from ninfer.bench.ops import Op


def module(folder: Path, name: str, body: str) -> Op:
    (folder / f"{name}.py").write_text(f"import json, sys\nfrom pathlib import Path\n{body}\n")
    return Op(name, rows_on_stdout="print" in body)


def test_rows_of_all_modules_in_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"what": "w", "us": 1.5, "share": 0.5}
    found = {
        "good": module(tmp_path, "good_rows", f"Path(sys.argv[2]).write_text(json.dumps([{row}]))"),
        "linear": module(tmp_path, "said_rows", f"print(json.dumps({{'rows': [{ {**row, 'columns': 4} }]}}))"),
        "bad": module(tmp_path, "bad_rows", "sys.exit('it broke')"),
    }
    monkeypatch.setattr(ops, "OPS", found)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = tmp_path / "report.json"
    assert cli.main(["ops", "--output", str(file)]) == 1
    report = json.loads(file.read_text())
    assert [(found["op"], found["us"]) for found in report["rows"]] == [("good", 1.5), ("linear", 1.5)]
    assert report["failures"] == ["bad: it broke"]
    table = capsys.readouterr().out
    assert "w, 4 columns" in table
    assert "50.0%" in table
    assert "FAILED bad: it broke" in table
    assert cli.main(["ops", "--op", "good"]) == 0


def test_every_op_has_its_module() -> None:
    for op in ops.OPS.values():
        assert Path(sys.modules["ninfer.bench"].__path__[0], op.module.rpartition(".")[2] + ".py").is_file()


def test_a_side_that_fails_gives_its_reason_and_the_rest_goes_on() -> None:
    def broken() -> float:
        raise ImportError("no such thing\nsecond line")

    row = measured(Pair("fla", "work", lambda: 2e-6, broken, "them", "a note"))
    assert (row.ours_us, row.other_us) == (2.0, None)
    assert row.note.startswith("a note; other failed: ImportError: no such thing (test_ops_compare.py:")
    table = compare.table([row, dataclasses.replace(row, other_us=5.0)])
    assert "2.50" in table
    assert "second line" not in table


def test_there_is_nothing_to_compare_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--engine-report", "/nowhere"]) == 1
    assert cli.main(["compare"]) == 1
    assert "no GPU" in capsys.readouterr().err


def test_our_side_of_a_whole_model(tmp_path: Path) -> None:
    test = {"lanes": 1, "assumed_depth": False, "prompt_tokens": 1, "round_ms": 4.0, "prefill_tok_s": None}
    long = {**test, "prompt_tokens": 8192, "round_ms": None, "prefill_tok_s": {"mean": 4096.0}}
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"tests": [{**test, "lanes": 8, "round_ms": 1.0}, test, long]}))
    assert compare_ours.engine_s(None, "decode") is None
    assert compare_ours.engine_s(file, "decode") == 0.004
    assert compare_ours.engine_s(file, "prefill") == 2.0
    file.write_text(json.dumps({"tests": [test]}))
    with pytest.raises(LookupError):
        compare_ours.engine_s(file, "prefill")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_four_layers_of_transformers_decode_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = REGISTERED["qwen3_8_27b"].components.text
    small = dataclasses.replace(
        text, hidden_size=64, intermediate_size=64, heads=2, kv_heads=1, head_dim=32, vocab_size=1024,
        gdn_key_heads=1, gdn_value_heads=2, gdn_key_dim=16, gdn_value_dim=16,
    )  # fmt: skip
    calls: list[object] = []

    def once(work: object, repeats: int = 1) -> float:
        calls.append(work())  # type: ignore[operator]
        return 0.5

    monkeypatch.setattr(compare_others, "TEXT", small)
    monkeypatch.setattr(compare_others, "DEVICE", "cpu")
    monkeypatch.setattr(compare_others, "PROMPT_TOKENS", 70)
    monkeypatch.setattr(compare_others, "_eager_s", once)
    assert compare_others.transformers_decode_s() == compare_others.transformers_prefill_s() == 16 * 0.5 + 0.5
    decoded, _head, read, _again = calls
    assert decoded.last_hidden_state.shape == (1, 1, 64)  # type: ignore[attr-defined]
    assert read.last_hidden_state.shape == (1, 70, 64)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["ops", "compare", "serve-path"])
def test_a_picture_that_nobody_draws_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--plot", "a.png"]) == 1
    assert "--plot" in capsys.readouterr().err
