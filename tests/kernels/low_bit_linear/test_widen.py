"""The assembly that widens weights to bfloat16, evaluated for every scale there is."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.kernels.low_bit_linear import ptx
from ninfer.kernels.low_bit_linear.packing import PACKINGS
from tests.kernels.low_bit_linear.data import BITS
from tests.support.ptx import Word, evaluate, rounded

FINITE = np.arange(1 << 16, dtype=np.uint16)[np.isfinite(np.arange(1 << 16, dtype=np.uint16).view(np.float16))]


@pytest.mark.parametrize("bits", BITS)
def test_every_scale_times_every_code_is_rounded_once(bits: int) -> None:
    """All codes of a lane alike, so that one call tells of one code and all scales, as row g's and as row g + 8's."""
    packing = PACKINGS[bits]
    scale_words = FINITE.astype(np.uint32) | np.roll(FINITE, 1).astype(np.uint32) << np.uint32(16)
    names, text = (2, ptx.SCALES) if bits == 8 else (4, ptx.SPLIT_SCALES)
    scales = evaluate(text, {f"${names}": scale_words}, names)
    step = 16 if bits == 8 else 4 if bits == 6 else 1  # of the codes, so that it takes no longer than it must
    for code in sorted({*range(-(1 << bits - 1), 1 << bits - 1, step), -1, (1 << bits - 1) - 1}):
        stored = (code + packing.offset) % (1 << bits)
        words = [np.uint32(0)] * packing.lane_words
        for piece in packing.pieces:
            field = (stored >> piece.low & (1 << piece.width) - 1) << piece.shift
            words[piece.word] |= np.uint32(field | field << 16)
        operands: list[Word] = [*(np.full(FINITE.shape, word) for word in words), *scales]
        given = {f"${packing.pairs + at}": operand for at, operand in enumerate(operands)}
        out = evaluate(ptx.widen(bits), given, packing.pairs)
        for row, halves in enumerate((FINITE, np.roll(FINITE, 1))):
            exact = code * halves.view(np.float16).astype(np.float64)
            expected = rounded(exact)
            for pair in range(row, packing.pairs, 2):
                for half in (out[pair] & np.uint32(0xFFFF), out[pair] >> np.uint32(16)):
                    # The sign of a zero is lost on the sum that it is added to.
                    assert np.array_equal(np.where(half == 0x8000, 0, half), np.where(expected == 0x8000, 0, expected))
