"""The Triton routes on a CPU: run by `test_interpreted.py` in a process with TRITON_INTERPRET=1.

Proves arithmetic, addresses, the cut into units and their merging; layouts and registers are the compile matrix's
business, speed the benchmark's.
"""

from __future__ import annotations

import pytest

from ninfer.kernels.kv_codec.pool import Codec
from ninfer.kernels.paged_attention import triton_launch
from tests.kernels.paged_attention.cases import case, expected, tolerance
from tests.support import ptx
from tests.support.tolerance import assert_within

ptx.install()


@pytest.mark.parametrize(
    ("positions", "columns", "heads", "kv_heads", "codec", "programs"),
    [
        ((0,), 1, 6, 1, "int8", 3),
        ((127, 5), 2, 4, 2, "int8", 5),
        ((200,), 4, 6, 1, "int8", 2),
        ((63, 300), 1, 2, 1, "bf16", 4),
        ((126,), 4, 6, 1, "bf16", 1),
    ],
    ids=str,
)
def test_a_round(
    positions: tuple[int, ...], columns: int, heads: int, kv_heads: int, codec: Codec, programs: int
) -> None:
    made = case(positions, columns, heads, kv_heads, codec)
    got = made.run(triton_launch.attention_round, made.scratch(programs))
    assert_within(tolerance(codec), got, expected(made))
