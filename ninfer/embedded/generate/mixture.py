"""What the model is trained on: kinds of conversations by share of tokens, drawn by one seeded stream per worker."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from random import Random

from ninfer.embedded.generate.arithmetic import sums
from ninfer.embedded.generate.conversation import Conversation
from ninfer.embedded.generate.editing import editing
from ninfer.embedded.generate.lookup import Filler, five_facts, lookup, prose_filler, records
from ninfer.embedded.generate.memory import follow_up
from ninfer.embedded.generate.objects import json_object
from ninfer.embedded.generate.small_talk import small_talk
from ninfer.embedded.generate.tools import tool_call

THINKING_SHARE = 0.3


def _length(rng: Random, least: int, most: int) -> int:
    """Log-uniform: every doubling of the length is as frequent as any other."""
    return round(exp(rng.uniform(log(least), log(most))))


class Mixture:
    """Draws conversations of at most about `limit` tokens.

    real_filler   surroundings taken from real text; a share of the look-ups uses it instead of generated prose
    """

    def __init__(self, rng: Random, limit: int, real_filler: Filler) -> None:
        self._rng = rng
        self._limit = limit
        self._real_filler = real_filler
        self._kinds: dict[str, tuple[float, Callable[[bool], Conversation]]] = {
            "lookup": (0.40, self._lookup),
            "five facts": (0.10, self._five),
            "records": (0.07, self._records),
            "objects": (0.09, lambda t: json_object(rng, t, turns=rng.randint(1, 4))),
            "tools": (0.12, lambda t: tool_call(rng, t, turns=rng.randint(1, 3), follow=rng.random() < 0.5)),
            "sums": (0.10, lambda t: sums(rng, t, turns=rng.randint(1, 12))),
            "follow-up": (0.06, self._follow_up),
            "small talk": (0.02, lambda t: small_talk(rng, t, turns=rng.randint(1, 5))),
            "editing": (0.04, lambda t: editing(rng, t, turns=rng.randint(1, 4))),
        }
        self._written = dict.fromkeys(self._kinds, 0.0)

    def draw(self) -> tuple[str, Conversation]:
        """The kind that is furthest behind its share, and a conversation of it; report its length to `count`."""
        kind = min(self._kinds, key=lambda name: self._written[name] / self._kinds[name][0])
        return kind, self._kinds[kind][1](self._rng.random() < THINKING_SHARE)

    def count(self, kind: str, tokens: int) -> None:
        self._written[kind] += tokens

    def _filler(self) -> Filler:
        return self._real_filler if self._rng.random() < 0.3 else prose_filler

    def _lookup(self, thinking: bool) -> Conversation:
        rng = self._rng
        tokens = _length(rng, 80, int(self._limit * 0.86))
        questions = rng.randint(1, max(2, min(24, tokens // 160)))
        # Each question and its answer take about 50 tokens, with thinking 90.
        tokens = max(80, min(tokens, self._limit - 100 - questions * (95 if thinking else 55)))
        facts = rng.randint(2, max(4, min(40, tokens // 60)))
        return lookup(
            rng, thinking, tokens=tokens, facts=facts, questions=questions, absent=0.15, filler=self._filler()
        )

    def _five(self, thinking: bool) -> Conversation:
        rng = self._rng
        tokens = _length(rng, 300, int(min(self._limit, 6000) * 0.75))
        return five_facts(
            rng,
            thinking,
            tokens=tokens,
            facts=rng.randint(5, max(6, min(30, tokens // 60))),
            rounds=rng.randint(1, 3) if tokens > 1500 else 1,
            filler=self._filler(),
        )

    def _records(self, thinking: bool) -> Conversation:
        entries = _length(self._rng, 3, 120)
        return records(self._rng, thinking, entries=entries, questions=self._rng.randint(1, max(2, min(24, entries))))

    def _follow_up(self, thinking: bool) -> Conversation:
        rng = self._rng
        return follow_up(rng, thinking, between=rng.randint(0, 4), questions=rng.choice((1, 1, 1, 2, 3)))
