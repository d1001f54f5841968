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
from ninfer.kernels.low_bit_linear import triton_chunk_launch, triton_launch
from ninfer.kernels.low_bit_linear.buffers import columns_buffer
from ninfer.kernels.low_bit_linear.matrix import matrix, reference
from ninfer.kernels.low_bit_linear.triton_head import merge_keys
from ninfer.kernels.served.kernels import settle_cache_keys
from tests.kernels.low_bit_linear.cases import EPS, paired_product, products
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
    for kernel in (*triton_launch.KERNELS, *triton_chunk_launch.KERNELS):
        kernel.device_caches.clear()


def test_launches_use_the_binaries_of_the_matrix(launched: list[Launch]) -> None:
    """Four, two and eight slots, as the 27B has them, of matrices that take less time to make; binaries that the
    default run of the compile matrix has made."""
    settle_cache_keys()
    tokens = 1
    x, inner = columns_buffer(512, tokens, "cpu", EPS), columns_buffer(32, tokens, "cpu")
    wide, narrow = columns_buffer(1024, tokens, "cpu", EPS), columns_buffer(1024, 8, "cpu")
    two = products([stored_matrix(32, 1024, 4), stored_matrix(32, 1024, 5)], tokens, programs=12)
    pairs = [(product.weight, product.sums) for product in two]
    assert max(product.sums.slots for product in two) == 4
    outs = [torch.empty(tokens, 32, dtype=torch.bfloat16) for _ in two]
    triton_launch.product_rows(wide, tokens, pairs, outs)
    (head,) = products([stored_matrix(64, 512, 8)], tokens, programs=3)
    logits = torch.empty(tokens, 64)
    triton_launch.product_rows(x, tokens, [(head.weight, head.sums)], [logits])
    gate = paired_product(stored_matrix(64, 512, 4), tokens, programs=7)
    triton_launch.product_silu_mul(x, tokens, gate.weight, gate.sums, inner)
    mixed, y = columns_buffer(2048, tokens, "cpu"), columns_buffer(32, tokens, "cpu", EPS)
    (eight,) = products([stored_matrix(32, 2048, 5)], tokens, programs=16)
    assert eight.sums.slots == 8
    residual, weight = torch.zeros(tokens, 32, dtype=torch.bfloat16), torch.zeros(32)
    assert x.norm is not None
    assert y.norm is not None
    triton_launch.product_residual(mixed, tokens, eight.weight, eight.sums, residual, weight, y, y.norm, x.norm)
    triton_launch.first_norm(residual, weight, y, y.norm, x.norm)
    triton_launch.candidates(logits, 60, 1)
    triton_launch.candidates(logits, 60, 20)
    triton_launch.dequantise(gate.weight, torch.empty(64, 512, dtype=torch.bfloat16))
    # What only the benchmark launches.
    narrow_inner, z = (columns_buffer(32, 8, "cpu", EPS) for _ in range(2))
    assert z.norm is not None
    triton_launch.multiply(narrow, 8, pairs[:1])
    triton_launch.multiply(narrow, 8, pairs)
    triton_launch.finish_rows(head.sums, 8, z.norm, torch.empty(8, 64, dtype=torch.bfloat16))
    triton_launch.finish_silu_mul(gate.sums, 8, z.norm, narrow_inner)
    (pair,) = products([stored_matrix(32, 512, 5)], 8, programs=3)
    residual = torch.zeros(8, 32, dtype=torch.bfloat16)
    triton_launch.finish_residual(pair.sums, residual, weight, z, z.norm, x.norm)
    assert {launch.kernel for launch in launched} == {*triton_launch.KERNELS} - {merge_keys}
    for launch in launched:
        (variant,) = (variant for variant in [*matrix(CHIP), *reference(CHIP)] if launch.is_of(variant))
        assert compile_variant(variant, CHIP).hash == launch.hash, variant.name


@pytest.mark.parametrize("paired", [False, True])
def test_a_short_chunk_uses_a_binary_of_the_matrix(
    launched: list[Launch], monkeypatch: pytest.MonkeyPatch, paired: bool
) -> None:
    """With one multiprocessor every matrix has rows enough for the wide tile, as the 27B's largest has on a GPU."""
    settle_cache_keys()
    monkeypatch.setattr(triton_chunk_launch, "chip_of", lambda device: (CHIP.capability, 1))
    stored = stored_matrix(64, 192, 4)
    x, out = torch.zeros(3, 192, dtype=torch.bfloat16), torch.empty(3, 96, dtype=torch.bfloat16)
    triton_chunk_launch.product_chunk(x, stored.paired if paired else stored.packed, out[:, 8:72])
    (launch,) = launched
    (variant,) = (variant for variant in matrix(CHIP) if launch.is_of(variant))
    assert compile_variant(variant, CHIP).hash == launch.hash, variant.name
