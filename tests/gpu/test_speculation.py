"""Guesses on a GPU at the 27B's widths: bit for bit what rounds without them give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine
from ninfer.kernels.served.compiled import note_compilations
from ninfer.types import Sampling
from tests.engine.driving import GREEDY, Driver, Generation, assert_same, random_prompt
from tests.engine.test_foresight import check_the_same_guesses, check_under_masks, what_follows
from tests.engine.test_lasting_masks import check_copied, check_own, one_by_one
from tests.engine.test_speculation import Guess, guessing
from tests.gpu.models import VOCABULARY, cut

pytestmark = pytest.mark.gpu

PLAIN = EngineSettings(
    device="cuda:0", max_context_tokens=4096, kv_capacity_tokens=8 * 4096, lanes=8, prefill_chunk_tokens=2048,
    kv_dtype="int8", compute_dtype="bf16",
)  # fmt: skip
WARM = Sampling(temperature=1.3, top_k=20, top_p=0.95, min_p=0.0, presence_penalty=1.5, frequency_penalty=0.5, seed=77)
LAWS = (GREEDY, WARM, replace(GREEDY, frequency_penalty=1.0), replace(WARM, seed=3))
TOKENS = 100
LENGTHS = (1, 60, 64, 127, 333, 1500, 63, 2100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def load(folder: Path, settings: EngineSettings) -> DeviceEngine:
    return DeviceEngine.load(cut(folder, "gggag", drafter=True), settings, VOCABULARY)


def read(engine: DeviceEngine, lanes: int, seed: int) -> tuple[Driver, dict[int, Generation]]:
    driver = Driver(engine, seed)  # type: ignore[arg-type]
    chunk = (256, 2048, 64)[seed % 3]
    generations = {
        lane: driver.prefill(lane, random_prompt(LENGTHS[lane], VOCABULARY, lane), chunk, LAWS[lane % 4])
        for lane in range(lanes)
    }
    return driver, generations


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[int, Generation]:
    engine = load(folder, PLAIN)
    driver, generations = read(engine, 8, 0)
    driver.decode(generations, TOKENS - 1)
    del engine, driver
    torch.cuda.empty_cache()
    return generations


def check(
    engine: DeviceEngine, lanes: int, drafts: dict[int, int], copied: dict[int, Guess], plain: dict[int, Generation]
) -> tuple[int, int]:
    """Guesses verified, and right ones."""
    driver, generations = read(engine, lanes, lanes)
    drawn = driver.speculate(generations, TOKENS, drafts, copied)
    for lane, generation in generations.items():
        assert_same(generation, plain[lane])
    return sum(row.drafted for row in drawn), sum(row.accepted for row in drawn)


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_eight_lanes(folder: Path, plain: dict[int, Generation], cuda_graph: bool) -> None:
    engine = load(folder, replace(PLAIN, drafter="mtp", draft_tokens=3, draft_head=True, cuda_graph=cuda_graph))
    compiled = note_compilations()
    for lanes in (1, 2, 5, 8):
        drafts = {lane: lane % 4 for lane in range(lanes)} if lanes > 1 else {0: 3}
        own, _ = check(engine, lanes, drafts, {}, plain)
        copied = {lane: guessing(plain[lane].tokens, lane) for lane in range(0, lanes, 2)}
        some, right = check(engine, lanes, dict.fromkeys(range(lanes), 3), copied, plain)
        assert own > 0
        assert some > right > 0
    assert compiled == []
    del engine
    torch.cuda.empty_cache()


@pytest.mark.parametrize("drafts", [1, 5, 7])
def test_one_lane_with_wide_windows(folder: Path, plain: dict[int, Generation], drafts: int) -> None:
    settings = replace(PLAIN, lanes=2, kv_capacity_tokens=8192, drafter="mtp", draft_tokens=drafts)
    engine = load(folder, settings)
    check(engine, 1, {0: drafts}, {}, plain)
    _, right = check(engine, 2, {0: drafts, 1: drafts}, {1: guessing(plain[1].tokens, 2)}, plain)
    assert right > 0
    del engine
    torch.cuda.empty_cache()


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_tokens_that_halt_are_the_last_of_their_rounds(folder: Path, cuda_graph: bool) -> None:
    """Under a mask that lasts, beside a lane without any; then under others, and without one."""
    settings = replace(PLAIN, lanes=4, kv_capacity_tokens=4 * 4096, drafter="mtp", draft_tokens=3)
    engine = load(folder, replace(settings, cuda_graph=cuda_graph))
    compiled = note_compilations()
    assert {check_copied(engine, place) for place in range(4)} >= {0, 1}
    for place in (0, 3, 6):
        check_own(engine, place)
    assert compiled == []
    one_by_one.cache_clear()
    del engine
    torch.cuda.empty_cache()


def test_copied_guesses_without_a_drafter(folder: Path, plain: dict[int, Generation]) -> None:
    engine = load(folder, replace(PLAIN, lanes=2, kv_capacity_tokens=8192, draft_tokens=15))
    copied = {lane: guessing(plain[lane].tokens, lane) for lane in range(2)}
    _, right = check(engine, 2, {0: 5, 1: 15}, copied, plain)
    assert right > 0
    del engine
    torch.cuda.empty_cache()


def test_the_drafter_sees_the_same_behind_rounds_as_behind_a_prompt(folder: Path, plain: dict[int, Generation]) -> None:
    """Near, not equal: a round rounds differently from a chunk."""
    settings = replace(PLAIN, lanes=1, kv_capacity_tokens=4096, kv_dtype="bf16", drafter="mtp", draft_tokens=3)
    keys, tokens = [], []
    for drawn in (0, 40):
        engine = load(folder, settings)
        driver = Driver(engine)  # type: ignore[arg-type]
        history = [*random_prompt(LENGTHS[0], VOCABULARY, 0), *plain[0].tokens[: 70 - drawn]]
        generation = {0: driver.prefill(0, history, 64)}
        if drawn:
            driver.speculate(generation, drawn, {0: 3})
        tokens.append([*history, *generation[0].tokens])
        pages = engine._cache.pools[-1].keys[list(driver.table(0, 64))].float().cpu()
        keys.append(pages.transpose(1, 2).flatten(0, 1))  # by position
        del engine, driver
        torch.cuda.empty_cache()
    # Random weights all but tie now and then, and a history read in chunks may then draw another token: a row of the
    # drafter belongs to a position and to the token behind it.
    same = next((i for i, pair in enumerate(zip(*tokens, strict=False)) if pair[0] != pair[1]), 64) - 1
    assert same >= LENGTHS[0] + 30 + 8, "hardly anything of what rounds have drawn can be compared"
    ours, theirs = (each[:same] for each in keys)
    difference = (ours - theirs).square().mean().sqrt() / ours.square().mean().sqrt()
    assert float(difference) < 0.05


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_guesses_told_ahead(folder: Path, cuda_graph: bool) -> None:
    """They are those that the engine would make, verified under masks or not, and nothing to whoever comes next."""
    settings = replace(PLAIN, lanes=4, kv_capacity_tokens=4 * 4096, drafter="mtp", draft_tokens=3)
    engine = load(folder, replace(settings, cuda_graph=cuda_graph))
    compiled = note_compilations()
    check_the_same_guesses(engine)
    check_under_masks(engine)
    for appends in (False, True):
        for rounds in (False, True):
            told = [what_follows(engine, foresee, appends=appends, rounds=rounds) for foresee in (3, 0)]
            assert told[0] == told[1]
    assert compiled == []
    del engine
    torch.cuda.empty_cache()
