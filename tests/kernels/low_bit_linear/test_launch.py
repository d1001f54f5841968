"""What is launched is what the compile matrix compiled: the same cache keys, found without a GPU by a driver that only
names one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is published for Linux only")

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from ninfer.kernels.compile_matrix.chips import CHIPS
from ninfer.kernels.compile_matrix.compiling import compile_variant
from ninfer.kernels.compile_matrix.variant import Variant
from ninfer.kernels.low_bit_linear import triton_launch
from ninfer.kernels.low_bit_linear.buffers import columns_buffer
from ninfer.kernels.low_bit_linear.matrix import matrix
from ninfer.kernels.low_bit_linear.triton_head import merge_keys
from tests.kernels.low_bit_linear.cases import EPS, products
from tests.kernels.low_bit_linear.data import matrix as stored_matrix

CHIP = CHIPS[90]


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """The part of a driver that choosing and compiling a binary needs."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CHIP.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: Any
    options: dict[str, Any]
    hash: str

    def is_of(self, variant: Variant) -> bool:
        given = {name: value for name, value in self.options.items() if name in self.kernel.arg_names}
        return variant.kernel is self.kernel and dict(variant.constants) == given


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    """Every launch with the key of its binary; nothing is run."""
    found: list[Launch] = []
    original = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = original(self, *arguments, grid=grid, warmup=True, **options)
        found.append(Launch(self, options, kernel.hash))
        return kernel

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(triton_launch, "dependent", lambda device: CHIP.dependent_launch)
    monkeypatch.setattr(driver, "_active", NamedGpu())
    yield found
    for kernel in triton_launch.KERNELS:
        kernel.device_caches.clear()


def test_launches_use_the_binaries_of_the_matrix(launched: list[Launch]) -> None:
    triton_launch.settle_cache_keys()
    one = products([stored_matrix(32, 512, 8)], 11, programs=4)
    two = products([stored_matrix(32, 512, 4), stored_matrix(32, 512, 5)], 1, programs=8)
    for x, tokens, launch in ((columns_buffer(512, 11, "cpu"), 11, one), (columns_buffer(512, 1, "cpu"), 1, two)):
        triton_launch.multiply(x, tokens, [(product.weight, product.sums) for product in launch])
    # Four and eight slots, as the 27B has them, of matrices that take less time to make.
    (four,) = products([stored_matrix(64, 2048, 4)], 16, programs=15)
    (eight,) = products([stored_matrix(32, 2048, 5)], 16, programs=16)
    (gate,) = products([stored_matrix(64, 512, 4)], 16, programs=7)
    assert (four.sums.slots, eight.sums.slots, gate.sums.slots) == (4, 8, 2)
    x, inner = columns_buffer(32, 16, "cpu", EPS), columns_buffer(32, 16, "cpu")
    residual, weight = torch.zeros(16, 32, dtype=torch.bfloat16), torch.zeros(32)
    assert x.norm is not None
    triton_launch.finish_rows(four.sums, 16, x.norm, torch.empty(16, 64, dtype=torch.bfloat16))
    triton_launch.finish_silu_mul(gate.sums, 16, x.norm, inner)
    triton_launch.finish_residual(None, residual, weight, x, x.norm)
    triton_launch.finish_residual(eight.sums, residual, weight, x, x.norm)
    triton_launch.finish_head(gate.sums, 16, x.norm, 60, 1, None)
    triton_launch.finish_head(gate.sums, 16, x.norm, 60, 20, torch.empty(16, 64))
    triton_launch.dequantise(gate.weight, torch.empty(64, 512, dtype=torch.bfloat16))
    assert {launch.kernel for launch in launched} == {*triton_launch.KERNELS} - {merge_keys}
    for launch in launched:
        (variant,) = (variant for variant in matrix(CHIP) if launch.is_of(variant))
        assert compile_variant(variant, CHIP).hash == launch.hash, variant.name
