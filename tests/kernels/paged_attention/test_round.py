"""The plain route of a round, and the cut into units."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ninfer.kernels.kv_codec.pool import Codec
from ninfer.kernels.paged_attention import op
from ninfer.kernels.paged_attention.units import BORDER_UNITS, LONG_PAGES, SHORT_PAGES, units_of
from tests.kernels.paged_attention.cases import case, expected, tolerance
from tests.support.tolerance import assert_within


@pytest.mark.parametrize("codec", ["int8", "bf16"])
@pytest.mark.parametrize(
    ("positions", "columns", "heads", "kv_heads", "width"),
    [((0,), 1, 6, 1, 256), ((127, 5), 2, 4, 2, 256), ((200, 60), 16, 6, 2, 64), ((63, 300, 1000), 1, 2, 1, 64)],
    ids=str,
)
def test_a_round(positions: tuple[int, ...], columns: int, heads: int, kv_heads: int, width: int, codec: Codec) -> None:
    made = case(positions, columns, heads, kv_heads, codec, width=width)
    got = made.run(op.attention_round, made.scratch(1))
    assert_within(tolerance(codec), got, expected(made))


@pytest.mark.parametrize("codec", ["int8", "bf16"])
def test_a_token_knows_neither_lanes_nor_columns(codec: Codec) -> None:
    made = case((130, 62, 7), 4, 4, 2, codec, width=64)
    alone = [made.lane(b) for b in range(3)]
    single = made.copy()
    whole = made.run(op.attention_round, made.scratch(1))
    for b, lane in enumerate(alone):
        assert torch.equal(lane.run(op.attention_round, lane.scratch(1)), whole[4 * b : 4 * b + 4])
    for column in range(4):
        one = single.column(column)
        assert torch.equal(one.run(op.attention_round, one.scratch(1)), whole[column::4])
        single = replace(single, pool=one.pool)


def test_units_cover_all_pages() -> None:
    border = BORDER_UNITS * SHORT_PAGES
    pages = (1, 2, 3, border, border + 1, border + LONG_PAGES, border + LONG_PAGES + 1)
    assert [units_of(count) - BORDER_UNITS for count in pages[3:]] == [0, 1, 1, 2]
    assert [units_of(count) for count in pages[:3]] == [1, 1, 2]
