"""The sweep reads every word: its sums are those of the memory, modulo 2**32."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.read_sweep.op import STEPS, WARPS, read_sweep


@pytest.mark.parametrize("programs", [1, 3, 40])
def test_sums_are_those_of_the_memory(programs: int) -> None:
    x = torch.randint(-(2**31), 2**31 - 1, (16 * 64,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    out = torch.empty(programs, dtype=torch.int32)
    read_sweep(x, out, 64, 4)
    assert (int(out.sum(dtype=torch.int64)) - int(x.sum(dtype=torch.int64))) % 2**32 == 0
    for program in range(programs):
        own = int(x.reshape(16, 64)[program::programs].sum(dtype=torch.int64))
        assert (int(out[program]) - own) % 2**32 == 0


def test_it_compiles_to_wide_loads() -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    from ninfer.kernels.compile_matrix.chips import CHIPS
    from ninfer.kernels.compile_matrix.compiling import compiled
    from ninfer.kernels.compile_matrix.variant import Variant
    from ninfer.kernels.read_sweep.triton_sweep import sweep

    for step in STEPS:
        for warps in WARPS:
            constants = {"STEP": step}
            binary, ptx = compiled(
                Variant("sweep", sweep, {"x": "i32", "out": "i32"}, constants, warps, dependent=False), CHIPS[90]
            )
            assert binary.narrow_loads == 0
            assert binary.stack_bytes == 0
            assert ptx.count("ld.global") == step // (32 * warps * 4)
