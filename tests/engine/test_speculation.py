"""Guesses change no token and no bit: the engine with them against itself without, on random weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ninfer.artifact.config import DENSE_ARCHITECTURE, MTP_ARCHITECTURES, MtpConfig
from ninfer.config import EngineSettings
from ninfer.engine.engine import Engine
from ninfer.errors import StartupError
from ninfer.step import DecodeRound, DecodeRow, PageMapping
from ninfer.types import Sampling
from tests.engine.driving import GREEDY, Driver, Generation, assert_same, assert_told, random_prompt
from tests.support.random_model import RandomModel

IDS = 200  # of 203 rows
SETTINGS = EngineSettings(max_context_tokens=640, kv_capacity_tokens=2560, lanes=4)
SPECULATING = replace(SETTINGS, drafter="mtp", draft_tokens=5)
MODEL = RandomModel(mtp=MtpConfig(MTP_ARCHITECTURES[DENSE_ARCHITECTURE]), proposal_rows=61)
WARM = Sampling(temperature=1.3, top_k=20, top_p=0.95, min_p=0.0, presence_penalty=1.5, frequency_penalty=0.5, seed=77)
LAWS = (GREEDY, WARM, replace(WARM, seed=5), replace(GREEDY, frequency_penalty=1.0))
LENGTHS = (1, 60, 64, 127)
TOKENS = 90

Guess = Callable[[list[int]], tuple[int, ...] | None]


def read(driver: Driver, stops: tuple[int, ...] = (), chunk: int = 64) -> dict[int, Generation]:
    return {
        lane: driver.prefill(lane, random_prompt(length, IDS, lane), chunk, law, stops)
        for lane, (length, law) in enumerate(zip(LENGTHS, LAWS, strict=True))
    }


@pytest.fixture(scope="module")
def plain() -> dict[int, Generation]:
    driver = Driver(Engine.load(MODEL, SETTINGS, IDS))
    generations = read(driver)
    driver.decode(generations, TOKENS - 1)
    return generations


@pytest.fixture
def engine() -> Engine:
    return Engine.load(MODEL, SPECULATING, IDS)


def knowing(truth: list[int]) -> Guess:
    """Guesses that are always right."""
    return lambda drawn: tuple(truth[len(drawn) : len(drawn) + 5])


def guessing(truth: list[int], seed: int) -> Guess:
    """Guesses that are right for a random while; now and then the engine's own."""
    source = random.Random(seed)

    def guess(drawn: list[int]) -> tuple[int, ...] | None:
        right = truth[len(drawn) : len(drawn) + 5]
        if source.random() < 0.2:
            return None
        wrong = source.randrange(7)
        return tuple(token if at < wrong else (token + 1) % IDS for at, token in enumerate(right))

    return guess


@pytest.mark.parametrize("drafts", [1, 2, 3, 4, 5])
def test_the_drafter_changes_nothing(engine: Engine, plain: dict[int, Generation], drafts: int) -> None:
    driver = Driver(engine, seed=drafts)
    generations = read(driver, chunk=(64, 128)[drafts % 2])
    drawn = driver.speculate(generations, TOKENS, dict.fromkeys(generations, drafts))
    for lane, generation in generations.items():
        assert_same(generation, plain[lane])
    assert sum(row.drafted for row in drawn) > TOKENS


def test_any_guesses_change_nothing(engine: Engine, plain: dict[int, Generation]) -> None:
    """Windows of all widths side by side, over block edges, with right and wrong guesses of both kinds."""
    driver = Driver(engine)
    generations = read(driver)
    drafts = {0: 5, 1: 3, 2: 0, 3: 4}
    copied = {lane: guessing(plain[lane].tokens, lane) for lane in (0, 1, 3)}
    drawn = driver.speculate(generations, TOKENS, drafts, copied)
    for lane, generation in generations.items():
        assert_same(generation, plain[lane])
    rounds = {lane: sum(row.lane == lane for row in drawn) for lane in generations}
    assert rounds[2] == TOKENS - 1
    assert max(rounds[0], rounds[1], rounds[3]) < TOKENS * 2 // 3
    assert max(row.accepted for row in drawn) == 5


def test_a_stop_id_inside_a_round_ends_it(engine: Engine, plain: dict[int, Generation]) -> None:
    """With right guesses all the way, whatever stands behind the stop id is not drawn."""
    for stop_at in range(3, 12):
        truth = plain[0].tokens
        stop = truth[stop_at]
        first = truth.index(stop)
        driver = Driver(engine)
        generations = {0: driver.prefill(0, random_prompt(1, IDS, 0), 64, GREEDY, (stop,))}
        if first == 0:
            continue
        drawn = driver.speculate(generations, TOKENS, {0: 5}, {0: knowing(truth)})
        assert generations[0].tokens == truth[: first + 1]
        assert drawn[-1].stopped
        engine.reset()


def test_right_guesses_are_all_accepted_but_in_front_of_a_block_end(engine: Engine) -> None:
    """Only an anchor may stand in the last row of a block; a round that begins there goes on into the next."""
    plain = Driver(Engine.load(MODEL, SETTINGS, IDS))
    generation = {0: plain.prefill(0, random_prompt(50, IDS, 9), 64)}
    plain.decode(generation, 59)
    truth = generation[0].tokens
    driver = Driver(engine)
    speculated = {0: driver.prefill(0, random_prompt(50, IDS, 9), 64)}
    drawn = driver.speculate(speculated, 60, {0: 5}, {0: knowing(truth)})
    assert speculated[0].tokens == truth
    # From position 50 on: 50..55, 56..61, 62, 63..68, ...
    assert [row.drafted for row in drawn[:4]] == [5, 5, 0, 5]
    assert all(row.accepted == row.drafted for row in drawn)


