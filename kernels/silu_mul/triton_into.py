"""Triton route."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
WARPS = 8


@triton.jit
def silu_mul_piece(gate_up, out, columns, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    kept = column < columns
    gate = tl.load(gate_up + row * 2 * columns + column, mask=kept, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * columns + columns + column, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + row * columns + column, (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16), mask=kept)


def silu_mul_into(gate_up: Tensor, out: Tensor) -> None:
    tokens, columns = out.shape
    silu_mul_piece[(tokens, triton.cdiv(columns, BLOCK))](gate_up, out, columns, SIZE=BLOCK, num_warps=WARPS)
