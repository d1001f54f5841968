"""Guesses in the GPU engine's rounds, on the processor through the kernels' plain routes, on random weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ninfer.artifact.container import Artifact
from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.device_layout import LIBRARY_BYTES
from ninfer.engine.loading import bind_for
from ninfer.step import DecodeRound, DecodeRow, PageMapping
from ninfer.types import Sampling
from tests.engine.driving import GREEDY, Driver, Generation, assert_same, assert_told, random_prompt
from tests.engine.test_speculation import guessing, knowing
from tests.support.tiny_device import tiny_model

PUBLIC = 500
SETTINGS = EngineSettings(
    device="cpu", max_context_tokens=256, kv_capacity_tokens=768, lanes=3, prefill_chunk_tokens=128,
    kv_dtype="int8", compute_dtype="bf16",
)  # fmt: skip
GUESSING = replace(SETTINGS, drafter="mtp", draft_tokens=3, draft_head=True)
WARM = Sampling(temperature=1.3, top_k=20, top_p=0.95, min_p=0.0, presence_penalty=1.5, frequency_penalty=0.5, seed=77)
LAWS = (GREEDY, WARM, replace(GREEDY, frequency_penalty=1.0))
PROMPTS = [random_prompt(length, PUBLIC, length) for length in (1, 57, 130)]
TOKENS = 24


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    with tiny_model(tmp_path_factory.mktemp("model") / "tiny.ninfer", drafter=True) as opened:
        yield opened


def load(artifact: Artifact, settings: EngineSettings) -> DeviceEngine:
    return DeviceEngine.load(bind_for(artifact, settings), settings, PUBLIC)


def read(driver: Driver, stops: tuple[int, ...] = ()) -> dict[int, Generation]:
    chunks = (64, 128, 64)
    return {lane: driver.prefill(lane, PROMPTS[lane], chunks[lane], LAWS[lane], stops) for lane in range(len(PROMPTS))}


@pytest.fixture(scope="module")
def plain(artifact: Artifact) -> dict[int, Generation]:
    driver = Driver(load(artifact, SETTINGS))  # type: ignore[arg-type]
    generations = read(driver)
    driver.decode(generations, TOKENS - 1)
    return generations


@pytest.fixture(scope="module")
def engine(artifact: Artifact) -> DeviceEngine:
    return load(artifact, GUESSING)


def test_guesses_change_nothing(engine: DeviceEngine, plain: dict[int, Generation]) -> None:
    driver = Driver(engine, seed=3)  # type: ignore[arg-type]
    generations = read(driver)
    drawn = driver.speculate(
        generations, TOKENS, {0: 3, 1: 2, 2: 3}, {1: guessing(plain[1].tokens, 1), 2: guessing(plain[2].tokens, 2)}
    )
    for lane, generation in generations.items():
        assert_same(generation, plain[lane])
    assert max(row.accepted for row in drawn) >= 2
    assert any(row.drafted and not row.accepted for row in drawn)


def test_a_stop_id_inside_a_round_ends_it(engine: DeviceEngine, plain: dict[int, Generation]) -> None:
    truth = plain[0].tokens
    at = next(at for at in range(2, TOKENS) if truth.index(truth[at]) == at)
    driver = Driver(engine)  # type: ignore[arg-type]
    generations = {0: driver.prefill(0, PROMPTS[0], 64, GREEDY, (truth[at],))}
    drawn = driver.speculate(generations, TOKENS, {0: 3}, {0: knowing(truth)})
    assert generations[0].tokens == truth[: at + 1]
    assert drawn[-1].stopped


def test_copied_guesses_need_no_drafter(artifact: Artifact, plain: dict[int, Generation]) -> None:
    engine = load(artifact, replace(SETTINGS, draft_tokens=3))
    driver = Driver(engine)  # type: ignore[arg-type]
    generations = read(driver)
    drafts = dict.fromkeys(generations, 3)
    drawn = driver.speculate(generations, TOKENS, drafts, {0: knowing(plain[0].tokens)})
    for lane, generation in generations.items():
        assert_same(generation, plain[lane])
    assert max(row.accepted for row in drawn) == 3
    assert {row.drafted for row in drawn if row.lane == 1} == {0}


def test_the_plan_is_what_is_allocated(engine: DeviceEngine) -> None:
    groups = dict(engine.memory.groups)
    planned = sum(groups[name] for name in ("weights", "kv", "state", "replay", "workspace"))
    assert abs(planned - LIBRARY_BYTES - engine.allocated_bytes) < 4 * 512


def test_masks_of_columns(engine: DeviceEngine) -> None:
    """As in the engine of the processor; a lane without a constraint afterwards draws anything again."""
    allowed = [{3, 50, 99}, {7, 120}, {11}, {160, 161}]
    masks = tuple(sum(1 << token for token in ids).to_bytes(32, "little") for ids in allowed)
    driver = Driver(engine)  # type: ignore[arg-type]
    wanted = driver.prefill(0, PROMPTS[1], 64, WARM)
    for column, mask in enumerate(masks):
        row = DecodeRow(0, len(PROMPTS[1]) + column, PageMapping(1, ()), mask)
        wanted.tokens.append(engine.run(DecodeRound((row,))).drawn[0].token_ids[0])
    Driver(engine, seed=1).prefill(0, PROMPTS[1], 64, WARM)  # type: ignore[arg-type]
    copied = tuple(wanted.tokens[1:4])
    row = DecodeRow(0, len(PROMPTS[1]), PageMapping(1, ()), masks[0], 3, copied, masks[1:])
    assert engine.run(DecodeRound((row,))).drawn[0].token_ids == tuple(wanted.tokens[1:])
    row = DecodeRow(0, len(PROMPTS[1]) + 4, PageMapping(1, ()))
    engine.run(DecodeRound((row,)))
    assert bool((engine._cache.drawing.masks[0] == -1).all())


def test_logprobs_are_told_of_the_tokens_of_every_column(engine: DeviceEngine, plain: dict[int, Generation]) -> None:
    driver = Driver(engine)  # type: ignore[arg-type]
    generations = {
        lane: driver.prefill(lane, PROMPTS[lane], 128, LAWS[lane], logprobs=count)
        for lane, count in ((2, 5), (1, None), (0, 0))
    }
    drawn = driver.speculate(generations, TOKENS, {0: 3, 1: 2, 2: 3}, {2: knowing(plain[2].tokens)})
    assert max(row.accepted for row in drawn) == 3
    for lane, count in ((2, 5), (0, 0)):
        assert_told(generations[lane], count, PUBLIC)
        assert generations[lane].tokens == plain[lane].tokens
    assert generations[1].logprobs == []
