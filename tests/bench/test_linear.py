"""The command runs its plain route on tiny shapes; shapes and bytes of the 27B are those of the specification."""

from __future__ import annotations

import orjson
import pytest
import torch

from ninfer.bench import linear, linear_stack
from ninfer.bench.linear_stack import MODELS, Stack
from ninfer.kernels.low_bit_linear.pack import packed_bytes


def test_the_command_checks_measures_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert linear.main(["--model", "tiny", "--columns", "1,20", "--repeats", "1", "--sweep-mib", "1"]) == 0
    table = capsys.readouterr().out
    assert "FAIL" not in table
    for kind in ("gdn", "attention", "output", "gate_up", "down", "head", "token"):
        assert f"{kind}, fused" in table
    assert (
        linear.main(["--columns", "1", "--repeats", "1", "--sweep-mib", "1", "--json", "--kinds", "gate_up,draft_head"])
        == 0
    )
    report = orjson.loads(capsys.readouterr().out)
    assert report["model"] == "tiny"
    kinds = ("gate_up", "draft_head", "token")
    assert {row["what"] for row in report["rows"]} == {
        f"{kind}, {way}" for kind in kinds for way in ("bare", "separate", "fused")
    }
    assert all(item["passed"] for item in report["checks"])


def test_a_column_that_depends_on_another_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(MODELS["tiny"], torch.device("cpu"), programs=8)
    original = linear.finish_rows

    def disturbed(sums: object, tokens: int, norm: object, out: torch.Tensor) -> None:
        original(sums, tokens, norm, out)  # type: ignore[arg-type]
        out += tokens

    monkeypatch.setattr(linear, "finish_rows", disturbed)
    assert not all(item.passed for item in linear.check(stack, ["gdn"], [1, 2]))


def test_products_of_nothing_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(MODELS["tiny"], torch.device("cpu"), programs=8)
    monkeypatch.setattr(linear_stack, "to_columns", lambda x, out: None)
    failed = {item.what for item in linear.check(stack, list(stack.shapes.kinds), [1]) if not item.passed}
    assert failed >= {"gdn", "attention", "gate_up", "head"}


def test_the_27b_reads_what_the_specification_says() -> None:
    shapes = MODELS["qwen3_6_27b"]
    launches = list(shapes.order())
    assert len(launches) == 257
    total = sum(packed_bytes(*shape) for kind in launches for shape in shapes.kinds[kind])
    # model.md 17.2: all MLPs, GDN projections, attention projections, head
    assert total == 9_804_185_600 + 3_507_486_720 + 1_027_604_480 + 993_280_000
