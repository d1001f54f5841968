"""Every binary that a registered model uses, for every GPU we know, without a GPU (design, section 4)."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")

from ninfer.kernels.compile_matrix.chips import CHIPS
from ninfer.kernels.compile_matrix.compiling import assembled, compiled, complaints
from ninfer.kernels.gdn.matrix import matrix

# Compiled in full. The others are assembled from the PTX of the first, which is theirs but for the name of the chip.
FAMILIES = {80: (86, 89), 90: (), 100: (), 120: ()}


@pytest.mark.parametrize("capability", FAMILIES)
def test_binaries_fit_their_chip(capability: int) -> None:
    chip = CHIPS[capability]
    for variant in matrix(chip):
        binary, ptx = compiled(variant, chip)
        assert not complaints(variant, chip, binary), (capability, variant.name, binary)
        for relative in FAMILIES[capability]:
            other = assembled(ptx, binary.shared_bytes, CHIPS[relative])
            assert not complaints(variant, CHIPS[relative], other), (relative, variant.name, other)