def test_the_drafter_sees_the_same_whatever_the_rounds_were(plain: dict[int, Generation]) -> None:
    """What the layer's cache holds behind rounds is what it holds behind a prompt of the same tokens."""
    rows = []
    for tokens in (0, 40):
        engine = Engine.load(MODEL, SPECULATING, IDS)
        driver = Driver(engine)
        history = [*random_prompt(60, IDS, 1), *plain[1].tokens[: 40 - tokens]]
        law = LAWS[1]
        generation = {0: driver.prefill(0, history, 64, law)}
        if tokens:
            driver.speculate(generation, tokens, {0: 3}, {0: guessing(plain[1].tokens, 4)})
        cache = engine._arenas.cache
        pages = driver.table(0, 64)
        rows.append(torch.stack([plane[list(pages)] for plane in cache.drafter_planes]))
    assert rows[0].abs().sum() > 0
    # All but the keys and values of the last positions, which wait for the token behind them, or were guessed.
    assert torch.allclose(rows[0][:, :, :, :60].float(), rows[1][:, :, :, :60].float(), atol=1e-2, rtol=1e-2)


def test_the_short_head_guesses_its_own_tokens(plain: dict[int, Generation]) -> None:
    engine = Engine.load(MODEL, replace(SPECULATING, draft_head=True), IDS)
    driver = Driver(engine)
    generations = read(driver)
    driver.speculate(generations, TOKENS, dict.fromkeys(generations, 2))
    for lane, generation in generations.items():
        assert_same(generation, plain[lane])


def test_what_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(StartupError, match="no multi-token prediction layer"):
        Engine.load(RandomModel(), SPECULATING, IDS)
    with pytest.raises(StartupError, match="no draft head"):
        Engine.load(replace(MODEL, proposal_rows=None), replace(SPECULATING, draft_head=True), IDS)
    with pytest.raises(StartupError, match="use mtp"):
        Engine.load(MODEL, replace(SPECULATING, drafter="dflash"), IDS)


def test_a_plan_that_breaks_the_rules_is_a_fault_of_ours(engine: Engine) -> None:
    driver = Driver(engine)
    driver.prefill(0, random_prompt(10, IDS, 0), 64)
    for row in (
        DecodeRow(0, 10, PageMapping(1, ()), None, 1, (3, 4)),
        DecodeRow(0, 10, PageMapping(1, ()), b"\xff" * 40, 1),
        DecodeRow(0, 10, PageMapping(1, ()), b"\xff" * 40, 1, (3,)),
    ):
        with pytest.raises(AssertionError):
            engine.run(DecodeRound((row,)))


def mask_of(ids: set[int]) -> bytes:
    return sum(1 << token for token in ids).to_bytes(-(-IDS // 32) * 4, "little")


@pytest.mark.parametrize("right", [0, 2, 4])
def test_each_copied_guess_has_a_mask_behind_it(engine: Engine, right: int) -> None:
    """A grammar that allows one set of ids after the other: the same tokens one by one and in one round."""
    allowed = [{3, 50, 99}, {7, 120}, {11}, {4, 5, 6}, {160, 161}]
    driver = Driver(engine)
    prompt = random_prompt(20, IDS, 3)
    wanted = driver.prefill(0, prompt, 64, WARM)
    for column, ids in enumerate(allowed):
        row = DecodeRow(0, 20 + column, PageMapping(1, ()), mask_of(ids))
        wanted.tokens.append(engine.run(DecodeRound((row,))).drawn[0].token_ids[0])
    got = Driver(engine, seed=1).prefill(0, prompt, 64, WARM)
    guesses = tuple(
        token if at < right else min(allowed[at] - {token}, default=0) for at, token in enumerate(wanted.tokens[1:5])
    )
    masks = tuple(mask_of(ids) for ids in allowed)
    row = DecodeRow(0, 20, PageMapping(1, ()), masks[0], 4, guesses, masks[1:])
    (drawn,) = engine.run(DecodeRound((row,))).drawn
    assert [*got.tokens, *drawn.token_ids] == wanted.tokens[: right + 2]
    assert drawn.accepted == right


def test_logprobs_are_told_of_the_tokens_of_every_column(engine: Engine, plain: dict[int, Generation]) -> None:
    driver = Driver(engine)
    prompt = random_prompt(LENGTHS[1], IDS, 1)
    generations = {
        1: driver.prefill(1, prompt, 64, LAWS[1], logprobs=7),
        2: driver.prefill(2, random_prompt(LENGTHS[2], IDS, 2), 64, LAWS[2]),
    }
    drawn = driver.speculate(generations, 30, {1: 5, 2: 5}, {1: knowing(plain[1].tokens)})
    assert max(row.accepted for row in drawn) >= 4
    assert_told(generations[1], 7, IDS)
    assert generations[2].logprobs == []
    assert generations[1].tokens == plain[1].tokens[: len(generations[1].tokens)]
