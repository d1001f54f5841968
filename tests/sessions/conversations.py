"""Two sessions that take turns on one server for a long time: edited, cut short, displaced, saved, restored.

What happens is drawn from a seed, whatever is answered. So the same happens to two servers that answer alike.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ninfer.config import SchedulerSettings
from ninfer.engine.engine import Engine
from ninfer.types import Marks, Sampling
from tests.support.direct import GREEDY, Asked, Direct, SavedSession

IDS = 200
CONTEXT = 1024
PAGES = 24  # not enough for two of the longest sessions
SESSIONS = 2
LONGEST = CONTEXT - 120  # of a history; then its middle is cut out, as clients compact
PREAMBLE = 70

# Copied guesses of a request that is the turn of this number; None leaves it to the engine.
Guess = Callable[[int, Asked], tuple[int, ...] | None]


def law(source: random.Random) -> Sampling:
    """Greedy or warm, with penalties now and then."""
    if source.random() < 0.5:
        return GREEDY
    seed, penalty = source.getrandbits(64), source.choice([0.0, 1.5])
    return Sampling(source.choice([0.7, 1.3]), 20, 0.95, source.choice([0.0, 0.05]), penalty, penalty / 3, seed)


@dataclass(frozen=True)
class Turn:
    """One request, and what came of it."""

    prompt: tuple[int, ...]
    limit: int
    stop_ids: tuple[int, ...]
    sampling: Sampling
    answer: tuple[int, ...]
    reason: str


@dataclass
class Talk:
    """One of the sessions: its history, where its turns begin, and its file."""

    source: random.Random
    history: tuple[int, ...]
    turns: list[int] = field(default_factory=list)
    saved: SavedSession | None = None
    lane: int = 0

    def words(self, count: int) -> tuple[int, ...]:
        return tuple(self.source.choices(range(IDS), k=count))

    def next_prompt(self) -> tuple[tuple[int, ...], Marks]:
        """The next turn: behind all that was said, behind less of it, or behind something else in the middle."""
        roll = self.source.random()
        if roll < 0.14 and self.turns:  # back to an earlier turn, mostly the last or the first
            at = self.source.choice([-1, -1, 0, self.source.randrange(len(self.turns))]) % len(self.turns)
            self.history, self.turns = self.history[: self.turns[at]], self.turns[:at]
        elif roll < 0.2:  # an edit in the middle
            at = self.source.randrange(PREAMBLE, len(self.history) + 1)
            self.history = self.history[:at] + self.words(9) + self.history[at + 9 :]
        if len(self.history) > LONGEST:
            self.history = self.history[:PREAMBLE] + self.history[-LONGEST // 2 :]
            self.turns = []
        begin = len(self.history)
        self.turns.append(begin)
        self.history += self.words(self.source.choice([2, 9, 30]))
        end = len(self.history)
        return self.history, Marks(end, begin, end, PREAMBLE)


class Conversations:
    """Both sessions on one server."""

    def __init__(self, engine: Engine, settings: SchedulerSettings, seed: int, guess: Guess) -> None:
        self.engine, self.settings, self._guess = engine, settings, guess
        self.source = random.Random(seed)
        preambles = [random.Random(seed % 3).choices(range(IDS), k=PREAMBLE) for _ in range(SESSIONS)]
        self.talks = [Talk(random.Random(seed * 10 + at), tuple(ids)) for at, ids in enumerate(preambles)]
        self.turns: list[Turn] = []
        self.ways: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.drafted = self.accepted = self.copied = 0
        self.server = self._start()

    def _start(self) -> Direct:
        self.engine.reset()
        self._numbers: dict[int, int] = {}
        return Direct(self.engine, self.settings, PAGES, self._guesses)

    def _guesses(self, asked: Asked) -> tuple[int, ...] | None:
        number = self._numbers.get(id(asked))
        return None if number is None else self._guess(number, asked)

    def play(self, rounds: int) -> None:
        """Every session has so many turns."""
        for _ in range(rounds):
            self._disturb()
            self._take_turns()
            self.server.machine.audit()
        self._count()

    def _take_turns(self) -> None:
        """Both sessions ask, the second one while the first one is being answered."""
        asked: list[tuple[Talk, int, Asked]] = []
        for talk in self.talks:
            prompt, marks = talk.next_prompt()
            limit, sampling = self.source.choice([1, 2, 3, 5, 9, 17, 26]), law(self.source)
            stop_ids = tuple(self.source.sample(range(IDS), self.source.choice([0, 0, 12])))
            number = self.server.ask(prompt, limit, marks=marks, stop_ids=stop_ids, sampling=sampling)
            request = self.server.requests[number]
            self._numbers[id(request)] = len(self.turns) + len(asked)
            asked.append((talk, number, request))
            for _ in range(self.source.randrange(6)):
                if self.server.flight:
                    self.server.land()
        self.server.run()
        for talk, number, request in asked:
            self.server.release(number)
            self.ways[request.way] += 1
            assert request.lane is not None
            talk.lane = request.lane
            talk.history += request.output
            self.turns.append(
                Turn(request.prompt, request.limit, request.stop_ids, request.sampling, request.output, request.reason)
            )

    def _disturb(self) -> None:
        """Somebody comes or leaves, a session goes to its file or comes back from it, the server restarts."""
        source = self.source
        roll, talk = source.random(), source.choice(self.talks)
        length, landings = source.choice([200, 500, 900]), source.randrange(8)
        if roll < 0.08:
            talk.saved = self.server.save(talk.lane)
            self.events["saved" if talk.saved is not None else "not saved"] += 1
        elif roll < 0.14:
            self._stranger(length)
        elif roll < 0.18:
            number = self.server.ask(talk.history + talk.words(5), 30, sampling=law(source))
            for _ in range(landings):
                if self.server.flight:
                    self.server.land()
            self.server.release(number)
            self.server.run()
            self.events["left"] += 1
        elif roll < 0.28:
            talk.saved = self.server.save(talk.lane)
            if length == 200:
                self._count()
                self.server = self._start()
                self.events["restarts"] += 1
            else:
                self._stranger(length)
                self._stranger(length)
            if talk.saved is not None:
                self.events["restored"] += self.server.restore(talk.lane, talk.saved)

    def _stranger(self, length: int) -> None:
        prompt = tuple(self.source.choices(range(IDS), k=length))
        self.server.serve(prompt, 7)
        self.events["strangers"] += 1

    def _count(self) -> None:
        totals = self.server.machine.statistics().totals
        self.drafted += totals.drafted_tokens
        self.accepted += totals.accepted_tokens
        self.copied += totals.copied_accepted_tokens
