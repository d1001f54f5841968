"""The fake engine finds out who goes on from the wrong pages or the wrong state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer.step import (
    CaptureState,
    DecodeRound,
    DecodeRow,
    LaneSetup,
    LoadPages,
    PageMapping,
    ParkPages,
    PrefillChunk,
    RestoreState,
    standing_block,
)
from tests.engine.driving import GREEDY
from tests.support.engines import FakeEngine

PROMPT = tuple(range(1000, 1130))
FOLLOW = PrefillChunk(
    lane=1,
    begin=128,
    token_ids=(5, 6, 7),
    mapping=PageMapping(0, (3, 9, 4)),
    setup=LaneSetup(GREEDY, (), (*PROMPT[:128], 5, 6, 7)),
    sample=True,
    before=(RestoreState(0, 1),),
)


def words(prompt: tuple[int, ...]) -> list[int]:
    return [sum(prompt) % 97 + i for i in range(500)]


def engine(*, folds_late: bool = False) -> FakeEngine:
    """130 tokens read in lane 0, on pages 3, 9 and 5; image 0 is that of block 2."""
    fake = FakeEngine(words, folds_late=folds_late)
    fake.launch(
        PrefillChunk(
            0, 0, PROMPT, PageMapping(0, (3, 9, 5)), LaneSetup(GREEDY, (), PROMPT), sample=True,
            after=(CaptureState(0, 0),),
        )
    ).wait()  # fmt: skip
    return fake


def test_it_goes_on_from_an_image_and_draws_for_the_whole_prompt() -> None:
    result = engine().launch(FOLLOW).wait()
    assert result.drawn is not None
    assert result.drawn.token_ids == (words((*PROMPT[:128], 5, 6, 7))[0],)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"before": ()}, "another state"),
        ({"mapping": PageMapping(0, (9, 3, 4))}, "another page for block 0"),
        ({"mapping": PageMapping(0, (3, 8, 4))}, "another page for block 1"),
        ({"setup": LaneSetup(GREEDY, (), (*PROMPT[:127], 1, 5, 6, 7))}, "another page for block 1"),
        ({"before": (LoadPages((0,), (3,)), RestoreState(0, 1))}, None),
        ({"before": (CaptureState(1, 0), RestoreState(0, 1))}, "lane 1 has no state"),
    ],
)
def test_it_sees_wrong_pages_and_states(wrong: dict[str, object], message: str | None) -> None:
    with pytest.raises(KeyError if message is None else AssertionError, match=message):
        engine().launch(replace(FOLLOW, **wrong))  # type: ignore[arg-type]


def test_a_page_that_somebody_else_writes_is_missed_by_its_lane() -> None:
    fake = engine()
    fake.launch(PrefillChunk(2, 0, (1,), PageMapping(0, (9,)), LaneSetup(GREEDY, ()), sample=True)).wait()
    with pytest.raises(AssertionError, match="another page for block 1"):
        fake.launch(DecodeRound((DecodeRow(0, 130, PageMapping(3, ())),)))


def test_what_is_parked_or_read_out_comes_back() -> None:
    fake = engine()
    fake.launch(replace(FOLLOW, lane=3, before=(ParkPages((3, 9), (7, 1)), RestoreState(0, 3)))).wait()
    data, image = fake.read_pages((3, 9)), fake.read_image(0)
    fake.launch(
        replace(FOLLOW, mapping=PageMapping(0, (11, 12, 13)), before=(LoadPages((7, 1), (11, 12)), RestoreState(0, 1)))
    ).wait()
    other = FakeEngine(words)
    other.write_pages((21, 20), data)
    other.write_image(6, image)
    other.launch(replace(FOLLOW, mapping=PageMapping(0, (21, 20, 13)), before=(RestoreState(6, 1),))).wait()


@pytest.mark.parametrize("folds_late", [False, True])
def test_a_state_stands_where_its_rule_says(folds_late: bool) -> None:
    fake = engine(folds_late=folds_late)
    for positions in range(130, 195):
        page = PageMapping(3 if positions <= 192 else 4, (14,) if positions == 192 else ())
        fake.launch(DecodeRound((DecodeRow(0, positions, page),))).wait()
        fake.capture(0, 1)
        block = standing_block(positions + 1, drew=True, folds_late=folds_late)
        assert bytes(fake.read_image(1)[:8]) == block.to_bytes(8)
