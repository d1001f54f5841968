"""The GPU engine goes on from states and pages that were kept, at the 27B's widths, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from ninfer.engine.device_engine import DeviceEngine
from tests.engine import resuming
from tests.engine.resuming import Subject, carried, image_parts
from tests.gpu.models import VOCABULARY, cut
from tests.gpu.test_engine import SETTINGS

pytestmark = pytest.mark.gpu

KEPT = dataclasses.replace(SETTINGS, **resuming.SETTINGS)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    load = partial(DeviceEngine.load, cut(tmp_path_factory.mktemp("models"), "gagg"), KEPT, VOCABULARY)
    yield Subject(load, load(), VOCABULARY, decoded=0.03)
    torch.cuda.empty_cache()


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
