"""The session digest: one 64-bit number for a ledger of token ids (serving spec, 14.6)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

START = 1469598103934665603  # the contract's own; the textbook's offset of this hash is another number
PRIME = 1099511628211
MASK = (1 << 64) - 1
PRIME_SQUARED = PRIME * PRIME & MASK


def id_bytes(ids: Iterable[int]) -> bytes:
    """[4 n] bytes: every id as a little-endian 32-bit integer in two's complement. OverflowError beyond that range."""
    words = ids if isinstance(ids, array) and ids.typecode == "i" else array("i", ids)
    if sys.byteorder == "big":
        words = array("i", words)
        words.byteswap()
    return words.tobytes()


class SessionDigest:
    """Digest of a ledger that grows; about 0.25 microseconds a token on one core of 2025, under the interpreter's lock.

    A checkpoint's digest is that of its first `frontier` tokens: `copy` keeps one where the ledger may branch.
    """

    __slots__ = ("_state",)

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._state = START
        self.extend(ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Append token ids to the ledger."""
        raw = id_bytes(ids)
        state, prime, mask = self._state, PRIME, MASK
        if any(raw[3::4]):
            for byte in raw:
                state = (state ^ byte) * prime & mask
        else:
            # No vocabulary reaches 2^24, so the last byte changes nothing and two factors are one. The remainder is
            # taken once a token: what lies above 64 bits never comes down again.
            last = PRIME_SQUARED
            for low, middle, high in zip(raw[::4], raw[1::4], raw[2::4], strict=True):
                state = (((state ^ low) * prime ^ middle) * prime ^ high) * last & mask
        self._state = state

    @property
    def value(self) -> str:
        """16 lowercase hexadecimal digits. Opaque to clients."""
        return f"{self._state:016x}"

    def copy(self) -> SessionDigest:
        """A digest of the same ledger that grows on its own."""
        twin = SessionDigest()
        twin._state = self._state
        return twin
