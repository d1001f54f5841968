"""The product of a short chunk on a CPU: run by `test_interpreted.py` in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear import op, ref
from ninfer.kernels.low_bit_linear.triton_chunk_launch import product_chunk
from ninfer.kernels.low_bit_linear.variants import ChunkTile
from tests.kernels.data import normal
from tests.kernels.low_bit_linear.data import Matrix, matrix
from tests.support import ptx
from tests.support.tolerance import BF16_ROUNDED, assert_within

ptx.install()

SMALL = ChunkTile(tiles=2, tokens=16, step=64, stages=2, warps=4)
WIDE = ChunkTile(tiles=1, tokens=32, step=128, stages=2, warps=4)
OTHER = ChunkTile(tiles=1, tokens=32, step=64, stages=2, warps=4)


def some_slow(*cases: object) -> list[Any]:
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


def made(x: Tensor, stored: Matrix, paired: bool, tile: ChunkTile | None = None) -> Tensor:
    """[T, N]: some columns in the middle of a buffer, all others of which stay NaN."""
    weight = stored.paired if paired else stored.packed
    buffer = torch.full((x.shape[0], weight.rows + 24), float("nan"), dtype=torch.bfloat16)
    out = buffer[:, 8 : 8 + weight.rows]
    product_chunk(x, weight, out, tile)
    assert int(buffer.isnan().sum()) == 24 * x.shape[0]
    return out


@pytest.mark.parametrize(("bits", "rows", "inner", "paired", "tokens", "tile"), [
    (4, 48, 320, False, 5, SMALL), (5, 48, 256, True, 19, SMALL), (6, 24, 128, False, 3, WIDE),
    (8, 40, 192, False, 4, SMALL),
    *some_slow((4, 48, 256, True, 33, WIDE), (5, 136, 320, False, 17, None), (6, 272, 192, True, 1, None),
               (8, 48, 384, True, 20, WIDE), (4, 136, 512, False, 70, None)),
], ids=str)  # fmt: skip
def test_a_chunk_matches_the_oracle(
    bits: int, rows: int, inner: int, paired: bool, tokens: int, tile: ChunkTile | None
) -> None:
    stored = matrix(rows, inner, bits)
    x = normal(tokens, inner, seed=1, dtype=torch.bfloat16)
    rounded = stored.wide.float().bfloat16()  # exact in fp32
    assert_within(BF16_ROUNDED, made(x, stored, paired, tile), ref.product_ref(x, rounded))


@pytest.mark.parametrize("bits", [5, 8, *some_slow(4, 6)])
def test_weights_are_those_that_dequantise_writes(bits: int) -> None:
    """A row of x that picks one column returns its weights as they are; scales are all finite numbers of fp16."""
    stored = matrix(16, 128, bits, any_scale=True)
    wide = torch.empty(16, 128, dtype=torch.bfloat16)
    op.dequantise(stored.packed, wide)
    picked = made(torch.eye(128, dtype=torch.bfloat16), stored, False, ChunkTile(1, 128, 64, 2, 4))
    assert torch.equal(picked.t(), wide)


def test_a_token_does_not_see_its_neighbours_nor_the_tile() -> None:
    stored = matrix(48, 256, 5)
    x = normal(20, 256, seed=2, dtype=torch.bfloat16)
    whole = made(x, stored, False, SMALL)
    for tokens, tile in ((1, SMALL), (3, OTHER), (20, OTHER)):
        assert torch.equal(made(x[:tokens].contiguous(), stored, False, tile), whole[:tokens])
