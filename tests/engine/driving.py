"""Driving an engine the way the scheduler does, with pages handed out in a shuffled order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ninfer.engine.engine import Engine
from ninfer.step import (
    PAGE_TOKENS,
    DecodeRound,
    DecodeRow,
    Drawn,
    LaneSetup,
    NextPart,
    PageMapping,
    PrefillChunk,
    TokenLogprobs,
    Transfer,
    pages_for,
)
from ninfer.types import Sampling

GREEDY = Sampling(temperature=0.0, top_k=20, top_p=1.0, min_p=0.0, presence_penalty=0.0, frequency_penalty=0.0, seed=0)


@dataclass
class Generation:
    """What one lane drew, the logits it drew from, and what was told of their law."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, drawn: Drawn, logits: Tensor) -> None:
        self.tokens.extend(drawn.token_ids)
        self.logits.append(logits.clone())
        self.logprobs.extend(drawn.logprobs)


class Driver:
    """Feeds prompts into lanes and decodes them together; `seed` orders the physical pages."""

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        self.engine = engine
        self._free = list(range(engine.memory.pages))
        random.Random(seed).shuffle(self._free)
        self._tables: dict[int, list[int]] = {}
        self._length: dict[int, int] = {}
        self.foreseen: tuple[int, ...] = ()  # behind the prompt that was read last

    def table(self, lane: int, tokens: int) -> tuple[int, ...]:
        """Pages of a lane's first tokens."""
        return tuple(self._tables[lane][: pages_for(tokens)])

    def take(self, count: int) -> tuple[int, ...]:
        """Pages that nobody has."""
        return tuple(self._free.pop() for _ in range(count))

    def _map(self, lane: int, end: int) -> PageMapping:
        table = self._tables[lane]
        first, added = len(table), self.take(pages_for(end) - len(table))
        table.extend(added)
        return PageMapping(first, added)

    def prefill(
        self,
        lane: int,
        prompt: Sequence[int],
        chunk: int,
        law: Sampling = GREEDY,
        stop_ids: tuple[int, ...] = (),
        *,
        logprobs: int | None = None,
        kept: Sequence[int] = (),
        stands: int | None = None,
        before: tuple[Transfer, ...] = (),
        after: tuple[Transfer, ...] = (),
        parts: int = 1,
        foresee: int = 0,
        between: Callable[[], None] = lambda: None,
    ) -> Generation:
        """Read a prompt in chunks and draw its first token.

        parts   of each chunk; `between` is called between two of them
        kept    pages that hold its first tokens already: reading begins behind them, or where the lane `stands`
        before  transfers in front of the first chunk; after: behind the last
        """
        generation = Generation()
        self._tables[lane] = []
        begin = start = len(kept) * PAGE_TOKENS if stands is None else stands
        while begin < len(prompt):
            end = min(begin // PAGE_TOKENS * PAGE_TOKENS + chunk, len(prompt))
            if begin == start:
                self._tables[lane].extend(kept)
            mapping = self._map(lane, end)
            if begin == start:
                mapping = PageMapping(0, (*kept, *mapping.pages))
            plan = PrefillChunk(
                lane=lane,
                begin=begin,
                token_ids=tuple(prompt[begin:end]),
                mapping=mapping,
                setup=LaneSetup(law, stop_ids, tuple(prompt), logprobs) if begin == start else None,
                sample=end == len(prompt),
                before=before if begin == start else (),
                after=after if end == len(prompt) else (),
                parts=parts,
                foresee=foresee if end == len(prompt) else 0,
            )
            result = self.engine.run(plan)
            for _ in range(parts - 1):
                assert result.drawn is None
                between()
                result = self.engine.run(NextPart(lane))
            if result.drawn is not None:
                generation.add(result.drawn, self.engine.logits[0])
                self.foreseen = result.drawn.foreseen
            begin = end
        self._length[lane] = len(prompt)
        return generation

    def decode(self, generations: dict[int, Generation], rounds: int) -> None:
        """Advance the lanes that are keys of `generations` by `rounds` tokens each."""
        for _ in range(rounds):
            rows = []
            for lane in generations:
                position = self._length[lane]
                self._length[lane] += 1
                rows.append(DecodeRow(lane, position, self._map(lane, position + 1)))
            result = self.engine.run(DecodeRound(tuple(rows)))
            for row, drawn in enumerate(result.drawn):
                assert drawn.lane == rows[row].lane
                generations[drawn.lane].add(drawn, self.engine.logits[row])

    def speculate(
        self,
        generations: dict[int, Generation],
        tokens: int,
        drafts: dict[int, int],
        copied: dict[int, Callable[[list[int]], tuple[int, ...] | None]] | None = None,
        foresee: int = 0,
    ) -> list[Drawn]:
        """Advance the lanes until each has drawn `tokens` in all or one of its stop ids, with up to `drafts` guesses a
        round; `copied` may guess from what a lane has drawn so far. Returns everything that was drawn.
        """
        seen: list[Drawn] = []
        going = [lane for lane in generations if len(generations[lane].tokens) < tokens]
        while going:
            rows = []
            for lane in going:
                drawn, position = generations[lane].tokens, self._length[lane]
                most = min(drafts[lane], tokens - len(drawn) - 1)
                guesses = copied[lane](drawn) if copied is not None and lane in copied else None
                mapping = self._map(lane, position + 1 + most)
                told = None if guesses is None else guesses[:most]
                rows.append(DecodeRow(lane, position, mapping, None, most, told, foresee=foresee))
            result = self.engine.run(DecodeRound(tuple(rows)))
            logits = self.engine.logits
            first = 0
            for lane, row in zip(tuple(going), result.drawn, strict=True):
                assert row.lane == lane
                assert len(row.token_ids) == row.accepted + 1
                for column, token in enumerate(row.token_ids):
                    told = row.logprobs[column : column + 1]
                    generations[lane].add(Drawn(lane, (token,), False, logprobs=told), logits[first + column])
                first += 1 + row.drafted
                self._length[lane] += len(row.token_ids)
                seen.append(row)
                if row.stopped or len(generations[lane].tokens) >= tokens:
                    going.remove(lane)
        return seen


def generate(
    engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, chunk: int, seed: int = 0
) -> list[Generation]:
    """Greedy tokens of all prompts, one per lane, decoded together."""
    driver = Driver(engine, seed)
    generations = {lane: driver.prefill(lane, prompt, chunk) for lane, prompt in enumerate(prompts)}
    driver.decode(generations, tokens - 1)
    return list(generations.values())


def assert_told(generation: Generation, count: int, public: int) -> None:
    """What was told of each token is the law of the logits that it was drawn from."""
    assert len(generation.logprobs) == len(generation.tokens) > 0
    for token, logits, told in zip(generation.tokens, generation.logits, generation.logprobs, strict=True):
        law = torch.log_softmax(logits[:public], dim=0)
        best = law.argsort(descending=True, stable=True)[:count]
        assert told.token_id == token
        assert abs(told.logprob - float(law[token])) < 1e-5
        assert [alternative for alternative, _ in told.alternatives] == best.tolist()
        assert torch.allclose(torch.tensor([value for _, value in told.alternatives]), law[best], atol=1e-5)


def random_prompt(length: int, vocabulary: int, seed: int) -> list[int]:
    source = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (length,), generator=source).tolist()


def assert_same(left: Generation, right: Generation) -> None:
    """Equal tokens from equal bits."""
    assert left.tokens == right.tokens
    assert all(torch.equal(a, b) for a, b in zip(left.logits, right.logits, strict=True))


BLOCK = PAGE_TOKENS
