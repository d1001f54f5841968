"""Masks that are the same behind all tokens but some: guesses go on under them, and end where such a token is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.engine import Engine
from ninfer.step import DecodeRound, DecodeRow
from tests.engine.driving import Driver, random_prompt
from tests.engine.test_masks_beside import BOTH, IDS, LENGTHS, NOTHING, begun, loaded, mask_of
from tests.engine.test_speculation import WARM

LASTS = mask_of(set(range(0, IDS, 3)))
OTHER = mask_of({7, 20, 120})
NOBODY = mask_of(set())
BEHIND = (OTHER, OTHER, LASTS, None, None)  # the masks of the rounds behind the token that halts


@pytest.fixture(scope="module", params=BOTH)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine | DeviceEngine]:
    yield from loaded(request.param, tmp_path_factory.mktemp("model"))


def fresh(engine: Engine | DeviceEngine) -> list[list[int]]:
    """Three prompts are read; what each lane has drawn."""
    return [[token] for token in begun(engine)]


def run(engine: Engine | DeviceEngine, tokens: list[list[int]], *rows: DecodeRow) -> int:
    """How many guesses of the first row were right."""
    drawn = engine.run(DecodeRound(rows)).drawn
    for row in drawn:
        tokens[row.lane].extend(row.token_ids)
        assert row.accepted == len(row.token_ids) - 1
        assert not row.stopped
    return drawn[0].accepted


def next_row(tokens: list[list[int]], lane: int, mask: bytes | None = None) -> DecodeRow:
    return DecodeRow(lane, LENGTHS[lane] + len(tokens[lane]) - 1, NOTHING, mask)


@cache
def one_by_one(engine: Engine | DeviceEngine, rounds: int) -> list[list[int]]:
    """Lane 0 under the mask that lasts for some rounds, then under the others; lane 1 without any."""
    tokens = fresh(engine)
    for mask in (*(LASTS,) * rounds, *BEHIND):
        run(engine, tokens, next_row(tokens, 0, mask), next_row(tokens, 1))
    return tokens


def go_on(engine: Engine | DeviceEngine, tokens: list[list[int]], wanted: list[list[int]], place: int) -> None:
    """Behind the token that halts: other masks, by column and for all, then none."""
    guesses = tuple(wanted[0][place + 2 :])
    run(engine, tokens, replace(next_row(tokens, 0, OTHER), drafts=2, copied=guesses[:2], masks=(OTHER, LASTS)))
    assert tokens[0] == wanted[0][: place + 5]
    run(engine, tokens, replace(next_row(tokens, 0), drafts=1, copied=guesses[3:4]))
    assert tokens[0] == wanted[0]


def place_of(engine: Engine | DeviceEngine, wished: int) -> tuple[int, bytes]:
    """Where under the mask that lasts the token that stands at a place comes first, and that token as what halts."""
    tokens = one_by_one(engine, 7)[0][1:]
    return tokens.index(tokens[wished]), mask_of({tokens[wished]})


def check_copied(engine: Engine | DeviceEngine, wished: int) -> int:
    """A row whose copied guesses are right, up to a token that halts; returns its place."""
    place, halts = place_of(engine, wished)
    right = tuple(one_by_one(engine, 7)[0][1:4])
    wanted = one_by_one(engine, 1 + place)
    tokens = fresh(engine)
    row = replace(next_row(tokens, 0, LASTS), drafts=3, copied=right, halts=halts)
    assert run(engine, tokens, row, replace(next_row(tokens, 1), drafts=3)) == place
    assert tokens[0] == wanted[0][: 2 + place]
    assert tokens[1] == wanted[1][: len(tokens[1])]
    go_on(engine, tokens, wanted, place)
    return place


def check_own(engine: Engine | DeviceEngine, wished: int) -> None:
    """Rounds with guesses of the engine's own, up to a token that halts."""
    place, halts = place_of(engine, wished)
    wanted = one_by_one(engine, 1 + place)
    tokens = fresh(engine)
    while len(tokens[0]) < 2 + place:
        run(engine, tokens, replace(next_row(tokens, 0, LASTS), drafts=3, halts=halts))
    assert tokens[0] == wanted[0][: 2 + place]
    go_on(engine, tokens, wanted, place)


@pytest.mark.parametrize("place", range(4))
def test_a_copied_guess_that_halts_is_the_last_of_its_round(engine: Engine | DeviceEngine, place: int) -> None:
    """As the first token that is drawn, in the middle, and as the last, which no guess has led to."""
    assert check_copied(engine, place) == place


@pytest.mark.parametrize("place", [0, 3, 6])
def test_guesses_of_its_own_end_where_a_token_halts(engine: Engine | DeviceEngine, place: int) -> None:
    check_own(engine, place)


def test_a_mask_that_lasts_comes_again_behind_others(engine: Engine | DeviceEngine) -> None:
    masks = (LASTS, OTHER, LASTS, LASTS, None, LASTS)
    wanted = fresh(engine)
    for mask in masks:
        run(engine, wanted, next_row(wanted, 0, mask))
    tokens = fresh(engine)
    told = tuple(wanted[0][1:])
    run(engine, tokens, replace(next_row(tokens, 0, LASTS), halts=NOBODY))
    run(engine, tokens, replace(next_row(tokens, 0, OTHER), drafts=1, copied=told[1:2], masks=(LASTS,)))
    run(engine, tokens, replace(next_row(tokens, 0, LASTS), drafts=3, halts=NOBODY, copied=()))
    run(engine, tokens, next_row(tokens, 0))
    run(engine, tokens, replace(next_row(tokens, 0, LASTS), halts=NOBODY))
    assert tokens == wanted


def test_the_next_request_of_a_lane_is_halted_by_nothing(engine: Engine | DeviceEngine) -> None:
    everything = mask_of(set(range(IDS)))
    tokens = fresh(engine)
    run(engine, tokens, replace(next_row(tokens, 1, LASTS), drafts=3, copied=(1, 2, 3), halts=everything))
    assert len(tokens[1]) == 2
    prompt = random_prompt(LENGTHS[1], IDS, 20)

    def read() -> list[int]:
        return Driver(engine, seed=2).prefill(1, prompt, 64, WARM).tokens  # type: ignore[arg-type]

    wanted = [[0], read()]
    for _ in range(4):
        run(engine, wanted, next_row(wanted, 1))
    tokens = [[0], read()]
    run(engine, tokens, replace(next_row(tokens, 1), drafts=3, copied=tuple(wanted[1][1:4])))
    assert tokens == wanted
