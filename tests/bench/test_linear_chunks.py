"""The measurement of short chunks on the processor, and what it concludes."""

from __future__ import annotations

import orjson
import pytest
import torch
from torch import Tensor

from ninfer.bench import linear_chunks
from ninfer.bench.linear_chunks import Bits, Ceilings, Findings, Row, chunk_ms, entry_of, look_at, operands
from ninfer.bench.linear_stack import MODELS
from ninfer.kernels.low_bit_linear.chunk_route import Tuned

CPU = torch.device("cpu")
CEILINGS = Ceilings(1e9, 1e10)


def test_the_command_checks_measures_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--tokens", "1,9", "--repeats", "1", "--sweep-mib", "1", "--kinds", "output,gate_up"]
    assert linear_chunks.main(asked) == 0
    table = capsys.readouterr().out
    assert "FAIL" not in table
    assert linear_chunks.main([*asked, "--json"]) == 0
    report = orjson.loads(capsys.readouterr().out)
    assert report["model"] == "tiny"
    assert {(row["what"], row["way"], row["tokens"]) for row in report["rows"]} == {
        (kind, way, tokens)
        for kind in ("output", "gate_up")
        for way in ("library", "in registers")
        for tokens in (1, 9)
    }
    assert len(report["bits"]) == 4
    assert all(item["passed"] for item in report["checks"])
    assert report["chunk"] is None


def test_a_tile_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        linear_chunks.main(["--tile", "8,64,64,3,4"])


@pytest.mark.parametrize("kind", ["gdn", "gate_up"])
def test_wrong_products_are_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(MODELS["tiny"], kind, 5, CPU, torch.Generator().manual_seed(0))
    original = linear_chunks.in_registers

    def disturbed(x: Tensor, matrices: object, extra: object, out: Tensor) -> None:
        original(x, matrices, extra, out)  # type: ignore[arg-type]
        out *= 1 + 2.0**-6 * x.shape[0]

    good = look_at(given, [1, 5], CEILINGS, [], 1)
    assert all(item.passed for item in good.checks)
    monkeypatch.setattr(linear_chunks, "in_registers", disturbed)
    found = look_at(given, [1, 5], CEILINGS, [], 1)
    failed = {(item.what, item.columns) for item in found.checks if not item.passed}
    assert failed == {(f"{kind}, in registers, float64", 5), (f"{kind}, in registers, length", 1)}
    assert not any(item.same for item in found.bits)


def _found(times: dict[tuple[str, int, int], tuple[float, float]], same: bool) -> Findings:
    rows = [
        Row(kind, way, tokens, count, us, 0.5, 1)
        for (kind, count, tokens), both in times.items()
        for way, us in zip(("library", "in registers"), both, strict=True)
    ]
    return Findings(rows, [Bits("down", 16, same, 0, 0.0, 1.0), Bits("down", 64, True, 0, 0.0, 1.0)], [])


def test_the_entry_is_where_the_library_overtakes() -> None:
    times = {
        ("down", 5120, 16): (9.0, 3.0), ("down", 5120, 64): (9.0, 10.0), ("down", 5120, 256): (9.0, 8.0),
        ("output", 5120, 16): (9.0, 3.0), ("output", 5120, 64): (9.0, 3.0), ("output", 5120, 256): (9.0, 8.0),
        ("gate_up", 34816, 16): (9.0, 3.0), ("gate_up", 34816, 64): (9.0, 3.0), ("gate_up", 34816, 256): (9.0, 8.0),
    }  # fmt: skip
    assert entry_of(_found(times, True), [16, 64, 256]) == Tuned(True, ((0, 16), (34816, 256)))
    assert not entry_of(_found(times, False), [16, 64, 256]).same_bits


def test_the_products_of_a_chunk_are_those_of_all_layers() -> None:
    times = {(kind, 8, 4): (1000.0, 500.0) for kind in linear_chunks.KINDS}
    assert chunk_ms(MODELS["tiny"], _found(times, True)) == [
        {"tokens": 4, "library_ms": 16.0, "in_registers_ms": 8.0}
    ]  # fmt: skip
