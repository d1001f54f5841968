"""Guesses that are told a round ahead: the same ones, verified under masks, whoever is beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ninfer.constraints.ahead import legal
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.engine import Engine
from ninfer.step import DecodeRound, DecodeRow, Drawn, PageMapping
from tests.engine.driving import Driver, random_prompt
from tests.engine.test_masks_beside import BOTH, IDS, LAWS, LENGTHS, NOTHING, begun, loaded, mask_of

EVERYTHING = mask_of(set(range(IDS)))
MASKS = (mask_of(set(range(IDS)) - set(range(0, IDS, 5))), mask_of(set(range(150))), EVERYTHING)
ROUNDS = 8


@pytest.fixture(scope="module", params=BOTH)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine | DeviceEngine]:
    yield from loaded(request.param, tmp_path_factory.mktemp("model"))


def run(engine: Engine | DeviceEngine, tokens: list[list[int]], *rows: DecodeRow) -> tuple[Drawn, ...]:
    drawn = engine.run(DecodeRound(rows)).drawn
    for row in drawn:
        tokens[row.lane].extend(row.token_ids)
    return drawn


def next_row(tokens: list[list[int]], lane: int, drafts: int = 0) -> DecodeRow:
    return DecodeRow(lane, LENGTHS[lane] + len(tokens[lane]) - 1, NOTHING, drafts=drafts)


def mask_at(place: int) -> bytes:
    """What lane 0 may draw as its token of this number: another mask behind each."""
    return MASKS[place % len(MASKS)]


def check_the_same_guesses(engine: Engine | DeviceEngine) -> None:
    """Without masks, where the engine can make them itself: they are these, and as many are right in every round.

    The first are told with the first token, behind a prompt that is read last.
    """
    tokens, _ = read(engine, 0)
    own = []
    for _ in range(ROUNDS):
        first, second = run(engine, tokens, next_row(tokens, 0, 2), next_row(tokens, 1, 3))
        own.append((first, second, made(engine)))
    told, foreseen = read(engine, 2)
    for first, second, guesses in own:
        assert guesses in (None, foreseen)
        row = replace(next_row(told, 0, 2), copied=foreseen, foresee=2)
        drawn, beside = run(engine, told, row, next_row(told, 1, 3))
        foreseen = drawn.foreseen
        assert len(foreseen) == 2
        assert (drawn.token_ids, drawn.accepted) == (first.token_ids, first.accepted)
        assert (beside.token_ids, beside.accepted) == (second.token_ids, second.accepted)
        assert beside.foreseen == ()


def read(engine: Engine | DeviceEngine, foresee: int) -> tuple[list[list[int]], tuple[int, ...]]:
    """Two prompts are read; their first tokens, and what is foreseen behind that of lane 0."""
    engine.reset()
    driver = Driver(engine)  # type: ignore[arg-type]
    generations = [
        driver.prefill(lane, random_prompt(LENGTHS[lane], IDS, lane), 64, LAWS[lane], foresee=(1 - lane) * foresee)
        for lane in (1, 0)
    ]
    assert len(driver.foreseen) == foresee
    return [generation.tokens[:] for generation in reversed(generations)], driver.foreseen


def made(engine: Engine | DeviceEngine) -> tuple[int, ...] | None:
    """The first two guesses of the first row of the last round, where they can be seen."""
    if isinstance(engine, Engine):
        return None
    assert engine._drafting is not None
    return tuple(engine._drafting.shared.guesses[1:3].tolist())


def one_by_one(engine: Engine | DeviceEngine) -> list[list[int]]:
    tokens = [[token] for token in begun(engine)]
    for place in range(1, 3 * ROUNDS):
        run(engine, tokens, replace(next_row(tokens, 0), mask=mask_at(place)), next_row(tokens, 1))
    return tokens


def check_under_masks(engine: Engine | DeviceEngine) -> int:
    """Guesses of a lane that draws under masks are verified behind others' and without them; nothing is another for it.

    As many as are legal, since the rest could only be rejected; returns how many.
    """
    wanted = one_by_one(engine)
    tokens = [[token] for token in begun(engine)]
    foreseen: tuple[int, ...] = ()
    verified = 0
    for number in range(ROUNDS):
        place = len(tokens[0])
        masks = [mask_at(place + column) for column in range(4)]
        count = [*map(legal, masks, foreseen), False].index(False)
        row = replace(
            next_row(tokens, 0, count),
            mask=masks[0], copied=foreseen[:count], masks=tuple(masks[1 : 1 + count]), foresee=3,
        )  # fmt: skip
        others = () if number % 3 == 2 else (next_row(tokens, 1, 2),)
        foreseen = run(engine, tokens, row, *others)[0].foreseen
        verified += count
        assert len(foreseen) == 3
    assert tokens[0] == wanted[0][: len(tokens[0])]
    assert tokens[1] == wanted[1][: len(tokens[1])]
    return verified


def what_follows(
    engine: Engine | DeviceEngine, foresee: int, *, appends: bool, rounds: bool = True
) -> tuple[list[int], list[Drawn]]:
    """Of a request in a lane whose last step, a round or a prompt, has foreseen guesses; it may go on in the block."""
    engine.reset()
    driver = Driver(engine)  # type: ignore[arg-type]
    prompt = random_prompt(LENGTHS[0], IDS, LENGTHS[0])
    generation = {0: driver.prefill(0, prompt, 64, LAWS[0], foresee=foresee)}
    if rounds:
        driver.speculate(generation, 6, {0: 2}, foresee=foresee)
    history = [*prompt, *generation[0].tokens[:-1]]
    follow = [*history, 9, 8, 7]
    kept, stands = (driver.table(0, len(history)), len(history)) if appends else ((), None)
    resumed = {0: driver.prefill(0, follow, 64, LAWS[0], kept=kept, stands=stands)}
    drawn = driver.speculate(resumed, 12, {0: 3})
    return resumed[0].tokens, drawn


def test_guesses_told_ahead_are_those_that_the_engine_makes(engine: Engine | DeviceEngine) -> None:
    check_the_same_guesses(engine)


def test_guesses_are_verified_under_masks(engine: Engine | DeviceEngine) -> None:
    assert check_under_masks(engine) > 3


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("appends", [False, True])
def test_what_was_foreseen_is_forgotten_with_the_request(
    engine: Engine | DeviceEngine, appends: bool, rounds: bool
) -> None:
    told = [what_follows(engine, foresee, appends=appends, rounds=rounds) for foresee in (3, 0)]
    assert told[0] == told[1]


def test_what_is_told_of_the_law_does_not_depend_on_what_is_foreseen(engine: Engine | DeviceEngine) -> None:
    told = []
    for foresee in (0, 3):
        engine.reset()
        driver = Driver(engine)  # type: ignore[arg-type]
        prompt = random_prompt(LENGTHS[1], IDS, 1)
        generation = driver.prefill(1, prompt, 64, LAWS[1], logprobs=4, foresee=foresee)
        row = DecodeRow(1, len(prompt), PageMapping(1, ()), drafts=3, foresee=foresee)
        (drawn,) = engine.run(DecodeRound((row,))).drawn
        assert len(drawn.foreseen) == foresee
        told.append((generation.tokens, generation.logprobs, drawn.token_ids, drawn.logprobs))
    assert told[0] == told[1]
    assert told[0][3]


def test_nothing_is_foreseen_behind_a_stop(engine: Engine | DeviceEngine) -> None:
    driver = Driver(engine)  # type: ignore[arg-type]
    engine.reset()
    prompt = random_prompt(LENGTHS[0], IDS, LENGTHS[0])
    driver.prefill(0, prompt, 64, LAWS[0], tuple(range(0, IDS, IDS // 4)))
    row = DecodeRow(0, len(prompt), PageMapping(1, ()), mask_of({0}), foresee=2)
    (drawn,) = engine.run(DecodeRound((row,))).drawn
    assert (drawn.stopped, drawn.foreseen) == (True, ())
