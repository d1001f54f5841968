"""The Triton routes on a CPU: run by `test_interpreted.py` in a process with TRITON_INTERPRET=1.

Proves arithmetic, addresses, the cut into units and their merging; layouts and registers are the compile matrix's
business, speed the benchmark's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ninfer.kernels.kv_codec.pool import Codec
from ninfer.kernels.paged_attention import op, triton_launch
from ninfer.kernels.paged_attention.variants import ChunkTile
from tests.kernels.paged_attention.cases import case, expected, expected_prompt, prompt, tolerance
from tests.support import ptx
from tests.support.tolerance import assert_within

ptx.install()

NEVER, ALWAYS = 0, 1 << 30  # programs below which units are split


@pytest.mark.parametrize(
    ("positions", "columns", "heads", "kv_heads", "codec", "programs"),
    [
        ((0,), 1, 6, 1, "int8", 3),
        ((127, 5), 2, 4, 2, "int8", 5),
        ((200,), 4, 6, 1, "int8", 2),
        ((126,), 4, 6, 1, "bf16", 1),
        ((2050,), 1, 1, 1, "bf16", 5),
    ],
    ids=str,
)
def test_a_round(
    positions: tuple[int, ...], columns: int, heads: int, kv_heads: int, codec: Codec, programs: int
) -> None:
    made = case(positions, columns, heads, kv_heads, codec)
    got = made.run(triton_launch.attention_round, made.scratch(programs))
    assert_within(tolerance(codec), got, expected(made))


@pytest.mark.parametrize(("codec", "heads", "kv_heads", "described"), [("int8", 1, 1, True), ("bf16", 2, 1, False)])
def test_a_chunk(codec: Codec, heads: int, kv_heads: int, described: bool) -> None:
    """Two cuts into chunks give the same bits, near the oracle; the rows stored are those of the plain route."""
    tile = ChunkTile(32, 32, 1, 4, described)
    made, other, plain = (prompt(70, heads, kv_heads, codec) for _ in range(3))
    got = made.run(triton_launch.attention_chunk, (64,), tile, NEVER)
    assert_within(tolerance(codec), got, expected_prompt(made))
    assert torch.equal(other.run(triton_launch.attention_chunk, (), tile, NEVER), got)
    plain.run(op.attention_chunk, (64,))
    assert torch.equal(made.pool.values.view(torch.uint8), plain.pool.values.view(torch.uint8))
    keys, others = made.pool.keys.nan_to_num(), plain.pool.keys.nan_to_num()
    assert float((keys != others).float().mean()) < 0.01


def test_units_are_joined_alike_by_one_program_and_by_many() -> None:
    """Two units of 64 keys, the second one short; blocks of queries that see fewer units than their chunk."""
    tile = ChunkTile(32, 32, 1, 4, described=True, unit=64)
    made, other, cut, one_unit = (prompt(100, 1, 1, "bf16") for _ in range(4))
    whole = made.run(triton_launch.attention_chunk, (), tile, NEVER)
    assert_within(tolerance("bf16"), whole, expected_prompt(made))
    assert torch.equal(other.run(triton_launch.attention_chunk, (), tile, ALWAYS), whole)
    assert torch.equal(cut.run(triton_launch.attention_chunk, (70,), tile, ALWAYS), whole)
    # Units do change how sums are rounded.
    assert not torch.equal(one_unit.run(triton_launch.attention_chunk, (), replace(tile, unit=128), NEVER), whole)


def test_units_without_room_for_their_sums_share_a_program() -> None:
    tile = ChunkTile(32, 32, 1, 4, described=False, unit=32)
    split, looped = (
        prompt(70, 1, 1, "bf16").run(triton_launch.attention_chunk, (), tile, ALWAYS, spare=spare) for spare in (4, 1)
    )
    assert torch.equal(split, looped)
