"""A read-only sweep over memory."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = (4096, 8192)  # int32 per step of a program
WARPS = (4, 8)


def read_sweep(x: Tensor, out: Tensor, step: int, warps: int) -> None:
    """out[p] = sum modulo 2**32 of what program p reads

    x        [n] int32, contiguous, n a multiple of `step`
    out      [programs] int32; programs take steps in turn
    step     int32 words per step, a power of two
    warps    of a program; a plain-torch run ignores it
    effects  writes out
    """
    assert x.numel() % step == 0
    if x.is_cuda:
        from ninfer.kernels.read_sweep import triton_sweep

        triton_sweep.read_sweep(x, out, step, warps)
        return
    programs = out.shape[0]
    sums = x.reshape(-1, step).sum(-1, dtype=torch.int64)
    for program in range(programs):
        total = int(sums[program::programs].sum()) & 0xFFFFFFFF
        out[program] = total - (1 << 32) if total >= 1 << 31 else total
