"""Sets of code points, and how they are written in a regular expression of the grammar library.

Everything is written as numbers, so that no character needs an escape in any of the notations it passes through.
"""

from __future__ import annotations

from collections.abc import Iterable

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

Interval = tuple[int, int]


def single(text: str) -> tuple[Interval, ...]:
    """The set of the characters of a text."""
    return merged((ord(c), ord(c)) for c in text)


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same set as sorted closed intervals that neither overlap nor touch; surrogates are no characters."""
    out: list[Interval] = []
    low_end, high_start = _SURROGATES[0] - 1, _SURROGATES[1] + 1
    parts = [part for low, high in intervals for part in ((low, min(high, low_end)), (max(low, high_start), high))]
    for low, high in sorted(part for part in parts if part[0] <= part[1]):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def complement(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """All characters that are not in the set."""
    out: list[Interval] = []
    start = 0
    for low, high in merged(intervals):
        if start < low:
            out.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        out.append((start, LAST))
    return merged(out)


def class_text(intervals: Iterable[Interval]) -> str:
    """A set that is not empty as a character class."""
    parts = [_point(low) if low == high else f"{_point(low)}-{_point(high)}" for low, high in merged(intervals)]
    assert parts
    return f"[{''.join(parts)}]"


def literal_text(text: str) -> str:
    """A text as a regular expression that matches it alone."""
    return "".join(c if c.isascii() and c.isalnum() else _point(ord(c)) for c in text)


def _point(point: int) -> str:
    return f"\\x{{{point:X}}}"


ANY = class_text([(0, LAST)])
