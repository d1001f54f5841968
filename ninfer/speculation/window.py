"""How many tokens to guess (``--draft-tokens auto``): what gives most tokens a second, or none where guessing loses.

A round takes as long as its row with the most guesses makes it (speculation spec 9.5: the width is common). So one
width is chosen for a round, by what all its rows expect of it, and each row uses as much of it as helps it:

    expected(k) = 1 + s_1 + .. + s_k         tokens of a row with k guesses; s_j: guesses 1..j are all right
    rate(m)     = sum of expected(min(m, limit)) over the rows / seconds of a round of width m

Where rows draw under masks, a round begins when they are made: one for each row, and one for each of its guesses. The
rows' are made beside each other, so those of the slowest row count to the seconds of the round.

What a row expects is its own experience (:class:`Experience`), which its request takes along and which depends on
nothing else; what a round costs is the machine's (:class:`RoundCosts`). Both are values, and every function here is
one of its arguments: the same events give the same widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

FIRST_RATE = 0.6  # of the first guess, before anything is known of the request
PRIOR_WEIGHT = 3.0  # rounds that a presumption counts for
REMEMBERED = 0.97  # per further guess at the same place: about the last 30 count
MARGIN = 1.03  # by which another width has to be better than the present one
LEAST_GAIN = 0.06  # expected tokens of a guess below which a row leaves it out
PROBE_ROUNDS = 4  # a look whether guessing has become worth while
PROBE_WIDTH = 2
FIRST_REST = 64  # rounds from switching off to the first such look; each one in vain doubles it
LONGEST_REST = 1024
FORGOTTEN = 0.3  # weight that experience keeps with a right guess of a look

RELATIVE_STEP = 0.1  # cost of a guess in rounds of width 0, before it has been measured
COST_SHARE = 0.15  # of a new measurement in the running mean
MASK_SHARE = 0.3  # the same of what a mask takes: the first ones of a grammar may be far from it
PLAIN_SAMPLES = 2  # rounds without guesses that are measured before there are any
STALE = 1024  # rounds of a size after which a measurement of guesses no longer counts
PLAIN_AGE = 256  # rounds of a size after which the cost without guesses is measured again
OUTLIER = 2.0  # a measurement counts as at most so many times the mean, and at least the inverse


@dataclass(frozen=True, slots=True)
class Seen:
    """Guesses at one place of a round in front of which all were right: their weight, and that of the right ones."""

    weight: float = 0.0
    right: float = 0.0

    def faded(self) -> Seen:
        return Seen(self.weight * FORGOTTEN, self.right * FORGOTTEN)

    def after(self, *, right: bool) -> Seen:
        return Seen(self.weight * REMEMBERED + 1.0, self.right * REMEMBERED + (1.0 if right else 0.0))


@dataclass(frozen=True, slots=True)
class Experience:
    """What a request knows of its guesses.

    seen    by place in the round
    width   guesses of the last round
    idle    rounds since the last guess, or since the last look began
    rest    idle rounds after which the next look begins
    looks   rounds that are left of a look
    """

    seen: tuple[Seen, ...] = ()
    width: int = 0
    idle: int = 0
    rest: int = FIRST_REST
    looks: int = 0

    def after(self, drafted: int, accepted: int) -> Experience:
        """A round has landed with these guesses of the drafter; copied ones are none of its doing and do not belong
        here."""
        assert 0 <= accepted <= drafted
        if not drafted:
            idle = self.idle + 1
            if idle < self.rest:
                return replace(self, width=0, idle=idle)
            return Experience(self.seen, 0, 0, min(2 * self.rest, LONGEST_REST), PROBE_ROUNDS)
        # What was seen before a look counts little once the look has found something, and all of it if not.
        kept = [seen.faded() for seen in self.seen] if self.looks and accepted else self.seen
        seen = [*kept, *[Seen()] * (drafted - len(kept))]
        for place in range(min(accepted + 1, drafted)):
            seen[place] = seen[place].after(right=place < accepted)
        looks = max(0, self.looks - 1)
        # A right guess when no look asks for it is what ends the long rests.
        rest = FIRST_REST if accepted and not self.looks else self.rest
        return Experience(tuple(seen), drafted, 0, rest, looks)

    def gains(self, most: int) -> tuple[float, ...]:
        """Tokens that each of the first `most` guesses is expected to add: the chance that it and all before are right.

        Where little is known a guess is as often right as the one before it.
        """
        gains: list[float] = []
        rate, survival = FIRST_RATE, 1.0
        for place in range(most):
            seen = self.seen[place] if place < len(self.seen) else Seen()
            rate = (seen.right + PRIOR_WEIGHT * rate) / (seen.weight + PRIOR_WEIGHT)
            survival *= rate
            gains.append(survival)
        return tuple(gains)


@dataclass(frozen=True, slots=True)
class Measured:
    """Running mean of the seconds, how many there were, and the number of rounds of that size when the last came."""

    seconds: float
    count: int
    at: int


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds of a round by its rows and the most guesses that one of them has, as far as measured.

    measured  by (rows, width)
    rounds    so many rounds of each number of rows
    """

    measured: Mapping[tuple[int, int], Measured] = field(default_factory=dict)
    rounds: Mapping[int, int] = field(default_factory=dict)

    def after(self, rows: int, width: int, seconds: float) -> RoundCosts:
        """A round has landed; `seconds` of the device."""
        if seconds <= 0:
            return self
        at = self.rounds.get(rows, 0) + 1
        old = self.measured.get((rows, width))
        if old is None:
            new = Measured(seconds, 1, at)
        else:
            # The first few are averaged plainly: one that was out of the ordinary must not be the mean for long.
            share = max(COST_SHARE, 1 / (old.count + 1))
            bounded = min(max(seconds, old.seconds / OUTLIER), old.seconds * OUTLIER)
            new = Measured(old.seconds + share * (bounded - old.seconds), old.count + 1, at)
        return RoundCosts({**self.measured, (rows, width): new}, {**self.rounds, rows: at})

    def wants_plain(self, rows: int) -> bool:
        """A round without guesses is due, so that there is something to compare with."""
        plain = self.measured.get((rows, 0))
        return plain is None or plain.count < PLAIN_SAMPLES or self.rounds[rows] - plain.at >= PLAIN_AGE

    def table(self, rows: int, most: int) -> tuple[float, ...]:
        """Seconds by width from 0 to `most`. What has not been measured goes by the next that has, narrower ones first;
        without any the unit is a round of width 0."""
        now = self.rounds.get(rows, 0)
        known = {
            width: seen.seconds
            for (count, width), seen in self.measured.items()
            if count == rows and (width == 0 or now - seen.at < STALE)
        }
        if not known:
            return tuple(1.0 + RELATIVE_STEP * width for width in range(most + 1))
        return tuple(known.get(width) or _estimated(known, width) for width in range(most + 1))


