"""The tasks that the model must show, each with its generator of held-out cases, and what counts as right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from ninfer.embedded.generate.arithmetic import sums
from ninfer.embedded.generate.conversation import Conversation
from ninfer.embedded.generate.lookup import five_facts, lookup
from ninfer.embedded.generate.memory import follow_up
from ninfer.embedded.generate.objects import json_object
from ninfer.embedded.generate.tools import tool_call


@dataclass(frozen=True, slots=True)
class Task:
    """A row of the table: `draw` makes one case, whose last message is the expected answer.

    least   share of cases that must be right, in [0, 1]
    """

    name: str
    draw: Callable[[Random], Conversation]
    least: float


def _needle(rng: Random, *, tokens: int) -> Conversation:
    return lookup(rng, False, tokens=tokens, facts=rng.randint(3, 12), questions=1, absent=0.0)


def _absent(rng: Random) -> Conversation:
    return lookup(rng, False, tokens=rng.randint(300, 2000), facts=rng.randint(3, 12), questions=1, absent=1.0)


def _thinking_sum(rng: Random) -> Conversation:
    return sums(rng, True, turns=1, held_out=True)


TASKS = (
    # The question and the frame of the conversation belong to the stated length.
    Task("one fact from 1k tokens", partial(_needle, tokens=950), 0.95),
    Task("one fact from 4k tokens", partial(_needle, tokens=3900), 0.95),
    Task("one fact from 8k tokens", partial(_needle, tokens=7800), 0.90),
    Task("one fact from 16k tokens", partial(_needle, tokens=15800), 0.80),
    Task("five facts from 4k tokens", lambda rng: five_facts(rng, False, tokens=3700, facts=12), 0.80),
    Task("JSON object from a sentence", lambda rng: json_object(rng, False), 0.95),
    Task("tool call, one of four", lambda rng: tool_call(rng, False), 0.90),
    Task("addition", lambda rng: sums(rng, False, turns=1, held_out=True), 0.90),
    Task("follow-up to the turn before last", lambda rng: follow_up(rng, False), 0.90),
    # Not in the table: shown, and expected of a model that is served.
    Task("fact that is absent", _absent, 0.80),
    Task("addition, thinking", _thinking_sum, 0.90),
)


def held_out_cases(task: Task, seed: int, count: int) -> list[Conversation]:
    """`count` cases. Training draws its conversations from other seeds by construction (see `mixture`)."""
    rng = Random(f"held-out {task.name} {seed}")
    return [task.draw(rng) for _ in range(count)]
