"""Binaries for GPUs that are not there: they fit their chip, and a page goes from memory to the matrix unit without
shared memory. The largest and the most used of each kernel; the whole matrix takes minutes."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")

from ninfer.kernels.compile_matrix.chips import CHIPS
from ninfer.kernels.compile_matrix.compiling import compile_variant, compiled, complaints
from ninfer.kernels.paged_attention.matrix import chunk_variants, matrix, round_variant


@pytest.mark.parametrize("capability", [pytest.param(86, marks=pytest.mark.slow), 90])
def test_prefill_fits_its_chip(capability: int) -> None:
    chip = CHIPS[capability]
    for variant in chunk_variants(chip, "int8", 24, 4):
        binary, _ = compiled(variant, chip)
        assert not complaints(variant, chip, binary), (capability, variant.name, binary)


def test_a_round_fits_its_chip() -> None:
    chip = CHIPS[90]
    variant = round_variant(chip, "int8", 24, 4, 1)
    binary, _ = compiled(variant, chip)
    assert not complaints(variant, chip, binary), binary
    # Only weights change hands between warps: 64 keys, four quarters, eight queries in fp16.
    assert binary.shared_bytes == 64 * 4 * 8 * 2
    code = compile_variant(variant, chip).asm["ttgir"]
    products = [line for line in code.splitlines() if "tt.dot" in line]
    assert len(products) == 5
    assert code.count("ttg.local_alloc") == 1


@pytest.mark.slow
@pytest.mark.parametrize("capability", CHIPS)
def test_the_whole_matrix_fits_its_chip(capability: int) -> None:
    chip = CHIPS[capability]
    names: set[str] = set()
    for variant in matrix(chip):
        assert variant.name not in names
        names.add(variant.name)
        binary, _ = compiled(variant, chip)
        assert not complaints(variant, chip, binary), (capability, variant.name, binary)
