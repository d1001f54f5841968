"""What histories are about, and on which engine: the embedded model reading text, or a small one of random weights.

There are few beginnings and few messages, so that histories meet and most answers of a cold server are known already.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ninfer.artifact.binder import bind
from ninfer.artifact.container import Artifact
from ninfer.bench.corpus import corpus_ids
from ninfer.config import EngineSettings, SchedulerSettings
from ninfer.embedded import ARTIFACT
from ninfer.engine.engine import Engine
from ninfer.step import PAGE_TOKENS
from ninfer.text.tokenizer import Tokenizer
from tests.support.direct import Direct
from tests.support.random_model import RandomModel

LONGEST = 448
LANES = 3
PAGES = 16  # not enough for three of the longest prompts
PLACES = 24
IMAGES = 6
GUESSES = 5

Ids = tuple[int, ...]


@dataclass
class World:
    """Beginnings, messages and answers.

    load       an engine with so many lanes, images and places; `vocabulary` ids can be drawn
    text       tokens that beginnings and messages are pieces of
    preambles  lengths of beginnings; some have one of `long` tokens, which servers store for everybody
    limits     of answers; a few go on for more than a block
    """

    load: Callable[[int, int, int], Engine]
    vocabulary: int
    text: Ids
    preambles: tuple[int, ...]
    messages: tuple[int, ...]
    limits: tuple[int, ...]
    long: int = 260
    known: dict[Ids, Ids] = field(default_factory=dict)

    def piece(self, number: int, length: int) -> Ids:
        """A piece of the text; those of other numbers begin with another token."""
        at = number * 131 % (len(self.text) - length - 1)
        return (number % self.vocabulary, *self.text[at : at + length - 1]) if length else ()

    @cached_property
    def engine(self) -> Engine:
        """The one of the servers."""
        return self.load(LANES, IMAGES, PLACES)

    @cached_property
    def _reference(self) -> Direct:
        settings = SchedulerSettings(max_context_tokens=LONGEST, prefill_chunk_tokens=256, prefix_reuse=False)
        return Direct(self.load(1, 0, 0), settings, LONGEST // PAGE_TOKENS)

    def cold(self, prompt: Ids, limit: int) -> Ids:
        """What a server that holds nothing answers."""
        known = self.known.get(prompt, ())
        if len(known) < limit:
            served = self._reference.serve(prompt, max(limit, self.limits[1]))
            known = self.known[prompt] = served.output
            self._reference.requests.clear()
        return known[:limit]


def _settings(lanes: int, images: int, places: int) -> EngineSettings:
    return EngineSettings(
        device="cpu",
        max_context_tokens=LONGEST,
        kv_capacity_tokens=(PAGES if lanes > 1 else LONGEST // PAGE_TOKENS) * PAGE_TOKENS,
        lanes=lanes,
        prefill_chunk_tokens=256,
        kv_dtype="bf16",
        compute_dtype="fp32",
        host_images=images,
        host_pages=places,
        draft_tokens=GUESSES,
    )


def small() -> World:
    """Random weights, which answer at once, and random words."""
    ids = 203

    def load(lanes: int, images: int, places: int) -> Engine:
        return Engine.load(RandomModel(), _settings(lanes, images, places), ids)

    text = tuple(random.Random(0).choices(range(ids), k=1000))
    return World(load, ids, text, (130, 130, 70, 0), (5, 40, 64), (1, 2, 3, 9))


def embedded() -> World:
    """The trained model of the package, and its own text."""
    with Artifact.open(ARTIFACT) as artifact:
        tokenizer = Tokenizer.from_resources(bind(artifact).resource("text", "tokenizer.json"), None, None)
    ids = tokenizer.id_count

    def load(lanes: int, images: int, places: int) -> Engine:
        with Artifact.open(ARTIFACT) as artifact:
            return Engine.load(bind(artifact), _settings(lanes, images, places), ids)

    text = tuple(corpus_ids(tokenizer, None, 1000))
    return World(load, ids, text, (130, 70, 70, 0), (6, 30, 64), (1, 3))
