"""Packed matrices hold exactly the stored codes and scales, where the kernel expects them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ninfer.kernels.low_bit_linear import ptx
from ninfer.kernels.low_bit_linear.pack import allocate, pack_paired, pack_pairs, pack_rows, packed_bytes, unpack
from ninfer.kernels.low_bit_linear.packing import PACKINGS
from tests.kernels.low_bit_linear.data import BITS, FORMATS, matrix
from tests.support import ptx as evaluator


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("rows", "columns"), [(16, 256), (48, 512), (17, 130), (5, 64), (100, 1152), (33, 4304)], ids=str
)
def test_unpacking_gives_back_what_was_stored(bits: int, rows: int, columns: int) -> None:
    stored = matrix(rows, columns, bits, seed=rows)
    weight = stored.packed
    codes, scales = unpack(weight)
    assert torch.equal(codes, stored.codes)
    assert torch.equal(scales.view(torch.int16), stored.scales.view(torch.int16))
    assert weight.nbytes == packed_bytes(rows, columns, bits)


@pytest.mark.parametrize("bits", BITS)
def test_padding_has_scale_zero_and_code_zero(bits: int) -> None:
    packing = PACKINGS[bits]
    weight = matrix(5, 70, bits).packed
    whole = type(weight)(weight.words, 16, packing.quanta(70) * packing.columns, bits)
    codes, scales = unpack(whole)
    assert not codes[5:].any()
    assert not codes[:, 70:].any()
    assert not scales[5:].view(torch.int16).any()
    assert not scales[:, -(-70 // packing.group) :].view(torch.int16).any()


@pytest.mark.parametrize("bits", BITS)
def test_rows_may_come_in_blocks(bits: int) -> None:
    stored = matrix(100, 300, bits)
    weight = allocate(100, 300, bits, "cpu")
    for begin, end in ((64, 100), (0, 16), (16, 64)):
        pack_rows(weight, begin, stored.planes.narrow(begin, end))
    assert torch.equal(weight.words, stored.packed.words)


@pytest.mark.parametrize("bits", BITS)
def test_pairs_lie_eight_and_eight_in_a_tile(bits: int) -> None:
    upper, lower = matrix(40, 300, bits), matrix(40, 300, bits, seed=1)
    weight = pack_paired(upper.planes, lower.planes, 300, bits)
    codes, scales = unpack(weight)
    for stored, first in ((upper, 0), (lower, 8)):
        rows = [16 * (n // 8) + first + n % 8 for n in range(40)]
        assert torch.equal(codes[rows], stored.codes)
        assert torch.equal(scales[rows], stored.scales)
    parts = allocate(80, 300, bits, "cpu", paired=True)
    for begin, end in ((24, 40), (0, 24)):
        pack_pairs(parts, begin, upper.planes.narrow(begin, end), lower.planes.narrow(begin, end))
    assert torch.equal(parts.words, weight.words)


@pytest.mark.parametrize(("bits", "rows", "columns", "stored_bytes"), [
    (4, 34816, 5120, 34816 * 5120 * 17 // 32), (5, 5120, 17408, 5120 * 17408 * 21 // 32),
    (6, 248320, 5120, 993_280_000), (8, 248320, 5120, 1_350_860_800),
])  # fmt: skip
def test_packed_matrices_of_the_27b_are_no_larger_than_stored_ones(
    bits: int, rows: int, columns: int, stored_bytes: int
) -> None:
    assert packed_bytes(rows, columns, bits) == stored_bytes


@pytest.mark.parametrize("bits", BITS)
def test_bits_lie_where_the_table_says(bits: int) -> None:
    """One code at a time, found by the documented formula instead of the code that packs."""
    packing = PACKINGS[bits]
    stored = matrix(32, 2 * packing.columns, bits)
    words = stored.packed.words.numpy().view(np.uint32)
    source = np.random.default_rng(bits)
    for _ in range(200):
        n, k = int(source.integers(32)), int(source.integers(2 * packing.columns))
        r, g = n % 16 // 8, n % 8
        i, inner = k % packing.columns // packing.group, k % packing.group
        h, t, u, v, e = inner // 32, inner % 32 // 8, inner % 8 // 4, inner % 4 // 2, inner % 2
        quantum = words[n // 16, k // packing.columns]
        code = 0
        for piece in packing.pieces:
            if piece.pair == 8 * h + 4 * u + 2 * v + r:
                number = packing.lane_words * i + piece.word
                word = int(quantum[128 * (number // 4) + 4 * (4 * g + t) + number % 4])
                code |= ((word >> (16 * e + piece.shift)) & ((1 << piece.width) - 1)) << piece.low
        expected = int(stored.codes[n, k])
        assert code == (expected + packing.offset) % 2**bits
        scale = quantum[128 * packing.lane_words :].view(np.float16)[8 * g + 2 * i + r]
        assert scale == stored.scales[n, k // packing.group].item()


@pytest.mark.parametrize("bits", BITS)
def test_every_bit_of_a_group_is_used_once(bits: int) -> None:
    packing = PACKINGS[bits]
    taken = [(piece.word, piece.shift + bit) for piece in packing.pieces for bit in range(piece.width)]
    assert len(taken) == len(set(taken)) == 16 * packing.lane_words
    covered = sorted((piece.pair, piece.low + bit) for piece in packing.pieces for bit in range(piece.width))
    assert covered == [(pair, bit) for pair in range(packing.pairs) for bit in range(bits)]


@pytest.mark.parametrize(("bits", "first"), [(4, 0), (5, 0), (5, 1), (6, 0), (8, 0)])
def test_the_assembly_gives_the_exact_value_of_every_code(bits: int, first: int) -> None:
    """All codes in all places of a word, through the instructions themselves."""
    packing = PACKINGS[bits]
    low = -(1 << (bits - 1))
    codes = np.array([[(low + p + 7 * lane) % (1 << bits) for p in range(packing.pairs)] for lane in range(1 << bits)])
    codes = np.where(codes >= -low, codes + 2 * low, codes)
    other = codes[::-1]
    words = np.zeros((packing.lane_words, len(codes)), np.uint32)
    for piece in packing.pieces:
        for half, values in ((0, codes), (16, other)):
            field = ((values[:, piece.pair] + packing.offset) >> piece.low) & ((1 << piece.width) - 1)
            words[piece.word] |= (field << (piece.shift + half)).astype(np.uint32)
    inputs = ptx.input_registers(bits)
    garbage = np.full(len(codes), 0xDEADBEEF, np.uint32)
    registers = {f"${packing.pairs + i}": garbage for i in range(inputs)}
    registers |= {f"${packing.pairs + first + k}": words[k] for k in range(packing.lane_words)}
    outputs = evaluator.evaluate(ptx.unpack(bits, first), registers, packing.pairs)
    assert ptx.unpack_constraints(bits).split(",") == ["=r"] * packing.pairs + ["r"] * inputs
    for pair, word in enumerate(outputs):
        assert np.array_equal(evaluator.widened(word & np.uint32(0xFFFF)), codes[:, pair])
        assert np.array_equal(evaluator.widened(word >> np.uint32(16)), other[:, pair])


def test_an_instruction_without_a_meaning_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"sub\.bf16x2"):
        evaluator.evaluate("sub.bf16x2 $0, $1, $1;", {"$1": np.zeros(1, np.uint32)}, 1)


def test_formats_are_those_of_the_artifact() -> None:
    assert set(PACKINGS) == set(FORMATS)
