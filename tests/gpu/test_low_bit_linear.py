"""The Triton route on a device: against the plain route and, where a launch does two things, against two launches."""

from __future__ import annotations

import pytest
import torch

from ninfer.bench.linear_stack import random_weight
from ninfer.kernels.low_bit_linear import op, torch_dequantised
from ninfer.kernels.low_bit_linear.pack import LowBitWeight

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")


def weight_of(rows: int, inner: int, bits: int, seed: int = 0, *, paired: bool = False) -> LowBitWeight:
    plain = random_weight((rows, inner, bits), DEVICE, torch.Generator(DEVICE).manual_seed(seed))
    return LowBitWeight(plain.words, rows, inner, bits, paired)


@pytest.mark.parametrize(("bits", "rows", "inner", "paired"), [
    (4, 34816, 5120, True), (5, 5120, 17408, False), (6, 1000, 5128, False), (8, 4096, 2048, True), (5, 43, 520, False),
])  # fmt: skip
def test_a_whole_matrix_is_that_of_the_plain_route(bits: int, rows: int, inner: int, paired: bool) -> None:
    weight = weight_of(rows, inner, bits, paired=paired)
    plain, out = (torch.full((rows, inner), float("nan"), dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    torch_dequantised.dequantise(weight, plain)
    op.dequantise(weight, out)
    assert torch.equal(out, plain)
