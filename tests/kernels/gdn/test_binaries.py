"""Every binary that a registered model uses, for every GPU we know, without a GPU (design, section 4)."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")

from ninfer.kernels.compile_matrix.chips import CHIPS, Chip
from ninfer.kernels.compile_matrix.compiling import assembled, compile_variant, compiled, complaints
from ninfer.kernels.compile_matrix.variant import Variant
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


def sums(variant: Variant, chip: Chip) -> set[tuple[str, str, str]]:
    """Axis, number of values along it and layout of every kind of sum in a binary, but for those that pick one number
    among those of a group's columns, to which zeros are added."""
    lines = compile_variant(variant, chip).asm["ttgir"].splitlines()
    aliases = (re.match(r"(#\w+) = (#ttg\.\S+<.*>)", line) for line in lines)
    layouts = {alias[1]: alias[2] for alias in aliases if alias}
    found: set[tuple[str, str, str]] = set()
    axis = ""
    for line in lines:
        if begin := re.search(r"tt\.reduce.*axis = (\d)", line):
            axis = begin[1]
        elif axis and (end := re.search(r"}\) : \(tensor<([\dx]+)x\w+, (.*?)>\) -> ", line)):
            shape = end[1].split("x")
            if shape != [str(2 * int(str(variant.constants["GROUP"])))]:
                layout = re.sub(r"#\w+", lambda name: layouts.get(name[0], name[0]), end[2])
                found.add((axis, shape[int(axis)], layout))
            axis = ""
    return found


@pytest.mark.parametrize("capability", [90, *SLOW])
def test_rounds_of_one_column_and_of_several_add_up_alike(capability: int) -> None:
    """A sum's layout is its order: bits would depend on a column's company, which an interpreter cannot see."""
    chip = CHIPS[capability]
    one, several = (
        variant for variant in matrix(chip) if re.fullmatch(rf"round of \d+, {HIDDEN[0]} wide", variant.name)
    )
    assert len(sums(one, chip)) == 7
    assert sums(one, chip) == sums(several, chip)
