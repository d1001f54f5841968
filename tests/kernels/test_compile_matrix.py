"""Every binary that a registered model uses, for every GPU we know, without a GPU (design, section 4)."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")

from ninfer.kernels.compile_matrix.chips import CHIPS, Chip
from ninfer.kernels.compile_matrix.compiling import Binary, assembled, compile_variant, compiled, complaints
from ninfer.kernels.compile_matrix.latency import stream_loops
from ninfer.kernels.compile_matrix.variant import Variant
from ninfer.kernels.low_bit_linear.matrix import matrix, reference
from ninfer.kernels.low_bit_linear.triton_chunk import product_chunk
from ninfer.kernels.low_bit_linear.triton_head import block_keys
from ninfer.kernels.low_bit_linear.triton_products import product_silu_mul
from ninfer.kernels.read_sweep.triton_sweep import sweep

# Compiled in full. The others are assembled from the PTX of the first, which is theirs but for the name of the chip.
FAMILIES = {80: (86, 89), 90: (), 100: (), 120: ()}

# Widths whose machine code is read, which takes half a second each.
DISASSEMBLED = {80: (8,), 90: (1, 8, 16), 100: (), 120: (8,)}
PARTS = 4  # of about equal cost, so that test workers share the work


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("capability", FAMILIES)
def test_binaries_fit_their_chip(capability: int, part: int) -> None:
    """The binaries that differ most; the others take minutes."""
    _check([variant for variant in _variants(capability) if _telling(variant, capability)][part::PARTS], capability)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("capability", FAMILIES)
def test_all_other_binaries_fit_their_chip(capability: int, part: int) -> None:
    _check([variant for variant in _variants(capability) if not _telling(variant, capability)][part::PARTS], capability)


def _variants(capability: int) -> list[Variant]:
    variants = [*matrix(CHIPS[capability]), *reference(CHIPS[capability])]
    assert len({variant.name for variant in variants}) == len(variants)
    return variants


def _telling(variant: Variant, capability: int) -> bool:
    """For the newest chip that was measured, one column of what a 27B launches and the widest; elsewhere one of each
    end: a product takes two to ten seconds to compile."""
    constants = variant.constants
    if variant.kernel is product_chunk:
        # Each format once, and one of them on each kind of matrix unit, with the tile that needs most registers.
        return constants["TILES"] == 8 and constants["TOKENS"] == 64 and (capability == 90 or constants["BITS"] == 5)
    if not variant.streams:
        return capability == 90
    kind = (constants["BITS"], constants.get("SLOTS"))
    gate, residual = variant.kernel is product_silu_mul and kind == (4, 2), kind == (5, 8)
    two = "BITS2" in constants and constants["WIDTH"] == 1
    if constants["WIDTH"] == 8:
        return (residual and capability in (80, 90, 120)) or (gate and capability in (80, 100, 120))
    return capability == 90 and (gate or (constants["WIDTH"] == 1 and (residual or two or kind == (8, 2))))


def _check(variants: list[Variant], capability: int) -> None:
    chip = CHIPS[capability]
    for variant in variants:
        binary, ptx = compiled(variant, chip)
        assert not complaints(variant, chip, binary), (capability, variant.name, binary)
        if variant.streams and variant.constants["WIDTH"] in DISASSEMBLED[capability]:
            _check_loops(variant, chip)
        for relative in FAMILIES[capability]:
            other = assembled(ptx, binary.shared_bytes, CHIPS[relative])
            assert not complaints(variant, CHIPS[relative], other), (relative, variant.name, other)


def _check_loops(variant: Variant, chip: Chip) -> None:
    """The next quantum has most of a turn to arrive, and spills stay beside the point."""
    loops = stream_loops(compile_variant(variant, chip).asm["cubin"])
    assert len(loops) == (2 if "BITS2" in variant.constants else 1)
    for loop in loops:
        assert loop.covered > 0.75, (chip.capability, variant.name, loop)
        assert loop.local_accesses <= variant.stack_bytes // 4, (chip.capability, variant.name, loop)
        assert not loop.moves, (chip.capability, variant.name, loop)


def test_a_family_covers_every_chip() -> None:
    assert sorted([*FAMILIES, *(other for others in FAMILIES.values() for other in others)]) == sorted(CHIPS)


def _variant(**changes: object) -> Variant:
    constants = {"PADDED": 256, "KEEP": 1, "DEPENDENT": False} | changes
    return Variant("keys", block_keys, {"logits": "fp32", "keys": "i64"}, constants, 4, dependent=False)


def test_what_is_wrong_is_found() -> None:
    chip = CHIPS[89]
    fine = Binary(128, 0, 0, 0, 0, 0, 0, 16)
    variant = next(reference(chip))
    assert variant.streams
    assert variant.after_stream == (0, 0)
    assert complaints(variant, chip, fine) == []
    for bad in (
        Binary(129, 0, 0, 0, 0, 0, 0, 16),
        Binary(128, 8, 0, 0, 0, 0, 0, 16),
        Binary(128, 0, 4, 0, 0, 0, 0, 16),
        Binary(128, 0, 0, 16, 0, 0, 0, 16),
        Binary(128, 0, 0, 0, 1, 0, 0, 16),
        Binary(128, 0, 0, 0, 0, 1, 0, 16),
        Binary(128, 0, 0, 0, 0, 0, 1, 16),
        Binary(128, 0, 0, 0, 0, 0, 0, 0),
    ):
        assert len(complaints(variant, chip, bad)) == 1, bad
    assert complaints(_variant(), chip, Binary(40, 0, 0, 100 * 1024, 0, 0, 0, 0))


def test_a_spill_is_seen_in_the_binary() -> None:
    """The largest tile with the fewest registers must show, or the whole matrix proves nothing."""
    chip = CHIPS[80]
    pointers, constants = {"logits": "fp32", "keys": "i64"}, _variant(PADDED=2048).constants
    tight = Variant("tight", block_keys, pointers, constants, 1, dependent=False, registers=32)
    binary, _ = compiled(tight, chip)
    assert binary.stack_bytes > 0
    assert any("spills" in text for text in complaints(tight, chip, binary))


def test_a_name_that_is_no_argument_is_noticed() -> None:
    with pytest.raises(AssertionError, match="names no argument"):
        _variant(WIDTH=8).signature()


def test_chips_know_their_limits() -> None:
    assert Chip(86, 1, 1).dependent_launch is False
    assert CHIPS[90].dependent_launch
    assert {chip.capability: chip.shared_bytes // 1024 for chip in CHIPS.values()} == {
        80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99,
    }  # fmt: skip


def test_a_load_that_is_waited_for_at_once_is_seen() -> None:
    """Without the order point the loads sink to their use; here a loop that uses at once what it loads."""
    sweep_loop = Variant("sweep", sweep, {"x": "i32", "out": "i32"}, {"STEP": 4096}, 4, dependent=False)
    (loop,) = stream_loops(compile_variant(sweep_loop, CHIPS[90]).asm["cubin"])
    assert loop.covered < 0.5
