"""Session histories on a server in use: whatever is reused, the answer is that of a server that reads everything anew.

A history is what one client asks in one session: a beginning and a few turns that extend, edit, branch or repeat what
was said. Ten of them, a few at a time, come to one server with few lanes, few pages and few images, so that each is
among others which take its lane and its pages; some clients leave, sessions are saved and restored, the server starts
anew. Some servers guess tokens, right or wrong ones; some have a disk with files that are damaged now and then.

What a cold server says is kept in a dictionary of token tuples (tests/sessions/worlds.py). All is drawn from a seed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from ninfer.config import SchedulerSettings
from ninfer.step import PAGE_TOKENS
from ninfer.types import Marks
from tests.sessions.worlds import GUESSES, LONGEST, PAGES, World
from tests.support.direct import Asked, Direct, SavedSession

HISTORIES = 10  # of one server
AT_A_TIME = 4
LONG = 66  # an answer of more than a block
EDIT = 9
CONTEXT = 320  # of most servers; where a beginning is long, it is that of the engine
# Lanes, and places for states and pages in host memory.
SIZES = ((1, 0, 0), (1, 2, 0), (1, 6, 24), (2, 4, 0), (2, 5, 16), (3, 3, 0), (3, 3, 16), (3, 6, 24))


@dataclass
class History:
    """One session: what was asked and answered so far, each with its marks, and the slot file, if there is one."""

    turns: int
    told: list[tuple[tuple[int, ...], Marks]] = field(default_factory=list)
    saved: SavedSession | None = None
    lane: int = 0


@dataclass(frozen=True)
class Open:
    """A request that is not answered yet."""

    history: History
    number: int
    prompt: tuple[int, ...]
    limit: int
    marks: Marks


class InUse:
    """A server, and its histories. `events` counts what happened."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self._chance = random.Random(seed)  # asked as often as the answers have it; what happens is the same
        choose = self.random.choice
        lanes, images, places = choose(SIZES)
        self.disk = bool(images) and self.random.random() < 0.35
        self.preambles = [self._preamble() for _ in range(2)]
        self.context = CONTEXT if max(map(len, self.preambles)) < world.long else LONGEST
        least = self.context // PAGE_TOKENS
        self.settings = SchedulerSettings(
            lanes=lanes,
            max_context_tokens=self.context,
            disk_bytes=choose([600, 5000]) if self.disk else 0,  # a byte a token
            disk_least_tokens=64,
            disk_name="history",
            prefill_chunk_tokens=choose([64, 256]),
            max_pending=20,
            steps_ahead=seed % 2,
            images=images,
            host_pages=places,
            turn_checkpoints=choose([0, 2]),
            max_shared_prefixes=choose([0, 2]),
            draft_tokens=0 if seed % 2 else choose([0, 2, GUESSES]),
        )
        self.pages = choose([least, least, least + 1, PAGES])
        self.events: Counter[str] = Counter()
        self.server = self._start()

    def _preamble(self) -> tuple[int, ...]:
        if self.random.random() < 0.05:
            return self.world.piece(0, self.world.long)
        number = self.random.randrange(len(self.world.preambles))
        return self.world.piece(1 + number, self.world.preambles[number])

    def _start(self) -> Direct:
        self.world.engine.reset()
        server = Direct(self.world.engine, self.settings, self.pages, self._guess)
        server.spoilt = lambda: self._chance.random() < 0.1
        return server

    def _guess(self, asked: Asked) -> tuple[int, ...]:
        """How the answer goes on, up to some token."""
        answer = self.world.cold(asked.prompt, asked.limit)[len(asked.drawn) :][:GUESSES]
        wrong = self._chance.randrange(GUESSES + 1)
        return tuple(token if at != wrong else (token + 1) % self.world.vocabulary for at, token in enumerate(answer))

    def play(self) -> None:
        """All histories, from their beginnings to their ends; an assertion fails if an answer is not the cold one."""
        waiting = [History(self.random.choice([2, 2, 2, 3, 3])) for _ in range(HISTORIES)]
        present: list[History] = []
        asked: list[Open] = []
        while waiting or present:
            while waiting and len(present) < AT_A_TIME:
                present.append(waiting.pop())
            history = self.random.choice(_free(present, asked))
            asked.append(self._ask(history))
            history.turns -= 1
            if not history.turns:
                present.remove(history)
            if left := self.random.random() < 0.12:
                self._leave(asked.pop())
            if (not left and self.random.random() < 0.6) or not _free(present, asked):
                self._answer(asked)
                self._disturb(history)
            self.server.machine.audit()
        self._answer(asked)
        self.server.machine.audit()
        self._count()

    def _ask(self, history: History) -> Open:
        prompt, marks = self._prompt(history)
        limit = LONG if self.random.random() < 0.005 else self.random.choice(self.world.limits)
        return Open(history, self.server.ask(prompt, limit, marks=marks), prompt, limit, marks)

    def _prompt(self, history: History) -> tuple[tuple[int, ...], Marks]:
        """A beginning, or something that goes on from, edits or repeats what was said before."""
        message = self._message()
        if not history.told:
            preamble = self.random.choice(self.preambles)
            return preamble + message, _marks(len(preamble), len(message), len(preamble))
        before, marks = history.told[-1]
        roll = self.random.random()
        if roll < 0.2 and len(history.told) > 1:
            before, marks = self.random.choice(history.told[:-1])
            self.events["branch"] += 1
        elif roll < 0.35:
            self.events["regenerate"] += 1
            return before[: marks.turn + 4], marks
        elif roll < 0.55:
            at = self.random.choice((0, 50, len(before) - 20))
            before = before[:at] + self.world.piece(100 + at, EDIT) + before[at + EDIT :]
            self.events["edit"] += 1
        else:
            self.events["append"] += 1
        if len(before) + len(message) > self.context - LONG - 2:
            return before[: marks.turn + 4], marks
        return before + message, _marks(len(before), len(message), 0)

    def _message(self) -> tuple[int, ...]:
        number = self.random.randrange(len(self.world.messages))
        return self.world.piece(10 + number, self.world.messages[number])

    def _leave(self, one: Open) -> None:
        """The client leaves, somewhere."""
        for _ in range(self.random.randint(0, 3)):
            if self.server.flight:
                self.server.land()
        request = self.server.requests[one.number]
        self.events["left in prefill" if not request.drawn else "left"] += 1
        self.server.release(one.number)

    def _answer(self, asked: list[Open]) -> None:
        """Everybody present gets an answer, and it is right."""
        self.server.run()
        for one in asked:
            request = self.server.requests[one.number]
            assert request.reason == "output_limit"
            assert request.output == self.world.cold(one.prompt, one.limit), (one.number, request.way, request.cached)
            self.events[request.way] += 1
            self.events["inside a block"] += (request.cached or 0) % 64 > 0
            self.events["requests"] += 1
            assert request.lane is not None
            one.history.lane = request.lane
            one.history.told.append((one.prompt + request.output, one.marks))
            self.server.release(one.number)
        asked.clear()

    def _disturb(self, history: History) -> None:
        """A session goes to its slot file or comes back from there, perhaps to a server that has started anew."""
        if self.disk:
            return
        roll = self.random.random()
        if roll < 0.08 or history.saved is None:
            if roll < 0.3:
                history.saved = self.server.save(history.lane)
                self.events["saved"] += history.saved is not None
        elif roll < 0.65:
            if roll < 0.25:
                self._count()
                self.server = self._start()
                self.events["restart"] += 1
            lane = self.random.randrange(self.settings.lanes)
            self.events["restored"] += self.server.restore(lane, history.saved)

    def _count(self) -> None:
        statistics = self.server.machine.statistics()
        totals, kept = statistics.totals, statistics.kept
        self.events["right guesses"] += totals.accepted_tokens
        self.events["from host memory"] += totals.host_restores
        self.events["from disk"] += kept.disk_hits
        self.events["damaged files"] += kept.disk_read_failures
        self.events["tokens read"] += self.server.computed


def _free(present: list[History], asked: list[Open]) -> list[History]:
    """Who waits for no answer."""
    return [history for history in present if all(history is not one.history for one in asked)]


def _marks(begin: int, message: int, preamble: int) -> Marks:
    """Of a message behind `begin` tokens; four tokens behind it the answer begins."""
    end = begin + message
    return Marks(end - 4, begin, end - 4, preamble)
