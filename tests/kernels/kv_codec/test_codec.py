"""Codes and scales of cache rows against the bytes of the specification."""

from __future__ import annotations

import math

import pytest
import torch

from ninfer.kernels.kv_codec import op
from ninfer.kernels.kv_codec.pool import Codec, empty_pool
from tests.kernels.data import normal
from tests.kernels.kv_codec import vectors
from tests.support.tolerance import FP32_ELEMENTWISE, FP32_REDUCTION, assert_within


def raw(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def test_the_key_row_of_the_specification() -> None:
    rotated = op.hadamard(vectors.key_row())
    first = [
        0.521220982,
        0.0173112899,
        -0.0112836957,
        0.0216177106,
        -0.0531194657,
        0.0211942792,
        0.0759122968,
        0.552196681,
    ]
    assert_within(FP32_ELEMENTWISE, rotated[[*range(8), 255]], torch.tensor([*first, 0.00246793032]).double())
    codes, scales = op.int8_codes(rotated, narrow=True)
    assert raw(codes) == vectors.KEY_CODES
    assert raw(scales) == vectors.KEY_SCALES


def test_the_value_row_of_the_specification() -> None:
    codes, scales = op.int8_codes(vectors.value_row().float(), narrow=True)
    assert raw(codes) == vectors.VALUE_CODES
    assert raw(scales) == vectors.VALUE_SCALES


@pytest.mark.parametrize("width", [4, 64, 256])
def test_the_rotation_is_its_matrix_and_its_own_inverse(width: int) -> None:
    x = normal(5, width)
    matrix = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(width)] for i in range(width)]).double()
    assert_within(FP32_REDUCTION, op.hadamard(x), x.double() @ matrix / math.sqrt(width))
    assert_within(FP32_REDUCTION, op.hadamard(op.hadamard(x)), x.double())


def test_zero_groups_and_ties() -> None:
    x = torch.zeros(1, 128)
    x[0, 64:67] = torch.tensor([127.0, 0.5, 1.5])
    codes, scales = op.int8_codes(x, narrow=False)
    assert scales.tolist() == [[0.0, 1.0]]
    assert codes[0, 64:67].tolist() == [127, 0, 2]
    assert not codes[0, :64].any()


@pytest.mark.parametrize("codec", ["int8", "bf16"])
def test_stored_rows_come_back(codec: Codec) -> None:
    """Within half a step of their group; nothing else is written."""
    pool = empty_pool(3, 2, 64, codec, "cpu")
    for plane in (pool.keys, pool.values, pool.key_scales, pool.value_scales):
        if plane is not None:
            plane.zero_()
    k, v = normal(4, 2, 64).bfloat16(), normal(4, 2, 64, seed=1).bfloat16()
    pages, offsets = torch.tensor([2, 2, 0, 1]), torch.tensor([63, 0, 5, 7])
    op.store(k, v, pages, offsets, pool)
    keys, values = op.decoded_pages(pool, torch.arange(3))
    for rows, planes in ((op.hadamard(k) if codec == "int8" else k.float(), keys), (v.float(), values)):
        step = rows.abs().amax(-1, keepdim=True) / 127 if codec == "int8" else torch.zeros(1)
        assert bool(((planes[pages, :, offsets] - rows).abs() <= 0.51 * step).all())
        planes[pages, :, offsets] = 0
        assert not planes.any()
