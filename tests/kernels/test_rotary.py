"""Partial interleaved rotation on three axes."""

from __future__ import annotations

import pytest
import torch

from ninfer.artifact.config import interleaved_sections
from ninfer.kernels.rotary.op import rotary_frequencies, rotary_tables, rotate
from ninfer.kernels.rotary.ref import frequencies_ref, rotate_ref
from tests.kernels.data import DTYPES, normal
from tests.support.tolerance import BF16_ROUNDED, FP32_ELEMENTWISE, FP32_REDUCTION, assert_within

CPU = torch.device("cpu")


def test_frequencies_are_those_of_the_spec() -> None:
    f = rotary_frequencies(1e7, 64, CPU)
    assert_within(FP32_ELEMENTWISE, f, frequencies_ref(1e7, 64))
    for i, value in {
        0: 1,
        1: 0.60429639,
        2: 0.365174127,
        15: 5.23299115e-4,
        16: 3.16227766e-4,
        31: 1.6548171e-7,
    }.items():
        assert float(f[i]) == pytest.approx(value, rel=1e-6)


def test_axes_interleave() -> None:
    """Section 6.2: 11 frequencies of time, 11 of height, 10 of width."""
    positions = torch.tensor([[0], [1], [2]])
    cos, _ = rotary_tables(positions, torch.full((32,), 0.5), (11, 11, 10))
    axis = [min(range(3), key=lambda n: abs(float(c) - float(torch.cos(torch.tensor(n * 0.5))))) for c in cos[0]]
    assert [i for i in range(32) if axis[i] == 0] == list(range(0, 31, 3))
    assert [i for i in range(32) if axis[i] == 1] == list(range(1, 32, 3))
    assert [i for i in range(32) if axis[i] == 2] == list(range(2, 30, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim", "rotary"), [(256, 64), (96, 24), (32, 8), (8, 8)], ids=str)
def test_rotate(head_dim: int, rotary: int, dtype: torch.dtype) -> None:
    pairs = rotary // 2
    section = interleaved_sections(pairs, (pairs, pairs, pairs))
    x = normal(9, 3, head_dim, dtype=dtype)
    positions = torch.stack([torch.arange(9), torch.arange(9) * 3, torch.arange(9).flip(0)])
    cos, sin = rotary_tables(positions, rotary_frequencies(1e4, rotary, CPU), section)
    got = rotate(x, cos, sin)
    expected = rotate_ref(x, positions, 1e4, rotary, section)
    assert_within(FP32_REDUCTION if dtype == torch.float32 else BF16_ROUNDED, got, expected)
    assert torch.equal(got[..., rotary:], x[..., rotary:])
    for t in (0, 4, 8):
        one = rotary_tables(positions[:, t : t + 1], rotary_frequencies(1e4, rotary, CPU), section)
        assert torch.equal(rotate(x[t : t + 1], *one)[0], got[t])
