"""The engine by itself: its rules, its draws, and what a lane may not see of another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ninfer.config import EngineSettings
from ninfer.engine.engine import Engine
from ninfer.errors import DeviceFault, StartupError
from ninfer.kernels.sampler.op import Purpose, sample, uniform
from ninfer.step import DecodeRound, DecodeRow, LaneSetup, PageMapping, PrefillChunk
from ninfer.types import Sampling
from tests.engine.driving import GREEDY, Driver, assert_same, assert_told, generate, random_prompt
from tests.support.random_model import RandomModel

IDS = 200  # of 203 rows
SETTINGS = EngineSettings(max_context_tokens=640, kv_capacity_tokens=1280, lanes=4)
WARM = Sampling(temperature=1.0, top_k=20, top_p=0.95, min_p=0.0, presence_penalty=1.5, frequency_penalty=0.5, seed=77)


@pytest.fixture
def engine() -> Engine:
    return Engine.load(RandomModel(), SETTINGS, IDS)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random_prompt(length, IDS, seed)


def chunk(**changes: object) -> PrefillChunk:
    plain = PrefillChunk(
        lane=0,
        begin=0,
        token_ids=(1, 2, 3),
        mapping=PageMapping(0, (5,)),
        setup=LaneSetup(GREEDY, ()),
        sample=True,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_sampled_draws_are_the_law_of_the_logits(engine: Engine) -> None:
    """Counts cover generated tokens only; the first draw is keyed by the prompt's length, later ones by the anchor."""
    driver = Driver(engine)
    lanes = {0: driver.prefill(0, prompt(70), 64, WARM), 1: driver.prefill(1, prompt(9, 1), 64, replace(WARM, seed=3))}
    driver.decode(lanes, 20)
    for lane, length in ((0, 70), (1, 9)):
        law = replace(WARM, seed=(77, 3)[lane])
        counts = torch.zeros(1, IDS, dtype=torch.int32)
        for i, (token, logits) in enumerate(zip(lanes[lane].tokens, lanes[lane].logits, strict=True)):
            key = (length, Purpose.PREFILL) if i == 0 else (length + i - 1, Purpose.DECODE)
            assert int(sample(logits.unsqueeze(0), counts, [law], [uniform(law.seed, *key)])[0]) == token
            counts[0, token] += 1
    assert lanes[0].tokens != lanes[1].tokens


def test_sampling_does_not_depend_on_company(engine: Engine) -> None:
    driver = Driver(engine)
    together = {lane: driver.prefill(lane, prompt(40 + lane, lane), 64, replace(WARM, seed=lane)) for lane in range(4)}
    driver.decode(together, 30)
    for lane in range(4):
        driver = Driver(engine, seed=5)
        alone = {3 - lane: driver.prefill(3 - lane, prompt(40 + lane, lane), 64, replace(WARM, seed=lane))}
        driver.decode(alone, 30)
        assert_same(alone[3 - lane], together[lane])


def test_reserved_ids_are_never_drawn(engine: Engine) -> None:
    (generation,) = generate(engine, [prompt(5)], 30, 64)
    assert all(logits.shape == (IDS,) for logits in generation.logits)
    assert max(generation.tokens) < IDS


