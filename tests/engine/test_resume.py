"""Engines go on from states and pages that were kept: both kinds, on the processor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from ninfer.artifact.binder import bind
from ninfer.artifact.config import DENSE_ARCHITECTURE, MTP_ARCHITECTURES, MtpConfig
from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.engine import Engine
from ninfer.engine.loading import bind_for
from ninfer.step import CaptureState, LaneSetup, PageMapping, PrefillChunk, RestoreState
from tests.engine import resuming
from tests.engine.driving import GREEDY
from tests.engine.resuming import Subject, carried, image_parts
from tests.support.random_model import RandomModel
from tests.support.tiny_device import tiny_model

IDS = 200
PLAIN = EngineSettings(**resuming.SETTINGS)
DEVICE = dataclasses.replace(PLAIN, kv_dtype="int8", compute_dtype="bf16", prefill_chunk_tokens=128)


@pytest.fixture(scope="module", params=["plain", "device"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    if request.param == "plain":
        load: Callable[[], Engine | DeviceEngine] = partial(Engine.load, RandomModel(), PLAIN, IDS)
        yield Subject(load, load(), IDS)
        return
    with tiny_model(tmp_path_factory.mktemp("model") / "tiny.ninfer") as artifact:
        load = partial(DeviceEngine.load, bind(artifact), DEVICE, IDS)
        yield Subject(load, load(), IDS, decoded=0.02)


@pytest.fixture(scope="module", params=["plain", "device"])
def guessing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Engines with a drafter."""
    drafter = {"drafter": "mtp", "draft_tokens": 5}
    if request.param == "plain":
        settings = dataclasses.replace(PLAIN, **drafter)
        model = RandomModel(mtp=MtpConfig(MTP_ARCHITECTURES[DENSE_ARCHITECTURE]))
        load: Callable[[], Engine | DeviceEngine] = partial(Engine.load, model, settings, IDS)
        yield Subject(load, load(), IDS)
        return
    settings = dataclasses.replace(DEVICE, **drafter)
    with tiny_model(tmp_path_factory.mktemp("model") / "tiny.ninfer", drafter=True) as artifact:
        load = partial(DeviceEngine.load, bind_for(artifact, settings), settings, IDS)
        yield Subject(load, load(), IDS, decoded=0.02)


@pytest.mark.parametrize(
    ("prompt", "tokens", "drafts"), [(60, 4, 5), (60, 5, 5), (60, 6, 5), (61, 9, 3), (63, 2, 4), (120, 20, 5)], ids=str
)
def test_a_lane_goes_on_behind_rounds_with_guesses(guessing: Subject, prompt: int, tokens: int, drafts: int) -> None:
    resuming.own_block_start_behind_guesses(guessing, prompt, tokens, drafts)


@pytest.mark.parametrize(
    ("prompt", "tokens", "drafts", "more"),
    [(60, 0, 5, 9), (129, 0, 5, 180), (62, 1, 4, 1), (64, 3, 5, 70), (65, 9, 5, 2), (100, 4, 3, 24), (10, 12, 5, 200)],
    ids=str,
)
def test_a_lane_goes_on_inside_its_block_behind_guesses(
    guessing: Subject, prompt: int, tokens: int, drafts: int, more: int
) -> None:
    resuming.inside_a_block_behind_guesses(guessing, prompt, tokens, drafts, more)


@pytest.mark.parametrize(
    ("tokens", "rounds"), [(128, 0), (129, 0), (191, 0), (126, 1), (126, 2), (126, 3), (64, 1), (130, 32)], ids=str
)
def test_a_lane_goes_on_from_its_own_block_start(subject: Subject, tokens: int, rounds: int) -> None:
    resuming.own_block_start(subject, tokens, rounds, 128)


@pytest.mark.parametrize(
    ("tokens", "rounds", "more", "chunk"),
    [
        (1, 0, 1, 128),
        (63, 0, 1, 128),
        (62, 0, 5, 128),
        (129, 0, 62, 128),
        (130, 0, 190, 64),
        (20, 3, 300, 128),
        (66, 1, 1, 128),
        (100, 3, 24, 128),
        (120, 17, 54, 128),
    ],
    ids=str,
)
def test_a_lane_goes_on_inside_its_block(subject: Subject, tokens: int, rounds: int, more: int, chunk: int) -> None:
    resuming.inside_a_block(subject, tokens, rounds, more, chunk)


@pytest.mark.parametrize(
    "scenario",
    [
        resuming.entry_columns,
        resuming.images_and_a_fork,
        resuming.a_decoded_state,
        resuming.parked_pages,
        resuming.a_lane_that_is_taken,
        resuming.another_engine,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_going_on(subject: Subject, scenario: Callable[[Subject], None]) -> None:
    scenario(subject)


def test_an_image_is_columns_and_states_of_all_layers(subject: Subject) -> None:
    driver = subject.driver()
    driver.prefill(3, subject.prompt(70, 1), 128)
    subject.engine.capture(3, 0)
    columns, states = image_parts(subject, subject.engine.read_image(0))
    assert torch.equal(columns, carried(subject.engine).entry[:, 3])
    assert torch.equal(states, carried(subject.engine).states[:, 3])


def test_a_page_is_its_planes_in_the_order_of_the_pool(subject: Subject) -> None:
    driver = subject.driver()
    driver.prefill(0, subject.prompt(64, 1), 128)
    (page,) = driver.table(0, 64)
    expected = b"".join(plane[page].numpy().tobytes() for plane in carried(subject.engine).planes)
    assert bytes(subject.engine.read_pages((page,))) == expected


def test_misuse(subject: Subject) -> None:
    engine = subject.load()
    chunk = PrefillChunk(0, 64, (1, 2), PageMapping(0, (0, 1)), LaneSetup(GREEDY, (), (1,) * 66), sample=True)
    with pytest.raises(AssertionError, match="chunk at 64, state of block 0"):
        engine.launch(chunk)
    with pytest.raises(AssertionError, match="image 1 was never stored"):
        engine.launch(dataclasses.replace(chunk, before=(RestoreState(1, 0),)))
    with pytest.raises(AssertionError, match="image 1 was never stored"):
        engine.read_image(1)
    short = PrefillChunk(0, 0, (1,) * 64, PageMapping(0, (0,)), LaneSetup(GREEDY, ()), sample=False)
    with pytest.raises(AssertionError, match="lane 0 has no state to capture"):
        engine.launch(dataclasses.replace(short, before=(CaptureState(0, 0),)))
    engine.launch(dataclasses.replace(short, after=(CaptureState(0, 0),))).wait()
    with pytest.raises(AssertionError, match="chunk at 128, state of block 1"):
        engine.launch(
            dataclasses.replace(chunk, begin=128, mapping=PageMapping(0, (0, 1, 2)), before=(RestoreState(0, 0),))
        )
    engine.write_image(2, engine.read_image(0))
    with pytest.raises(AssertionError, match="image 2 goes to lane 1, and the chunk's is 0"):
        engine.launch(dataclasses.replace(chunk, before=(RestoreState(2, 1),)))
    engine.reset()
    with pytest.raises(AssertionError, match="chunk at 64, state of block 0"):
        engine.launch(chunk)
    engine.launch(dataclasses.replace(chunk, before=(RestoreState(0, 0),))).wait()
