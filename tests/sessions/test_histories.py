"""Whatever is reused, the answer is that of a server that reads everything anew: the real scheduler on the real engine.

A history is a handful of requests that extend, edit, branch, repeat, leave and come back, on few lanes, few pages, few
images. The reference reads each prompt alone on an engine of its own; prompts come from a small world, so that most
references are known already. Some servers guess tokens, right or wrong ones, and some have a disk.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
import torch

from ninfer.config import EngineSettings, SchedulerSettings
from ninfer.engine.engine import Engine
from ninfer.step import pages_for
from ninfer.types import Marks
from tests.support.direct import Asked, Direct
from tests.support.random_model import RandomModel

VOCABULARY = 203
CONTEXT = 448
HISTORIES = 2000
PARTS = 20
PAGES = 16
LIMITS = (1, 2, 3, 5, 9)
LONG = 66  # more than a block


def pages_of(lanes: int) -> int:
    """Fewer than all lanes could use, where there are several."""
    return min(PAGES, lanes * pages_for(CONTEXT))


def engine(lanes: int, images: int, places: int) -> Engine:
    settings = EngineSettings(
        max_context_tokens=CONTEXT,
        kv_capacity_tokens=pages_of(lanes) * 64,
        lanes=lanes,
        prefill_chunk_tokens=256,
        kv_dtype="bf16",
        host_images=images,
        host_pages=places,
        draft_tokens=5,
    )
    return Engine.load(RandomModel(), settings, VOCABULARY)


@cache
def reference() -> Direct:
    settings = SchedulerSettings(max_context_tokens=CONTEXT, prefill_chunk_tokens=256, prefix_reuse=False)
    return Direct(engine(1, 0, 0), settings, pages_of(1))


_KNOWN: dict[tuple[int, ...], tuple[int, ...]] = {}


def cold(prompt: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """What a server that holds nothing answers."""
    known = _KNOWN.get(prompt, ())
    if len(known) < limit:
        known = _KNOWN[prompt] = reference().serve(prompt, limit).output
    return known[:limit]


@cache
def warm(lanes: int, images: int, places: int) -> Engine:
    return engine(lanes, images, places)


def words(seed: int, count: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(VOCABULARY), k=count))


PREAMBLES = [words(0, 200), words(0, 200), words(1, 70), ()]
MESSAGES = [words(seed, length) for seed, length in enumerate((5, 40, 64, 100), 10)]
EDIT = words(9, 20)


class History:
    """One random conversation world on one server.

    sizes      lanes, and places for states and pages in host memory, that such a server may have
    disk       whether it has a disk cache; then `requests` are more, since those in between have to push things out
    """

    sizes = ((1, 0, 0), (1, 2, 0), (1, 6, 40), (2, 5, 0), (3, 3, 20))
    requests = (2, 6)
    disk = False

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        lanes, images, places = choose(self.sizes)
        of_disk = random.Random(seed)
        settings = SchedulerSettings(
            lanes=lanes,
            max_context_tokens=CONTEXT,
            disk_bytes=of_disk.choice([1000, 5000]) if self.disk else 0,  # a byte a token
            disk_least_tokens=64,
            disk_name="history",
            prefill_chunk_tokens=choose([64, 256]),
            max_pending=20,
            steps_ahead=seed % 2,
            images=images,
            host_pages=places,
            turn_checkpoints=choose([0, 2]),
            max_shared_prefixes=choose([0, 2]),
            draft_tokens=0 if seed % 2 else choose([0, 2, 5]),
        )
        self.server = Direct(warm(lanes, images, places), settings, pages_of(lanes), self.guess)
        self.server.engine.reset()
        self.server.spoilt = lambda: of_disk.random() < 0.1
        self.told: list[tuple[tuple[int, ...], Marks]] = []
        self.ways: Counter[str] = Counter()
        self.right = 0

    def guess(self, asked: Asked) -> tuple[int, ...]:
        """How the answer goes on, if that is known, up to some token."""
        answer = _KNOWN.get(asked.prompt, ())[len(asked.drawn) :][:5]
        wrong = self.random.randrange(6)
        return tuple(token if at != wrong else (token + 1) % VOCABULARY for at, token in enumerate(answer))

    def prompt(self) -> tuple[tuple[int, ...], Marks]:
        """Something new, or something that goes on from, edits or repeats what was said before."""
        choose = self.random.choice
        if not self.told or self.random.random() < 0.15:
            preamble, message = choose(PREAMBLES), choose(MESSAGES)
            prompt = preamble + message
            return prompt, Marks(len(prompt) - 4, len(preamble), len(prompt) - 4, len(preamble))
        before, marks = choose(self.told)
        roll = self.random.random()
        if roll < 0.25:
            return before, marks
        if roll < 0.45:
            at = self.random.randrange(0, len(before), 50)
            before = before[:at] + EDIT + before[at + len(EDIT) :]
        message = choose(MESSAGES)
        if len(before) + len(message) > CONTEXT - 80:
            return before, marks
        return before + message, Marks(len(before) + len(message) - 4, len(before), len(before) + len(message) - 4, 0)

    def play(self) -> None:
        server, random = self.server, self.random
        open_requests: list[tuple[int, tuple[int, ...], int, Marks]] = []
        for _ in range(random.randint(*self.requests)):
            prompt, marks = self.prompt()
            limit = LONG if random.random() < 0.015 else random.choice(LIMITS)
            open_requests.append((server.ask(prompt, limit, marks=marks), prompt, limit, marks))
            if random.random() < 0.15:  # the client leaves somewhere
                for _ in range(random.randint(0, 3)):
                    if server.flight:
                        server.land()
                server.release(open_requests.pop()[0])
            elif random.random() < 0.7:
                server.run()
                self.check(open_requests)
            server.machine.audit()
        server.run()
        self.check(open_requests)
        server.machine.audit()
        self.right = server.machine.statistics().totals.accepted_tokens

    def check(self, open_requests: list[tuple[int, tuple[int, ...], int, Marks]]) -> None:
        for number, prompt, limit, marks in open_requests:
            asked = self.server.requests[number]
            assert asked.reason == "output_limit"
            assert asked.output == cold(prompt, limit), (number, asked.way, asked.cached)
            self.ways[asked.way] += 1
            self.told.append((prompt + asked.output, marks))
            self.server.release(number)
        open_requests.clear()


class DiskHistory(History):
    """Sessions go to disk and come back; some of their files are damaged then."""

    sizes = ((1, 2, 0), (1, 2, 0), (2, 5, 0), (3, 3, 20))
    requests = (7, 12)
    disk = True


def history_of(seed: int) -> History:
    """Some of every part have a disk."""
    return DiskHistory(seed) if seed // PARTS % 12 == 3 else History(seed)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_way_of_reuse_gives_the_answers_of_a_cold_server(part: int) -> None:
    torch.set_num_threads(1)
    ways: Counter[str] = Counter()
    right = hits = 0
    for seed in range(part, HISTORIES, PARTS):
        history = history_of(seed)
        history.play()
        ways += history.ways
        right += history.right
        hits += history.server.machine.statistics().kept.disk_hits
    assert (right > 20) == (part % 2 == 0), right
    assert hits
    # Every part goes on from lanes and from what others have stored; anchors and older turns come up in most.
    assert {"full_reset", "append_frontier", "fork_shared_prefix"} <= set(ways), ways
    assert sum(ways.values()) > 1.5 * ways["full_reset"]
