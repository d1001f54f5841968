"""The GPU engine goes on from states and pages that were kept, at the 27B's widths: bit for bit, and inside a block
up to rounding, since the rows that are there become a part of the state there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from ninfer.engine.device_engine import DeviceEngine
from ninfer.kernels.served.compiled import note_compilations
from tests.engine import resuming
from tests.engine.resuming import Subject, carried, image_parts
from tests.gpu.models import VOCABULARY, cut
from tests.gpu.test_engine import SETTINGS

pytestmark = pytest.mark.gpu

KEPT = dataclasses.replace(SETTINGS, **resuming.SETTINGS)


@pytest.fixture(scope="module", params=["int8", "bf16"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    settings = dataclasses.replace(KEPT, kv_dtype=request.param)
    load = partial(DeviceEngine.load, cut(tmp_path_factory.mktemp("models"), "gagg"), settings, VOCABULARY)
    yield Subject(load, load(), VOCABULARY, decoded=0.03, appended=0.02)
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def guessing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    settings = dataclasses.replace(KEPT, drafter="mtp", draft_tokens=5)
    model = cut(tmp_path_factory.mktemp("models"), "gagg", drafter=True)
    load = partial(DeviceEngine.load, model, settings, VOCABULARY)
    yield Subject(load, load(), VOCABULARY, decoded=0.03, appended=0.02)
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    ("tokens", "rounds", "more", "chunk"),
    [
        (1, 0, 1, 128),
        (62, 0, 5, 128),  # columns in front of the next block were read before
        (70, 0, 94, 128),  # the last rows take the places of those that were there
        (129, 0, 62, 128),
        (130, 0, 300, 64),
        (20, 3, 300, 128),
        (66, 1, 1, 128),
        (100, 20, 74, 128),
    ],
    ids=str,
)
def test_a_lane_goes_on_inside_its_block(subject: Subject, tokens: int, rounds: int, more: int, chunk: int) -> None:
    compiled = note_compilations()
    resuming.inside_a_block(subject, tokens, rounds, more, chunk)
    assert not compiled


@pytest.mark.parametrize(
    ("prompt", "tokens", "drafts", "more"), [(129, 0, 5, 180), (64, 3, 5, 70), (65, 9, 5, 2), (10, 12, 5, 200)], ids=str
)
def test_a_lane_goes_on_inside_its_block_behind_guesses(
    guessing: Subject, prompt: int, tokens: int, drafts: int, more: int
) -> None:
    compiled = note_compilations()
    resuming.inside_a_block_behind_guesses(guessing, prompt, tokens, drafts, more)
    assert not compiled


@pytest.mark.parametrize(
    ("tokens", "rounds"),
    [(128, 0), (129, 0), (191, 0), (126, 1), (126, 2), (126, 3), (64, 1), (64, 63), (130, 32), (130, 62)],
    ids=str,
)
def test_a_lane_goes_on_from_its_own_block_start(subject: Subject, tokens: int, rounds: int) -> None:
    resuming.own_block_start(subject, tokens, rounds, 128)


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
    assert torch.equal(columns, carried(subject.engine).entry[:, 3].cpu())
    assert torch.equal(states, carried(subject.engine).states[:, 3].cpu())


def test_host_memory_is_page_locked_at_its_exact_size(subject: Subject) -> None:
    transfers = subject.engine._transfers
    for memory in (transfers._images, transfers._places, transfers._window):
        assert memory.data.is_pinned()
    assert transfers._places.data.nbytes == KEPT.host_pages * subject.engine.page_bytes


def test_pages_of_many_pieces_come_back(subject: Subject) -> None:
    """More than the window holds, in an order that is not theirs."""
    engine = subject.engine
    pages = list(range(engine.memory.pages))[::-1]
    data = bytes(engine.read_pages(pages))
    engine.write_pages(pages, memoryview(data))
    assert engine.read_pages(pages) == data
