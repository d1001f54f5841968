"""The page of state machines is the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.scheduler import pictures, transitions
from ninfer.scheduler.transitions import DeviceState, LaneState, Lifecycle, RequestState


def test_the_page_is_not_stale() -> None:
    page = Path(__file__).parents[2] / "docs" / "state-machines.md"
    assert page.read_text() == pictures.document(), "run python -m ninfer.scheduler.pictures > docs/state-machines.md"


@pytest.mark.parametrize("states", [Lifecycle, RequestState, LaneState, DeviceState])
def test_every_state_says_what_it_owns(states: type) -> None:
    assert set(pictures.comments(states)) == {state.name for state in states}


@pytest.mark.parametrize("name", ["LIFECYCLE", "REQUEST", "LANE", "DEVICE"])
def test_every_state_can_be_reached(name: str) -> None:
    table = getattr(transitions, name)
    states = type(next(iter(table.values())))
    first = next(iter(states))
    assert {first, *table.values()} == set(states)
