"""Guesses copied from the request's own text (speculation spec, 8.3).

Where the last tokens have stood before, what followed them then is guessed to follow now. The index holds for each
place the one before it whose last `min_match` tokens have the same hash, as compressors of the LZ77 family do: adding a
token takes constant time, and memory is eight bytes per token and a table of at most a mebibyte.

Other than in 8.3 one length of suffix is hashed, since every longer match ends in one of that length; a source that
reaches the end of the text goes on with itself, so that a repetition is guessed as far as wished.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

DEFAULT_MIN_MATCH = 12  # --ngram-min-match
LONGEST_MATCH = 64  # tokens that a match is measured up to
MOST_PLACES = 8  # that are looked at for the longest match
_MOST_SLOT_BITS = 18
_MASK64 = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15  # odd; both by the golden ratio
_SPREAD = 0xD1B54A32D192ED03


@dataclass(frozen=True, slots=True)
class CopyRules:
    """How the texts of a server are copied from: see :class:`CopyIndex`."""

    min_match: int = DEFAULT_MIN_MATCH
    barriers: Set[int] = frozenset()

    def index(self, prompt: Sequence[int], most: int) -> CopyIndex:
        """Of a request that may draw `most` tokens. About half a microsecond a token: not for the event loop."""
        index = CopyIndex(len(prompt) + most, self.min_match, self.barriers)
        index.extend(prompt)
        return index


class CopyIndex:
    """The text of one request, prompt and drawn tokens, with the places where its end has stood before."""

    def __init__(self, capacity: int, min_match: int = DEFAULT_MIN_MATCH, barriers: Set[int] = frozenset()) -> None:
        """
        capacity    tokens that there may be at most
        min_match   tokens that have to agree, 1..64
        barriers    ids that end a source: neither matched nor guessed
        """
        assert 1 <= min_match <= LONGEST_MATCH
        self._capacity, self._min_match, self._barriers = capacity, min_match, barriers
        bits = min(_MOST_SLOT_BITS, max(1, capacity - 1).bit_length())
        self._shift = 64 - bits
        self._leaving = pow(_BASE, min_match, 1 << 64)
        # Places are numbers of tokens in front of which they stand, so that 0 says none.
        self._newest = array("I", bytes(4 << bits))
        self._before = array("I", [0])
        self._ids = array("i")
        self._hash = 0
        self._unbroken = 0

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def bytes(self) -> int:
        """Memory of the index."""
        return sum(len(numbers) * numbers.itemsize for numbers in (self._newest, self._before, self._ids))

    def extend(self, ids: Iterable[int]) -> None:
        """The text goes on with these tokens."""
        text, before, newest = self._ids, self._before, self._newest
        least, barriers, leaving, shift = self._min_match, self._barriers, self._leaving, self._shift
        rolling, unbroken = self._hash, self._unbroken
        for token in ids:
            length = len(text)
            rolling = rolling * _BASE + token + 1
            if length >= least:
                rolling -= (text[length - least] + 1) * leaving
            rolling &= _MASK64
            text.append(token)
            unbroken = 0 if token in barriers else unbroken + 1
            if unbroken >= least:
                slot = ((rolling * _SPREAD) & _MASK64) >> shift
                before.append(newest[slot])
                newest[slot] = length + 1
            else:
                before.append(0)
        self._hash, self._unbroken = rolling, unbroken
        assert len(text) <= self._capacity, f"{len(text)} tokens, room for {self._capacity}"

    def propose(self, most: int, least: int = 1) -> tuple[int, ...]:
        """Tokens that may follow: at most `most`; none if the source has fewer than `least` of them.

        The source is the longest match, the latest among equals. Whether there are guesses depends on the text and on
        `least`, not on `most`.
        """
        source = self._source() if most > 0 else 0
        if not source:
            return ()
        # A source that reaches the end of the text repeats with the period in which it is behind.
        period = len(self._ids) - source
        guesses: list[int] = []
        for at in range(max(most, least)):
            token = self._ids[source + at % period]
            if token in self._barriers:
                break
            guesses.append(token)
        return tuple(guesses[:most]) if len(guesses) >= least else ()

    def _source(self) -> int:
        """Place behind the best earlier occurrence of the end of the text; 0 is none."""
        if self._unbroken < self._min_match:
            return 0
        end = len(self._ids)
        best, longest = 0, self._min_match - 1
        place = self._before[end]
        for _ in range(MOST_PLACES):
            if not place:
                break
            length = self._agreeing(place, end)
            if length > longest:
                best, longest = place, length
            place = self._before[place]
        return best

    def _agreeing(self, place: int, end: int) -> int:
        """Tokens in front of both places that agree, without a barrier, up to the longest match."""
        text = self._ids
        for length in range(min(LONGEST_MATCH, place, self._unbroken)):
            if text[place - 1 - length] != text[end - 1 - length]:
                return length
        return min(LONGEST_MATCH, place, self._unbroken)
