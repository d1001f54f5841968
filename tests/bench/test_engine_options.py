"""What the command line of the engine's measurement means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.bench.engine_options import Test as Measured
from ninfer.bench.engine_options import parse_engine
from ninfer.options import OptionError


def test_the_defaults_are_those_of_the_contract() -> None:
    asked = parse_engine(["model.ninfer"])
    assert [test.name for test in asked.tests] == ["pp512", "tg128"]
    assert (asked.repetitions, asked.warmup, asked.interleave) == (5, 1, False)
    engine = asked.settings.engine
    assert asked.settings.artifact == Path("model.ninfer")
    assert (engine.max_context_tokens, engine.kv_capacity_tokens, engine.lanes) == (576, 576, 1)
    assert (engine.prefill_chunk_tokens, engine.kv_dtype) == (1024, "bf16")


def test_tests_lanes_and_sizes() -> None:
    asked = parse_engine(
        ["--kv-dtype", "int8", "-p", "64,1000", "-n", "16", "-pg", "2048,32", "--lanes", "1,8", "m", "--columns", "4,4"]
    )
    assert [test.name for test in asked.tests] == [
        "pp64", "pp1000", "tg16", "tg16x8", "pp2048+tg32", "pp2048+tg32x8"
    ]  # fmt: skip
    assert asked.columns == ((4, 4),)
    engine = asked.settings.engine
    assert (engine.max_context_tokens, engine.lanes, engine.kv_dtype) == (2112, 8, "int8")
    assert engine.kv_capacity_tokens == 8 * 2112


def test_depth_may_be_taken_for_granted() -> None:
    asked = parse_engine(["-p", "0", "-n", "0", "-pg", "131072,128", "--assume-depth", "m"])
    assert asked.tests == (Measured(131072, 128, 1, assumed=True),)
    assert asked.tests[0].name == "tg128@131072"
    assert not asked.tests[0].measures_prefill


def test_options_of_the_server_keep_their_meaning() -> None:
    given = ["m", "--max-context=4096", "--kv-capacity", "auto", "--no-cuda-graph", "--device", "cpu"]
    engine = parse_engine(given).settings.engine
    assert (engine.max_context_tokens, engine.kv_capacity_tokens) == (4096, None)
    assert (engine.cuda_graph, engine.device) == (False, "cpu")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--port", "1"], "--port is an option of ninfer-serve"),
        (["--nonsense"], "unknown option"),
        (["-p", "x"], "integers"),
        (["-p", "-1"], "at least 0"),
        (["-pg", "5"], "two integers"),
        (["-p", "0", "-n", "0"], "nothing to measure"),
        (["--lanes", "9"], "at most 8"),
        (["--columns", "1,17"], "at most 16"),
        (["--column-position", "100", "--columns", "1,1"], "multiple of 64"),
        (["-pg", "100,1", "--assume-depth"], "multiples of 64"),
        (["-r", "0"], "-r must be"),
        (["--max-context", "100"], "leaves no room"),
        (["--lanes", "4", "--max-concurrency=2"], "leaves no room"),
        (["--max-context", "x"], "must be an integer"),
        (["--spec", "mtp"], "measured by python -m ninfer.bench.speculation"),
        (["--vision"], "not built into this version"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said(argv: list[str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse_engine(argv)
