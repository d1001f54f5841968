"""Whose turn it is, and how large a bite: the sharing of the device between reading and generating.

Serving spec 13.4. While rows are ready to decode, prefill units and decode rounds alternate one to one and a unit is
cut so that unit + round stay within the bound on the gap between tokens; a ratio replaces the alternation by device
time. With nothing to decode, units are full. A step that is launched behind another is chosen by the same rules, one
step earlier.
"""

from __future__ import annotations

from enum import Enum, auto

from ninfer.config import SchedulerSettings
from ninfer.step import PAGE_TOKENS

# Weight of the newest measurement in a running average: a change of load shows within a few steps, an outlier fades.
NEWEST = 0.3


class Turn(Enum):
    """What the device does next."""

    REST = auto()
    PREFILL = auto()
    DECODE = auto()


class Pace:
    """Running averages of what the device takes: seconds per prompt token by depth, seconds per round."""

    def __init__(self) -> None:
        self._token_s: dict[int, float] = {}
        self._round_s = 0.0

    @staticmethod
    def _bucket(depth: int) -> int:
        # Attention makes a token dearer with depth; within a factor of two it is near enough the same.
        return (depth // 1024).bit_length()

    def saw_chunk(self, begin: int, tokens: int, device_s: float) -> None:
        """Learn from a prefill unit that began at depth `begin`."""
        bucket = self._bucket(begin)
        new = device_s / tokens
        old = self._token_s.get(bucket, new)
        self._token_s[bucket] = old + NEWEST * (new - old)

    def saw_round(self, device_s: float) -> None:
        """Learn from a decode round."""
        self._round_s += (NEWEST if self._round_s else 1.0) * (device_s - self._round_s)

    def token_s(self, depth: int) -> float | None:
        """Predicted seconds per prompt token at this depth; None before anything was measured."""
        known = self._token_s
        bucket = self._bucket(depth)
        if bucket in known:
            return known[bucket]
        return known[min(known, key=lambda other: abs(other - bucket))] if known else None

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
        self.pace = Pace()

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

    def landed_chunk(self, begin: int, tokens: int, device_s: float) -> None:
        """Account for a finished prefill unit."""
        self._prefill_s += device_s
        self.pace.saw_chunk(begin, tokens, device_s)

    def landed_round(self, device_s: float) -> None:
        """Account for a finished round."""
        self._decode_s += device_s
        self.pace.saw_round(device_s)

    def chunk_tokens(self, begin: int, remaining: int, someone_waits: bool) -> int:
        """Size of the next unit: at most the configured chunk, cut to whole pages if a stream waits for its token."""
        limit = self._settings.prefill_chunk_tokens
        bound_s = self._settings.max_inter_token_s
        token_s = self.pace.token_s(begin)
        if someone_waits and bound_s > 0:
            if token_s is None:
                limit = PAGE_TOKENS  # nothing is known of this machine yet: learn from the smallest unit
            elif token_s > 0:
                affordable = int(max(0.0, bound_s - self.pace.round_s) / token_s)
                limit = min(limit, max(PAGE_TOKENS, affordable // PAGE_TOKENS * PAGE_TOKENS))
        return min(limit, remaining)
