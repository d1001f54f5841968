"""Whose turn it is, and how large a bite: the sharing of the device between reading and generating.

Serving spec 13.4. While rows are ready to decode, prefill units and decode rounds alternate one to one and a unit is
cut so that unit + round stay within the bound on the gap between tokens; a ratio replaces the alternation by device
time. With nothing to decode, units are full. A step that is launched behind another is chosen by the same rules, one
step earlier.

Much of a short unit is fixed cost: every matrix is read for it. So where the engine can cut a unit into parts of its
layers, a unit may be as long as all its parts together, and rounds run between the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ninfer.config import SchedulerSettings
from ninfer.step import PAGE_TOKENS

# Weight of the newest measurement in a running average: a change of load shows within a few steps, an outlier fades.
NEWEST = 0.3
# Part of the bound that is left for what the device does not see: the way to the client and other work of the host.
MARGIN = 0.25
# Most parts of a unit: a prompt that comes behind it waits for all of them and the rounds between.
MOST_PARTS = 5
# Where a page alone does not fit into the bound, units may take so much longer than that.
OVER_FIXED_COST = 1.1


class Turn(Enum):
    """What the device does next."""

    REST = auto()
    PREFILL = auto()
    DECODE = auto()


@dataclass(slots=True)
class _Line:
    """Seconds of a prefill unit as a line over its tokens, fitted to recent measurements, old ones fading.

    last   tokens of the newest unit
    """

    weight: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    last: int = 0

    def saw(self, tokens: int, seconds: float) -> None:
        kept = 1.0 - NEWEST
        self.weight = kept * self.weight + 1.0
        self.tokens = kept * self.tokens + tokens
        self.seconds = kept * self.seconds + seconds
        self.squares = kept * self.squares + tokens * tokens
        self.products = kept * self.products + tokens * seconds
        self.last = tokens

    @property
    def knows_slope(self) -> bool:
        """Whether units of different sizes were seen."""
        return self._variance > (PAGE_TOKENS / 8) ** 2

    @property
    def _variance(self) -> float:
        """Of the tokens."""
        return self.squares / self.weight - (self.tokens / self.weight) ** 2

    def predicted(self, tokens: int) -> float:
        """Seconds of a unit of so many tokens; with one size known, as if nothing were fixed cost."""
        mean_tokens, mean_seconds = self.tokens / self.weight, self.seconds / self.weight
        if not self.knows_slope:
            return mean_seconds * tokens / mean_tokens
        covariance = self.products / self.weight - mean_tokens * mean_seconds
        slope = max(0.0, covariance / self._variance)
        return max(0.0, mean_seconds + slope * (tokens - mean_tokens))

    def at_most(self, tokens: int) -> float:
        """As predicted; with one size known, no smaller unit is taken to be faster."""
        known = self.knows_slope or tokens * self.weight > self.tokens
        return self.predicted(tokens) if known else self.seconds / self.weight


class Pace:
    """What the device takes: seconds per prefill unit by depth and size, seconds per round."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._round_s = 0.0

    @staticmethod
    def _bucket(depth: int) -> int:
        # Attention makes a token dearer with depth; within a factor of two it is near enough the same.
        return (depth // 1024).bit_length()

    def saw_chunk(self, begin: int, tokens: int, device_s: float) -> None:
        """Learn from a prefill unit that began at depth `begin`."""
        self._lines.setdefault(self._bucket(begin), _Line()).saw(tokens, device_s)

    def saw_round(self, device_s: float) -> None:
        """Learn from a decode round."""
        self._round_s += (NEWEST if self._round_s else 1.0) * (device_s - self._round_s)

    def fitting(self, depth: int, budget_s: float) -> int:
        """Tokens of the largest unit at this depth that is predicted to take no more than the budget, whole pages.

        Where even a page takes longer, a unit that takes hardly more than that: much of a short unit is fixed cost. A
        line says little of what lies far beyond the last unit, and between units of nearly one size its slope is what
        depth and chance make it: far from the budget a unit is at most twice as large as the last one, near to it an
        eighth larger, which the margin has room for. While only one size is known the next is a page larger, to learn
        the slope.
        """
        line = self._line(depth)
        if line is None:
            return PAGE_TOKENS  # nothing is known of this machine yet: learn from the smallest unit
        last = max(PAGE_TOKENS, -(-line.last // PAGE_TOKENS) * PAGE_TOKENS)
        budget_s = max(budget_s, OVER_FIXED_COST * line.predicted(PAGE_TOKENS))
        most = 2 * last
        if line.knows_slope and 2 * line.predicted(most) > budget_s:
            most = last + max(PAGE_TOKENS, last // 8 // PAGE_TOKENS * PAGE_TOKENS)
        if not line.knows_slope and line.predicted(most) > budget_s:
            return self._largest(line, last, budget_s) if line.predicted(last) > budget_s else last + PAGE_TOKENS
        return self._largest(line, most, budget_s)

    @staticmethod
    def _largest(line: _Line, most: int, budget_s: float) -> int:
        low, high = 1, most // PAGE_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if line.predicted(middle * PAGE_TOKENS) <= budget_s else (low, middle - 1)
        return low * PAGE_TOKENS

    def _line(self, depth: int) -> _Line | None:
        known, bucket = self._lines, self._bucket(depth)
        if bucket in known:
            return known[bucket]
        return known[min(known, key=lambda other: abs(other - bucket))] if known else None

    def chunk_s(self, depth: int, tokens: int) -> float:
        """Seconds that a unit of so many tokens at this depth takes at most, as predicted; 0 while nothing is known."""
        line = self._line(depth)
        return line.at_most(tokens) if line is not None else 0.0

    @property
    def round_s(self) -> float:
        """Predicted seconds of a round; 0 before the first."""
        return self._round_s


class Sharing:
    """Remembers whose turn it was. All decisions are made from numbers that the event log holds."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._last = Turn.REST
        self._prefill_s = 0.0
        self._decode_s = 0.0
        self._parts_s = 0.0
        self._chunk_parts: tuple[int, ...] = (1,)
        self.pace = Pace()

    def open(self, chunk_parts: tuple[int, ...]) -> None:
        """The engine is loaded and can cut units into so many parts."""
        self._chunk_parts = tuple(parts for parts in chunk_parts if parts <= MOST_PARTS)

    def turn(self, can_prefill: bool, can_decode: bool, *, ahead: bool) -> Turn:
        """Choose between the kinds of work that exist; `ahead` of the end of another step, REST is to wait for it."""
        if not can_prefill or not can_decode:
            self._prefill_s = self._decode_s = 0.0  # the ratio holds while both have work, and starts anew
            if can_prefill:
                return Turn.PREFILL
            return Turn.DECODE if can_decode else Turn.REST
        ratio = self._settings.prefill_decode_ratio
        if ratio is not None:
            if ahead:
                return Turn.REST  # what the step in flight takes of its share is known when it has landed
            return Turn.PREFILL if self._prefill_s <= ratio * self._decode_s else Turn.DECODE
        return Turn.PREFILL if self._last is Turn.DECODE else Turn.DECODE

    def launched(self, turn: Turn) -> None:
        """Remember the turn that was taken."""
        self._last = turn

    def landed_part(self, device_s: float) -> None:
        """Account for a part of a prefill unit that is not its last."""
        self._prefill_s += device_s
        self._parts_s += device_s

    def landed_chunk(self, begin: int, tokens: int, device_s: float) -> None:
        """Account for a finished prefill unit, whose last part took so long."""
        self._prefill_s += device_s
        self.pace.saw_chunk(begin, tokens, self._parts_s + device_s)
        self._parts_s = 0.0

    def dropped_chunk(self) -> None:
        """A unit will have no further parts: the engine has failed."""
        self._parts_s = 0.0

    def landed_round(self, device_s: float) -> None:
        """Account for a finished round."""
        self._decode_s += device_s
        self.pace.saw_round(device_s)

    def chunk_tokens(self, begin: int, remaining: int, someone_waits: bool) -> int:
        """Size of the next unit: at most the configured chunk, cut to whole pages if a stream waits for its token."""
        limit = self._settings.prefill_chunk_tokens
        if someone_waits and self._has_bound:
            limit = min(limit, self.pace.fitting(begin, self._chunk_parts[-1] * self._step_s))
        return min(limit, remaining)

    def parts(self, begin: int, tokens: int, someone_waits: bool) -> int:
        """Parts of a unit: as few as keep each of them within the bound if a stream waits for its token."""
        if not someone_waits or not self._has_bound:
            return 1
        seconds = self.pace.chunk_s(begin, tokens)
        return next((parts for parts in self._chunk_parts if seconds <= parts * self._step_s), self._chunk_parts[-1])

    @property
    def _has_bound(self) -> bool:
        return self._settings.max_inter_token_s > 0

    @property
    def _step_s(self) -> float:
        """What a step may take between two rounds."""
        return (1.0 - MARGIN) * self._settings.max_inter_token_s - self.pace.round_s