def only(*ids: int) -> bytes:
    """A mask that leaves these ids."""
    return sum(1 << n for n in ids).to_bytes(-(-IDS // 32) * 4, "little")


def test_a_mask_leaves_only_its_ids_to_its_row_and_to_no_later_one(engine: Engine) -> None:
    (free,) = generate(engine, [prompt(3)], 3, 64)
    first = engine.run(chunk(token_ids=tuple(prompt(3)), mask=only(7))).drawn
    assert first is not None
    assert first.token_ids == (7,)
    engine.run(chunk(lane=1, token_ids=tuple(prompt(3)), mapping=PageMapping(0, (6,))))
    nothing = PageMapping(1, ())
    rows = (DecodeRow(0, 3, nothing, only(9, 40)), DecodeRow(1, 3, nothing))
    masked, unmasked = engine.run(DecodeRound(rows)).drawn
    assert masked.token_ids[0] in (9, 40)
    assert unmasked.token_ids[0] == free.tokens[1]
    after = engine.run(DecodeRound((DecodeRow(1, 4, nothing), DecodeRow(0, 4, nothing)))).drawn
    assert after[0].token_ids[0] == free.tokens[2]
    assert bool(torch.isfinite(engine.logits).all())


def test_stop_ids_are_told(engine: Engine) -> None:
    (generation,) = generate(engine, [prompt(5)], 6, 64)
    stop = generation.tokens[3]
    first = generation.tokens.index(stop)
    drawn = engine.run(chunk(token_ids=tuple(prompt(5)), setup=LaneSetup(GREEDY, (stop, 9999)))).drawn
    stopped = []
    assert drawn is not None
    stopped.append(drawn.stopped)
    for position in range(5, 5 + first):
        (row,) = engine.run(DecodeRound((DecodeRow(0, position, PageMapping(1, ())),))).drawn
        stopped.append(row.stopped)
    assert stopped == [False] * first + [True]


def test_a_chunk_that_does_not_sample_draws_nothing(engine: Engine) -> None:
    result = engine.run(chunk(token_ids=tuple(prompt(64)), sample=False))
    assert result.drawn is None
    assert result.device_s > 0
    after = engine.run(chunk(begin=64, token_ids=(7,), mapping=PageMapping(1, (2,)), setup=None))
    (cold,) = generate(engine, [[*prompt(64), 7]], 1, 1024)
    assert after.drawn is not None
    assert after.drawn.token_ids == tuple(cold.tokens)


def test_a_lane_starts_anew_whatever_it_held(engine: Engine) -> None:
    (fresh,) = generate(engine, [prompt(100)], 10, 64)
    driver = Driver(engine, seed=3)
    driver.decode({0: driver.prefill(0, prompt(333, 8), 128, WARM)}, 70)
    (again,) = generate(engine, [prompt(100)], 10, 64)
    assert_same(fresh, again)


def test_rubbish_in_pages_is_never_read(engine: Engine) -> None:
    (clean,) = generate(engine, [prompt(150)], 80, 64)
    for pool in (*engine._arenas.cache.keys, *engine._arenas.cache.values):
        pool.fill_(float("nan"))
    (dirty,) = generate(engine, [prompt(150)], 80, 128)
    assert_same(clean, dirty)


def test_logits_that_are_not_finite_are_a_device_fault_and_reset_recovers(engine: Engine) -> None:
    (before,) = generate(engine, [prompt(20)], 3, 64)
    driver = Driver(engine)
    lane = {0: driver.prefill(0, prompt(20), 64)}
    engine._arenas.cache.recurrent[0].s.fill_(float("inf"))
    with pytest.raises(DeviceFault, match=r"logits of lanes \[0\] are not finite"):
        driver.decode(lane, 1)
    engine.reset()
    with pytest.raises(AssertionError, match="row at 21, lane at 0"):
        driver.decode(lane, 1)
    (after,) = generate(engine, [prompt(20)], 3, 64)
    assert_same(before, after)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": ()}, "an empty chunk"),
        ({"begin": 63}, "chunk at 63, lane at 0"),
        ({"begin": 63, "setup": None}, "only a first chunk begins inside a block"),
        ({"setup": None}, "setup comes with a lane's first chunk"),
        ({"begin": 64, "setup": None}, "chunk at 64, lane at 0"),
        ({"mapping": PageMapping(0, ())}, "position 2 has no page"),
        ({"mapping": PageMapping(1, (3,))}, "mapping at 1, table has 0"),
        ({"mapping": PageMapping(0, (20,))}, "a page outside the pool"),
        ({"mapping": PageMapping(0, tuple(range(11)))}, "a table has room for 10 pages"),
        ({"token_ids": (1,) * 641, "mapping": PageMapping(0, tuple(range(11)))}, "beyond the longest sequence"),
    ],
)
def test_misuse_of_chunks(engine: Engine, changes: dict[str, object], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        engine.run(chunk(**changes))


def test_misuse_of_rounds(engine: Engine) -> None:
    none = PageMapping(1, ())
    engine.run(chunk())
    for rows, message in (
        ((), "an empty round"),
        ((DecodeRow(0, 3, none), DecodeRow(0, 3, none)), "a lane twice"),
        ((DecodeRow(0, 4, none),), "row at 4, lane at 3"),
        ((DecodeRow(1, 0, none),), "row at 0, lane at 0"),
    ):
        with pytest.raises(AssertionError, match=message):
            engine.run(DecodeRound(rows))


def test_load_refuses_what_it_cannot_serve() -> None:
    with pytest.raises(StartupError, match="route for the CPU only"):
        Engine.load(RandomModel(), replace(SETTINGS, device="cuda"), IDS)
    with pytest.raises(StartupError, match="the tokenizer has 204 ids, the model's head 203 rows"):
        Engine.load(RandomModel(), SETTINGS, 204)


def test_logprobs_are_those_of_the_raw_logits(engine: Engine) -> None:
    driver = Driver(engine)
    told = {0: driver.prefill(0, prompt(70), 64, WARM, logprobs=20), 1: driver.prefill(1, prompt(9), 64, WARM)}
    driver.decode(told, 10)
    assert_told(told[0], 20, IDS)
    assert told[1].logprobs == []
    # A mask that leaves one id makes it no likelier.
    drawn = engine.run(replace(chunk(setup=LaneSetup(GREEDY, (), logprobs=0), lane=2), mask=b"\x00\x00\x00\x01")).drawn
    assert drawn is not None
    law = torch.log_softmax(engine.logits[0], dim=0)
    assert drawn.token_ids == (24,)
    assert abs(drawn.logprobs[0].logprob - float(law[24])) < 1e-5
