"""Many short prompts with every number of guesses, own and copied, side by side: tokens and bits are those without."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from ninfer.engine.engine import Engine
from tests.engine.driving import GREEDY, Driver, Generation, assert_same, random_prompt
from tests.engine.test_speculation import IDS, MODEL, SETTINGS, SPECULATING, WARM, guessing

LANES = 4
WINDOWS = range(6)
PROMPTS = 300
MANY = 3_000
LENGTHS = (1, 2, 5, 17, 40, 55, 60, 62, 63, 64, 65, 100)
TOKENS = (1, 2, 3, 6, 9, 14)


def play(prompts: int, seed: int) -> Counter[str]:
    """Groups of one to four prompts until there were so many, all on the same two engines, whose lanes are reused."""
    torch.set_num_threads(1)
    plain, speculating = Engine.load(MODEL, SETTINGS, IDS), Engine.load(MODEL, SPECULATING, IDS)
    source = random.Random(seed)
    seen: Counter[str] = Counter()
    while seen["prompts"] < prompts:
        lanes = source.sample(range(LANES), source.randint(1, LANES))
        told = {lane: random_prompt(source.choice(LENGTHS), IDS, source.getrandbits(40)) for lane in lanes}
        laws = {lane: source.choice([GREEDY, GREEDY, replace(WARM, seed=source.getrandbits(64))]) for lane in lanes}
        tokens = source.choice(TOKENS)
        driver = Driver(plain)
        truth = {lane: driver.prefill(lane, told[lane], 64, laws[lane]) for lane in lanes}
        driver.decode(truth, tokens - 1)
        stops = {lane: tuple(source.sample(truth[lane].tokens, source.choice([0, 0, 1]))) for lane in lanes}
        driver = Driver(speculating, seed=source.getrandbits(20))
        got = {lane: driver.prefill(lane, told[lane], 64, laws[lane], stops[lane]) for lane in lanes}
        going = {lane: got[lane] for lane in lanes if got[lane].tokens[0] not in stops[lane]}
        windows = {lane: source.choice(WINDOWS) for lane in lanes}
        copying = [lane for lane in lanes if source.random() < 0.6]
        copied = {lane: guessing(truth[lane].tokens, source.getrandbits(20)) for lane in copying}
        drawn = driver.speculate(going, tokens, windows, copied)
        for lane in lanes:
            assert_same(got[lane], until_stop(truth[lane], stops[lane]))
            seen[f"window {windows[lane]}"] += 1
            seen["stopped"] += len(got[lane].tokens) < tokens
        seen["prompts"] += len(lanes)
        seen[f"lanes {len(lanes)}"] += 1
        seen["drafted"] += sum(row.drafted for row in drawn)
        seen["accepted"] += sum(row.accepted for row in drawn)
    return seen


def until_stop(generation: Generation, stops: tuple[int, ...]) -> Generation:
    end = next((at + 1 for at, token in enumerate(generation.tokens) if token in stops), len(generation.tokens))
    return Generation(generation.tokens[:end], generation.logits[:end])


def test_three_hundred_prompts_are_answered_the_same() -> None:
    seen = play(PROMPTS, seed=1)
    assert all(seen[f"window {window}"] > 20 for window in WINDOWS), seen
    assert all(seen[f"lanes {lanes}"] > 10 for lanes in range(1, LANES + 1)), seen
    assert min(seen["stopped"], seen["accepted"]) > 50, seen
    assert seen["drafted"] > 2 * seen["accepted"], seen


@pytest.mark.slow
def test_three_thousand_prompts_are_answered_the_same() -> None:
    assert play(MANY, seed=2)["prompts"] >= MANY
