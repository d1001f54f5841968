"""Rounds by themselves, and taken-for-granted depth, with the GPU's engine on the processor's plain routes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION, TextConfig
from ninfer.artifact.frontend import small_frontend
from ninfer.artifact.synth import synthesise
from ninfer.artifact.tiny import tiny_components
from ninfer.bench.ceilings import Ceilings
from ninfer.bench.driver import Driver
from ninfer.bench.engine import Bench, Samples
from ninfer.bench.engine_options import Test as Measured
from ninfer.bench.loading import open_model
from ninfer.bench.rounds import measure_columns, profile_rounds
from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine

SETTINGS = EngineSettings(
    max_context_tokens=192, kv_capacity_tokens=384, lanes=2, prefill_chunk_tokens=64, kv_dtype="int8",
    compute_dtype="bf16",
)  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DeviceEngine, TextConfig]]:
    components = dataclasses.replace(tiny_components(), mtp=None)
    text = dataclasses.replace(
        components.text, layer_types=(LINEAR_ATTENTION, FULL_ATTENTION), heads=2, kv_heads=1, head_dim=256,
        mrope_section=(11, 11, 10),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("models") / "wide.ninfer"
    synthesise(path, dataclasses.replace(components, text=text), "generic_int", small_frontend(), seed=1, name="wide")
    with open_model(path) as model:
        yield DeviceEngine.load(model.bound, SETTINGS, model.tokenizer.id_count), text


def test_a_round_of_columns_costs_more_than_one_column(loaded: tuple[DeviceEngine, TextConfig]) -> None:
    engine, text = loaded
    rows = measure_columns(engine, text, SETTINGS, [(1, 1), (2, 4)], 96, read_ceiling=1e9, repeats=1)
    assert [(row.lanes, row.columns, row.position) for row in rows] == [(1, 1, 96), (2, 4, 96)]
    assert rows[0].of_one_column == 1.0
    assert rows[1].of_one_column == rows[1].us / rows[0].us
    assert rows[1].floor_bytes > rows[0].floor_bytes > engine.weights.round_bytes
    assert all(row.share_of_floor == pytest.approx(row.floor_bytes / 1e9 / (row.us / 1e6)) for row in rows)


def test_a_round_of_columns_stands_where_the_lanes_stand(loaded: tuple[DeviceEngine, TextConfig]) -> None:
    engine, _text = loaded
    driver = Driver(engine, 2, 64)
    driver.read(range(64))
    driver.decode(3)
    round_ = engine.extra_round(2, 4)
    assert round_.lanes.tolist() == [0, 1]
    assert round_.positions.tolist() == [67, 67]
    ids = torch.arange(8, dtype=torch.int32)
    with torch.inference_mode():
        round_.launch(ids)
    first = round_.logits.clone()
    assert first.isfinite().all()
    # Both lanes read the same prompt: the same ids give the same bits.
    with torch.inference_mode():
        round_.launch(ids[:4].repeat(2))
    assert torch.equal(round_.logits[:4], round_.logits[4:])
    assert torch.equal(round_.logits[:4], first[:4])


def test_depth_is_taken_for_granted(loaded: tuple[DeviceEngine, TextConfig]) -> None:
    engine, text = loaded
    ceilings = Ceilings(1e9, 1e9, 0, ())
    bench = Bench(engine, text, SETTINGS, [], engine.weights.round_bytes, ceilings)
    samples = Samples()
    test = Measured(prompt=128, output=3, lanes=2, assumed=True)
    bench.once(test, samples)
    assert samples.prefill == []
    assert engine.logits.isfinite().all()
    row = bench.row(test, samples)
    assert row["assumed_depth"] is True
    assert row["prefill_tok_s"] is None
    driver = Driver(engine, 1, 64)
    driver.assume(engine, 128)
    driver.decode(1)
    # Another depth, another state: what is seen is really there.
    before = engine.logits
    driver.assume(engine, 64)
    driver.decode(1)
    assert not torch.equal(before, engine.logits)


def test_idle_time_lies_between_rounds(loaded: tuple[DeviceEngine, TextConfig]) -> None:
    engine, _text = loaded
    profile = profile_rounds(engine, SETTINGS, lanes=2, rounds=3)
    assert profile.rounds == 3
    assert 0 <= profile.idle_share < 1
    assert profile.gap_us is not None
    assert profile.round_us is not None