def _estimated(known: Mapping[int, float], width: int) -> float:
    below = max((other for other in known if other < width), default=None)
    above = min((other for other in known if other > width), default=None)
    if below is not None and above is not None:
        return known[below] + (known[above] - known[below]) * (width - below) / (above - below)
    nearest = above if below is None else below
    assert nearest is not None
    if below is not None and below > 0 and 0 in known:  # as steep as what is known
        return known[below] + max(0.0, known[below] - known[0]) / below * (width - below)
    return known[nearest] * (1.0 + RELATIVE_STEP * width) / (1.0 + RELATIVE_STEP * nearest)


def mean_mask_s(mean: float, seconds: float) -> float:
    """The running mean of what a mask of a request takes, with one more that took so many seconds; 0 is none yet."""
    return mean + MASK_SHARE * (seconds - mean) if mean else seconds


def worth_masks(mask_s: float, round_s: float) -> bool:
    """Whether masks behind guesses may be made for a request, by what its masks and its rounds take.

    Each token that is drawn takes a mask anyway, so a right guess saves a round and costs nothing; a wrong one costs a
    mask. With masks as slow as rounds the guesses would have to be right every other time only to lose nothing, and
    what is slow are grammars whose text is hard to guess.
    """
    return not round_s or mask_s <= round_s


def choose(
    rows: Sequence[Experience], limits: Sequence[int], costs: RoundCosts, masks: Sequence[float]
) -> tuple[int, ...]:
    """Guesses of each row of the next round.

    limits   most guesses of each row, >= 0
    masks    seconds that a mask of each row takes, 0 where it has none
    """
    assert len(rows) == len(limits) == len(masks)
    most = max(limits, default=0)
    if most == 0 or costs.wants_plain(len(rows)):
        return (0,) * len(rows)
    gains = [row.gains(limit) for row, limit in zip(rows, limits, strict=True)]
    seconds = [
        round_s + max(mask_s * (1 + min(width, limit)) for mask_s, limit in zip(masks, limits, strict=True))
        for width, round_s in enumerate(costs.table(len(rows), most))
    ]
    width = _best_width(gains, max(row.width for row in rows), seconds)
    return tuple(_of_row(row, limit, gain, width) for row, limit, gain in zip(rows, limits, gains, strict=True))


def _best_width(gains: Sequence[tuple[float, ...]], present: int, table: Sequence[float]) -> int:
    rates = []
    tokens = float(len(gains))
    for width, seconds in enumerate(table):
        if width:
            tokens += sum(gain[width - 1] for gain in gains if len(gain) >= width)
        rates.append(tokens / seconds)
    best = max(range(len(rates)), key=lambda width: (rates[width], -width))
    present = min(present, len(rates) - 1)
    return best if rates[best] > MARGIN * rates[present] else present


def _of_row(row: Experience, limit: int, gains: tuple[float, ...], width: int) -> int:
    useful = sum(gain >= LEAST_GAIN for gain in gains[:width])  # gains fall
    return max(useful, min(PROBE_WIDTH, limit)) if row.looks else useful
