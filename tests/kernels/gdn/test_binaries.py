"""Every binary that a registered model uses, for every GPU we know, without a GPU (design, section 4)."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")

from ninfer.kernels.compile_matrix.chips import CHIPS
from ninfer.kernels.compile_matrix.compiling import assembled, compiled, complaints
from ninfer.kernels.gdn.matrix import HIDDEN, matrix

# Compiled in full. The others are assembled from the PTX of the first, which is theirs but for the name of the chip.
FAMILIES = {80: (86, 89), 90: (), 100: (), 120: ()}


SLOW = [pytest.param(capability, marks=pytest.mark.slow) for capability in (80, 100, 120)]


@pytest.mark.parametrize("capability", [90, *SLOW])
def test_binaries_fit_their_chip(capability: int) -> None:
    """A width of the layer's input more adds steps to one loop: in every run the first is enough."""
    chip = CHIPS[capability]
    for variant in matrix(chip):
        if capability == 90 and variant.name.endswith(f"{HIDDEN[1]} wide"):
            continue
        binary, ptx = compiled(variant, chip)
        assert not complaints(variant, chip, binary), (capability, variant.name, binary)
        for relative in FAMILIES[capability]:
            other = assembled(ptx, binary.shared_bytes, CHIPS[relative])
            assert not complaints(variant, CHIPS[relative], other), (relative, variant.name, other)
