"""Rounds in which some rows have masks and others do not, lanes that have had them, and rounds without any guess."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.engine import Engine
from ninfer.engine.loading import bind_for
from ninfer.step import DecodeRound, DecodeRow, PageMapping
from tests.engine.driving import GREEDY, Driver, random_prompt
from tests.engine.test_speculation import MODEL, WARM
from tests.support.tiny_device import tiny_model

IDS = 200
# A chunk may be as long as the context: the warm-up once asked the drafter for more than the table holds.
SETTINGS = EngineSettings(
    device="cpu", max_context_tokens=128, kv_capacity_tokens=512, lanes=4, kv_dtype="bf16", compute_dtype="bf16",
    drafter="mtp", draft_tokens=3,
)  # fmt: skip
LENGTHS = (20, 30, 61)  # the last row's guesses would stand at the end of a block
LAWS = (WARM, GREEDY, replace(WARM, seed=3))
ALLOWED = [{3, 50, 99}, {7, 120}, {11, 12, 13}, {160, 161}]
NOTHING = PageMapping(1, ())


BOTH = ["at once", "late"]  # when an engine makes a block that a round has filled a state


def loaded(kind: str, folder: Path) -> Iterator[Engine | DeviceEngine]:
    """One engine, until the generator is closed."""
    torch.set_num_threads(1)
    if kind == "at once":
        yield Engine.load(MODEL, SETTINGS, IDS)
        return
    with tiny_model(folder / "tiny.ninfer", drafter=True) as artifact:
        yield DeviceEngine.load(bind_for(artifact, SETTINGS), SETTINGS, IDS)


@pytest.fixture(scope="module", params=BOTH)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine | DeviceEngine]:
    yield from loaded(request.param, tmp_path_factory.mktemp("model"))


def mask_of(ids: set[int]) -> bytes:
    return sum(1 << token for token in ids).to_bytes(-(-IDS // 32) * 4, "little")


def begun(engine: Engine | DeviceEngine) -> list[int]:
    """Three prompts are read; their first tokens."""
    engine.reset()
    driver = Driver(engine)  # type: ignore[arg-type]
    prompts = (random_prompt(length, IDS, length) for length in LENGTHS)
    return [
        driver.prefill(lane, prompt, 64, law).tokens[0]
        for lane, (prompt, law) in enumerate(zip(prompts, LAWS, strict=True))
    ]


def one_by_one(engine: Engine | DeviceEngine) -> list[list[int]]:
    """Lane 0 under four masks and then without one, the others without; a token a round."""
    tokens = [[token] for token in begun(engine)]
    for at in range(7):
        mask = mask_of(ALLOWED[at]) if at < len(ALLOWED) else None
        rows = [
            DecodeRow(0, LENGTHS[0] + at, NOTHING, mask),
            DecodeRow(1, LENGTHS[1] + at, NOTHING),
            *([DecodeRow(2, LENGTHS[2] + at, NOTHING)] if LENGTHS[2] + at < 64 else []),
        ]
        for row in engine.run(DecodeRound(tuple(rows))).drawn:
            tokens[row.lane].extend(row.token_ids)
    return tokens


@pytest.mark.parametrize("right", range(4))
def test_a_row_with_masks_beside_rows_that_guess_freely(engine: Engine | DeviceEngine, right: int) -> None:
    wanted = one_by_one(engine)
    assert all(token in ids for token, ids in zip(wanted[0][1:], ALLOWED, strict=False))
    got = [[token] for token in begun(engine)]
    guesses = tuple(token if at < right else min(ALLOWED[at] - {token}) for at, token in enumerate(wanted[0][1:4]))
    masks = tuple(map(mask_of, ALLOWED))
    rows = (
        DecodeRow(1, LENGTHS[1], NOTHING, None, 3),
        DecodeRow(0, LENGTHS[0], NOTHING, masks[0], 3, guesses, masks[1:]),
        DecodeRow(2, LENGTHS[2], NOTHING, None, 2, tuple(wanted[2][1:3])),
    )
    for row in engine.run(DecodeRound(rows)).drawn:
        got[row.lane].extend(row.token_ids)
    assert got[0] == wanted[0][: right + 2]
    for at in range(right + 1, len(ALLOWED)):  # the other masks one by one, behind columns that had others
        (row,) = engine.run(DecodeRound((DecodeRow(0, LENGTHS[0] + at, NOTHING, masks[at]),))).drawn
        got[0].extend(row.token_ids)
    # Free again, with guesses of its own, beside the one that always was.
    while len(got[0]) < 8 or len(got[1]) < 8:
        free = tuple(
            DecodeRow(lane, LENGTHS[lane] + len(got[lane]) - 1, NOTHING, None, min(2, 7 - len(got[lane])))
            for lane in (0, 1)
            if len(got[lane]) < 8
        )
        for row in engine.run(DecodeRound(free)).drawn:
            got[row.lane].extend(row.token_ids)
    assert got[0] == wanted[0]
    assert got[1] == wanted[1]
    assert got[2] == wanted[2][: len(got[2])]


def test_a_lane_whose_request_had_masks_is_free_for_the_next(engine: Engine | DeviceEngine) -> None:
    wanted = one_by_one(engine)
    begun(engine)
    masks = tuple(map(mask_of, ALLOWED))
    engine.run(DecodeRound((DecodeRow(0, LENGTHS[0], NOTHING, masks[0], 3, (7, 11, 160), masks[1:]),)))
    driver = Driver(engine, seed=2)  # type: ignore[arg-type]
    generation = {0: driver.prefill(0, random_prompt(LENGTHS[1], IDS, LENGTHS[1]), 64, LAWS[1])}
    driver.speculate(generation, 8, {0: 3})
    assert generation[0].tokens == wanted[1]
