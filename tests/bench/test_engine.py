"""The engine's measurement over the embedded model, on the processor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ninfer.bench import cli, engine
from ninfer.bench.driver import Driver, Pending, ahead
from ninfer.bench.plot import shares
from ninfer.step import DecodeResult, DecodeRound, PrefillChunk, PrefillResult

SHORT = ["-p", "70", "-n", "2", "-pg", "66,2", "--lanes", "2", "-r", "2", "--warmup", "0", "--device", "cpu"]


def test_a_report_of_the_embedded_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    assert cli.main([*SHORT, "--output", str(file), "--interleave"]) == 0
    table = capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["artifact_type"] == "ninfer_bench_report"
    assert report["model"]["model_id"] == "ninfer-embedded"
    assert report["acceptance_representative"] is False
    assert [test["name"] for test in report["tests"]] == ["pp70", "tg2x2", "pp66+tg2x2"]
    for test in report["tests"]:
        assert test["name"] in table
        assert len(test["decode_seconds"]) == (2 if test["output_tokens"] else 0)
        assert len(test["prefill_seconds"]) == (2 if test["prompt_tokens"] > 1 else 0)
        for seconds, rate, tokens in (
            (test["prefill_seconds"], test["prefill_tok_s"], test["prompt_tokens"]),
            (test["decode_seconds"], test["decode_output_tok_s"], test["output_tokens"]),
        ):
            if seconds:
                assert rate["max"] == pytest.approx(test["lanes"] * tokens / min(seconds))
    both = report["tests"][2]
    expected = both["decode_floor"]["seconds"] / (sum(both["decode_seconds"]) / 2)
    assert both["decode_share_of_floor"] == pytest.approx(expected)
    assert (
        both["decode_floor"]["round_bytes"] > both["decode_floor"]["round_design_bytes"] > report["token_weight_bytes"]
    )
    labels = [label for label, _share in shares(report)]
    assert labels == ["pp70 prefill", "tg2x2 decode", "pp66+tg2x2 prefill", "pp66+tg2x2 decode"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["/nowhere.ninfer"], "is not a file"),
        (["-n", "100", "--max-context", "64", "--device", "cpu"], "no room"),
        (["--corpus", "/nowhere", "--device", "cpu"], "cannot be read"),
        (["-p", "0", "-n", "0", "-pg", "64,1", "--assume-depth", "--device", "cpu"], "needs the engine of a GPU"),
        (["--kv-dtype", "int8", "-n", "1", "-p", "0", "--device", "cpu"], "not built for this device"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_faults_are_one_line(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert text in error
    assert error.count("\n") == 1


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.main(["--help"]) == cli.main(["--version"]) == cli.main(["engine", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "serve-path" in shown
    assert "--assume-depth" in shown


@dataclass
class Step:
    """A step of the recording engine."""

    engine: Recording
    plan: PrefillChunk | DecodeRound

    def wait(self) -> DecodeResult:
        self.engine.order.append(("wait", self.plan))
        return DecodeResult((), 0.5)


@dataclass
class Recording:
    """Records launches and waits."""

    order: list[tuple[str, PrefillChunk | DecodeRound]] = field(default_factory=list)

    def launch(self, plan: PrefillChunk | DecodeRound) -> Step:
        self.order.append(("launch", plan))
        return Step(self, plan)

    @property
    def plans(self) -> Sequence[PrefillChunk | DecodeRound]:
        return [plan for what, plan in self.order if what == "launch"]


def test_the_next_step_is_launched_before_the_last_is_waited_for() -> None:
    recording = Recording()
    driver = Driver(recording, lanes=2, chunk_tokens=64)  # type: ignore[arg-type]
    assert driver.decode(3).device_s == 1.5
    assert [what for what, _plan in recording.order] == ["launch", "launch", "wait", "launch", "wait", "wait"]


def test_lanes_take_turns_with_pages_and_start_anew() -> None:
    recording = Recording()
    driver = Driver(recording, lanes=2, chunk_tokens=64)  # type: ignore[arg-type]
    driver.read(range(100))
    driver.decode(29)
    chunks = [plan for plan in recording.plans if isinstance(plan, PrefillChunk)]
    assert [(chunk.lane, chunk.begin, len(chunk.token_ids), chunk.mapping.pages) for chunk in chunks] == [
        (0, 0, 64, (0,)), (0, 64, 36, (2,)), (1, 0, 64, (1,)), (1, 64, 36, (3,))
    ]  # fmt: skip
    assert [chunk.setup is not None for chunk in chunks] == [True, False, True, False]
    assert [chunk.sample for chunk in chunks] == [False, True, False, True]
    rounds = [plan for plan in recording.plans if isinstance(plan, DecodeRound)]
    assert [row.position for plan in rounds for row in plan.rows][:4] == [100, 100, 101, 101]
    assert [row.mapping.pages for row in rounds[-1].rows] == [(4,), (5,)]
    assert all(not row.mapping.pages for plan in rounds[:-1] for row in plan.rows)
    driver.read(range(10))
    assert recording.plans[-1].mapping.pages == (1,)  # type: ignore[union-attr]


def test_iterating_launches() -> None:
    step: Pending[PrefillResult] = Step(Recording(), DecodeRound(()))  # type: ignore[assignment]
    assert ahead([step, step]).device_s == 1.0


def test_a_long_test_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = engine.parse_engine(["-p", "100", "-n", "0", "-r", "3", "--warmup", "2", "--long", "0"])
    bench = engine.Bench(Recording(), None, asked.settings.engine, range(100), 0, None)  # type: ignore[arg-type]
    (samples,) = bench.run(asked)
    assert len(samples.prefill) == 1
    (samples,) = bench.run(engine.parse_engine(["-p", "100", "-n", "0", "-r", "3", "--warmup", "2", "--long", "9"]))
    assert len(samples.prefill) == 3
