"""The device functions on a CPU: run by `test_interpreted.py` in a process with TRITON_INTERPRET=1."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ninfer.kernels.kv_codec import op
from ninfer.kernels.kv_codec.triton_rows import hadamard, load_rows, store_parts, store_parts_int8, store_rows_int8
from tests.kernels.data import normal
from tests.kernels.kv_codec import vectors
from tests.support import ptx

ptx.install()


@triton.jit
def encode(x, rotated, key_codes, key_scales, codes, scales, count):
    row = tl.arange(0, 8)
    present = row < count
    rows = load_rows(x, row * 256, present)
    parts = hadamard(rows)
    store_parts(parts, rotated, row * 256, present)
    store_parts_int8(parts, key_codes, key_scales, row * 256, row * 4, present)
    store_rows_int8(rows, codes, scales, row * 256, row * 4, present)


def test_rows_get_the_bytes_of_the_plain_route_and_of_the_specification() -> None:
    x = torch.cat([vectors.key_row()[None], vectors.value_row()[None], normal(4, 256).bfloat16()])
    x[3] = 0
    x[4, 64:128] = 0
    x[5] *= 1e-3
    count = x.shape[0]
    rotated = torch.full((8, 256), 7.0)
    key_codes, codes = (torch.full((8, 256), 7, dtype=torch.int8) for _ in range(2))
    key_scales, scales = (torch.full((8, 4), 7.0, dtype=torch.float16) for _ in range(2))
    encode[(1,)](x, rotated, key_codes, key_scales, codes, scales, count)
    assert torch.equal(rotated[:count], op.hadamard(x))
    for got, want in (
        ((key_codes, key_scales), op.int8_codes(op.hadamard(x), narrow=True)),
        ((codes, scales), op.int8_codes(x.float(), narrow=True)),
    ):
        for part, plain in zip(got, want, strict=True):
            assert torch.equal(part[:count], plain)
            assert bool((part[count:] == 7).all())
    assert key_codes[0].numpy().tobytes() == vectors.KEY_CODES
    assert key_scales[0].numpy().tobytes() == vectors.KEY_SCALES
    assert codes[1].numpy().tobytes() == vectors.VALUE_CODES
    assert scales[1].numpy().tobytes() == vectors.VALUE_SCALES
