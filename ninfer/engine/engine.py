"""The engine: carries out one prefill chunk or one decode round at a time on one device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar, overload

import torch
from torch import Tensor

from ninfer.artifact.config import TextConfig
from ninfer.config import EngineSettings
from ninfer.engine.available import available_bytes
from ninfer.engine.batches import Span, round_batch
from ninfer.engine.drafter import Drafter, Wish
from ninfer.engine.keeping import KeepsStates
from ninfer.engine.lanes import Lane, TableLimits, check_chunk, lanes_of
from ninfer.engine.layouts import PlainLayout, WithDrafter, drafter_shape
from ninfer.engine.plan import MemoryPlan, plan_memory
from ninfer.engine.transfers import Transfers
from ninfer.errors import DeviceFault, StartupError
from ninfer.kernels.sampler.logprobs import logprob_rows
from ninfer.kernels.sampler.masks import has, masked
from ninfer.kernels.sampler.op import Purpose, sample, uniform
from ninfer.model.arena import Arena
from ninfer.model.cache import Cache, build_cache
from ninfer.model.forward import Batch, Run, final_hidden, forward, token_logits
from ninfer.model.weights import ParameterValues, TextWeights, load_weights
from ninfer.step import (
    PAGE_TOKENS,
    DecodeResult,
    DecodeRound,
    DecodeRow,
    Drawn,
    LaneSetup,
    NextPart,
    PageMapping,
    PrefillChunk,
    PrefillResult,
    TokenLogprobs,
    pages_for,
)

R = TypeVar("R")


class LoadedModel(ParameterValues, WithDrafter, Protocol):
    """What the engine needs of a bound artifact."""

    @property
    def text(self) -> TextConfig:
        """Dimensions of the text decoder."""


@dataclass(frozen=True, slots=True)
class Computed(Generic[R]):
    """A step that is done already: its result, or the fault that it met."""

    result: R | None
    fault: DeviceFault | None = None

    def wait(self) -> R:
        """The result; raises DeviceFault."""
        if self.fault is not None:
            raise self.fault
        assert self.result is not None
        return self.result


class Engine(KeepsStates):
    """One model on one device. Not thread-safe: one thread launches its steps, in order."""

    def __init__(
        self, config: TextConfig, settings: EngineSettings, memory: MemoryPlan, arenas: _Arenas, public_ids: int
    ) -> None:
        self._config = config
        self._settings = settings
        self._memory = memory
        self._arenas = arenas
        self._public_ids = public_ids
        self._device = torch.device(settings.device)
        self._lanes = [Lane() for _ in range(settings.lanes)]
        room = arenas.cache.tables.shape[1]
        self._limits = TableLimits(settings.max_context_tokens, memory.pages, room)
        self._logits = torch.empty(0, public_ids)
        self._drafter = (
            Drafter(config, arenas.weights, arenas.cache, public_ids, settings.lanes)
            if arenas.weights.drafter is not None
            else None
        )
        self._transfers = Transfers(arenas.cache.carried, settings, None)

    @classmethod
    def load(cls, artifact: LoadedModel, settings: EngineSettings, public_ids: int) -> Engine:
        """Plan, load the weights, check the plan against the memory then free, and allocate the rest.

        public_ids  token ids below this can be drawn; the head's other rows are reserved
        Raises StartupError if the settings are contradictory or the plan does not fit, before or after loading.
        """
        config = artifact.text
        device = torch.device(settings.device)
        if device.type != "cpu":
            raise StartupError(f"device {settings.device!r}: the kernels have a route for the CPU only so far")
        if not 0 < public_ids <= config.vocab_size:
            raise StartupError(f"the tokenizer has {public_ids} ids, the model's head {config.vocab_size} rows")
        limit = settings.device_memory_limit_bytes
        drafter = drafter_shape(artifact, settings)
        layout = PlainLayout(config, drafter)
        early = plan_memory(layout, settings, available_bytes(device, limit))
        early.require()
        weights = load_weights(config, artifact, settings.compute_dtype, device, drafter)
        memory = plan_memory(layout, settings, available_bytes(device, limit, resident=weights.nbytes))
        memory.require()
        return cls(config, settings, memory, _Arenas(config, memory, weights, device), public_ids)

    @property
    def memory(self) -> MemoryPlan:
        """The plan that was checked after loading."""
        return self._memory

    @property
    def allocated_bytes(self) -> int:
        """Bytes of every persistent storage: the plan's total without workspace and graphs."""
        return self._arenas.nbytes

    @property
    def logits(self) -> Tensor:
        """[rows, public_ids] fp32: what the last step drew from, a row for each token of a round's lanes, guesses
        included, or one for a sampling chunk.
        """
        return self._logits

    @property
    def folds_late(self) -> bool:
        """A block that a round has filled is a state at once."""
        return False

    @property
    def chunk_parts(self) -> tuple[int, ...]:
        """A chunk is one step: cutting it would save nothing, since its cost is all in its tokens."""
        return (1,)

    @property
    def appends(self) -> bool:
        """A prompt may go on inside the block in which its lane stands."""
        return True

    def reset(self) -> None:
        """Forget every lane, after a fault: each must start anew. Page contents need no clearing."""
        for number in range(len(self._lanes)):
            self._lanes[number] = Lane()
            self._arenas.cache.clear_lane(number)
            if self._drafter is not None:
                self._drafter.forget(number)

    @overload
    def run(self, plan: PrefillChunk | NextPart) -> PrefillResult: ...
    @overload
    def run(self, plan: DecodeRound) -> DecodeResult: ...
    def run(self, plan: PrefillChunk | NextPart | DecodeRound) -> PrefillResult | DecodeResult:
        """Launch one step and wait for it."""
        return self.launch(plan).wait()

    @overload
    def launch(self, plan: PrefillChunk | NextPart) -> Computed[PrefillResult]: ...
    @overload
    def launch(self, plan: DecodeRound) -> Computed[DecodeResult]: ...
    @torch.inference_mode()
    def launch(self, plan: PrefillChunk | NextPart | DecodeRound) -> Computed[PrefillResult] | Computed[DecodeResult]:
        """Carry out one step, before this returns. An assertion fails if the plan breaks a rule of ``ninfer.step``.

        Waiting for it raises DeviceFault if logits are not finite; the lanes of the step must then start anew.
        """
        assert not isinstance(plan, NextPart), "no chunk is cut into parts here"
        begin = time.perf_counter()
        try:
            if isinstance(plan, PrefillChunk):
                drawn = self._prefill(plan)
                return Computed(PrefillResult(drawn, time.perf_counter() - begin))
            rows = self._decode(plan)
            return Computed(DecodeResult(rows, time.perf_counter() - begin))
        except DeviceFault as fault:
            return Computed(None, fault)

    def _prefill(self, chunk: PrefillChunk) -> Drawn | None:
        check_chunk(chunk)
        assert chunk.parts == 1, "no chunk is cut into parts here"
        self._transfers.carry_out(chunk.before, self._lanes, chunk)
        if chunk.setup is not None:
            self._set_up(chunk.lane, chunk.setup, chunk.begin)
        lane = self._lanes[chunk.lane]
        lane.check_chunk(chunk)
        end = chunk.begin + len(chunk.token_ids)
        self._map(chunk.lane, chunk.mapping, end)
        batch = self._chunk_batch(chunk, end)
        x = forward(self._config, self._arenas.weights, self._arenas.cache, batch)
        lane.advance(end)
        hidden = self._final(x if self._drafter is not None else x[-1:].contiguous())
        if self._drafter is not None:
            self._drafter.read(chunk.lane, chunk.begin, batch.ids, hidden)
        drawn = None
        if chunk.sample:
            self._see(hidden[-1:].contiguous(), (chunk.lane,))
            (token,) = self._draw((chunk.lane,), self._logits, (end,), Purpose.PREFILL, (chunk.mask,))
            told = self._logprobs(lane, 0, (token,))
            drawn = Drawn(chunk.lane, (token,), token in lane.running.stop_ids, logprobs=told)
            if self._drafter is not None:
                self._drafter.drew(chunk.lane, token)
            (drawn,) = self._with_foreseen((chunk,), [drawn])
        self._transfers.carry_out(chunk.after, self._lanes, chunk)
        return drawn

    def _decode(self, plan: DecodeRound) -> tuple[Drawn, ...]:
        lanes = lanes_of(plan)
        self._transfers.carry_out(plan.before, self._lanes)
        for row in plan.rows:
            self._lanes[row.lane].check_row(row)
            self._map(row.lane, row.mapping, row.position + 1 + row.drafts)
        guesses = self._guess(plan)
        spans = [Span(row.lane, row.position, 1 + len(guess)) for row, guess in zip(plan.rows, guesses, strict=True)]
        cache = self._arenas.cache
        batch = round_batch(spans, self._tokens_of(lanes, guesses), cache.tables)
        hidden = self._final(forward(self._config, self._arenas.weights, cache, batch))
        self._see(hidden, lanes)
        drawn = []
        first = 0
        for row, guess, tokens in zip(plan.rows, guesses, self._accept(plan, guesses), strict=True):
            lane, count = self._lanes[row.lane], 1 + len(guess)
            lane.advance(row.position + len(tokens))
            cache.take_back(row.lane, count - len(tokens))
            if self._drafter is not None:
                self._drafter.decoded(row.lane, row.position, hidden[first : first + count], tokens)
            stopped = tokens[-1] in lane.running.stop_ids
            told = self._logprobs(lane, first, tokens)
            drawn.append(Drawn(row.lane, tokens, stopped, len(guess), len(tokens) - 1, told))
            first += count
        return self._with_foreseen(plan.rows, drawn)

    def _with_foreseen(self, plans: Sequence[DecodeRow | PrefillChunk], drawn: list[Drawn]) -> tuple[Drawn, ...]:
        """With guesses for the next rows, where plans ask for them. A guess needs a page for the position before it."""
        wishes = []
        for row, tokens in zip(plans, drawn, strict=True):
            lane = self._lanes[row.lane]
            room = lane.pages * PAGE_TOKENS - lane.frontier + 1
            if self._drafter is not None and row.foresee and not tokens.stopped:
                wishes.append(Wish(row.lane, lane.frontier, min(row.foresee, room)))
        if self._drafter is None or not wishes:
            return tuple(drawn)
        foreseen = dict(zip((wish.lane for wish in wishes), self._drafter.foresee(wishes), strict=True))
        return tuple(replace(tokens, foreseen=foreseen.get(tokens.lane, ())) for tokens in drawn)

    def _logprobs(self, lane: Lane, first: int, tokens: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
        """Of tokens drawn from rows of the logits from `first` on, if the lane tells of them."""
        count = lane.running.logprobs
        if count is None:
            return ()
        rows = logprob_rows(self._logits[first : first + len(tokens)], torch.tensor(tokens), count)
        return tuple(rows.of(row, token) for row, token in enumerate(tokens))

    def _guess(self, plan: DecodeRound) -> list[tuple[int, ...]]:
        """What is verified behind the anchor of each row.

        The state of a block is made with its last row, and cannot be unmade: only an anchor may be in that row.
        """
        most = [
            row.drafts if row.position % PAGE_TOKENS == PAGE_TOKENS - 1
            else min(row.drafts, PAGE_TOKENS - 2 - row.position % PAGE_TOKENS)
            for row in plan.rows
        ]  # fmt: skip
        guesses: list[tuple[int, ...]] = [()] * len(plan.rows)
        if self._drafter is not None:
            wishes = [
                Wish(row.lane, row.position, limit if row.copied is None else 0)
                for row, limit in zip(plan.rows, most, strict=True)
            ]
            guesses = self._drafter.guess(wishes)
        return [
            guess if row.copied is None else row.copied[:limit]
            for row, guess, limit in zip(plan.rows, guesses, most, strict=True)
        ]

    def _tokens_of(self, lanes: tuple[int, ...], guesses: list[tuple[int, ...]]) -> Tensor:
        """[T] int64: of each row its anchor and what is guessed behind it."""
        anchors = self._arenas.cache.anchors[list(lanes)].tolist()
        ids = [token for anchor, guess in zip(anchors, guesses, strict=True) for token in (anchor, *guess)]
        return torch.tensor(ids, dtype=torch.int64, device=self._device)

    def _accept(self, plan: DecodeRound, guesses: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The tokens of each row: drawn one after the other as in rounds without guesses, as long as what is drawn is
        what was guessed and neither a stop id nor one that halts the row.
        """
        tokens: list[list[int]] = [[] for _ in plan.rows]
        firsts = [sum(1 + len(guess) for guess in guesses[:number]) for number in range(len(guesses))]
        going = list(range(len(plan.rows)))
        column = 0
        while going:
            rows = [plan.rows[number] for number in going]
            drawn = self._draw(
                tuple(row.lane for row in rows),
                self._logits[[firsts[number] + column for number in going]],
                tuple(row.position + column for row in rows),
                Purpose.DECODE,
                tuple(row.masks[column - 1] if column and row.masks else row.mask for row in rows),
            )
            left = []
            for number, token in zip(going, drawn, strict=True):
                tokens[number].append(token)
                row = plan.rows[number]
                goes_on = guesses[number][column : column + 1] == (token,)
                halts = row.halts is not None and has(row.halts, token)
                if goes_on and not halts and token not in self._lanes[row.lane].running.stop_ids:
                    left.append(number)
            going = left
            column += 1
        return [tuple(row) for row in tokens]

    def _final(self, x: Tensor) -> Tensor:
        return final_hidden(self._config, self._arenas.weights, x)

    def _see(self, hidden: Tensor, lanes: tuple[int, ...]) -> None:
        """Logits of these rows [T, H]; raises DeviceFault unless they are finite."""
        self._logits = token_logits(self._arenas.weights, hidden, self._public_ids)
        if not bool(torch.isfinite(self._logits).all()):
            raise DeviceFault(f"logits of lanes {list(lanes)} are not finite")

    def _draw(
        self,
        lanes: tuple[int, ...],
        logits: Tensor,
        positions: tuple[int, ...],
        purpose: Purpose,
        masks: tuple[bytes | None, ...],
    ) -> list[int]:
        """Draw a token for each lane; it is counted and becomes the anchor."""
        cache = self._arenas.cache
        chosen = torch.tensor(lanes, dtype=torch.int64, device=self._device)
        laws = [self._lanes[number].running.sampling for number in lanes]
        uniforms = [uniform(law.seed, position, purpose) for law, position in zip(laws, positions, strict=True)]
        counts = cache.counts.index_select(0, chosen)[:, : self._public_ids]
        ids = sample(masked(logits, masks), counts, laws, uniforms)
        cache.counts[chosen, ids] += 1
        cache.anchors[chosen] = ids
        return ids.tolist()

    def _set_up(self, number: int, setup: LaneSetup, begin: int) -> None:
        self._lanes[number] = self._lanes[number].restarted(setup, begin)
        inside = begin % PAGE_TOKENS > 0  # of a block, where everything that the lane has is gone on from
        if self._drafter is not None and not inside:
            self._drafter.forget(number)
        cache = self._arenas.cache
        if begin:
            if not inside:
                cache.carried.go_back(number)
            cache.counts[number].zero_()
        else:
            cache.clear_lane(number)

    def _map(self, number: int, mapping: PageMapping, end: int) -> None:
        """Append pages to a lane's table and see that positions below `end` have one."""
        entries = self._lanes[number].map(mapping, end, self._limits)
        if entries is not None:
            added = torch.tensor(mapping.pages, dtype=torch.int32, device=self._device)
            self._arenas.cache.tables[number, entries] = added

    def _pages(self, number: int, end: int) -> Tensor:
        return self._arenas.cache.tables[number, : pages_for(end)].long()

    def _chunk_batch(self, chunk: PrefillChunk, end: int) -> Batch:
        positions = torch.arange(chunk.begin, end, device=self._device)
        pages = self._pages(chunk.lane, end)
        block = chunk.begin // PAGE_TOKENS * PAGE_TOKENS
        runs = tuple(
            Run(
                begin=max(position, chunk.begin) - chunk.begin,
                end=min(position + PAGE_TOKENS, end) - chunk.begin,
                position=max(position, chunk.begin),
                pages=pages[: position // PAGE_TOKENS + 1],
            )
            for position in range(block, end, PAGE_TOKENS)
        )
        return Batch(
            ids=torch.tensor(chunk.token_ids, dtype=torch.int64, device=self._device),
            coordinates=positions.expand(3, -1),
            pages=pages[positions // PAGE_TOKENS],
            offsets=positions % PAGE_TOKENS,
            lanes=torch.tensor([chunk.lane], dtype=torch.int64, device=self._device),
            runs=runs,
            chunk=True,
        )


class _Arenas:
    """The engine's allocations, one per group of the plan, and the tensors in them."""

    def __init__(self, config: TextConfig, memory: MemoryPlan, weights: TextWeights, device: torch.device) -> None:
        kv, state, open_rows = (Arena(specs, device) for specs in (memory.kv, memory.state, memory.open_rows))
        self.weights = weights
        self.cache: Cache = build_cache(config, kv, state, open_rows, drafter=weights.drafter is not None)
        self.nbytes = weights.nbytes + sum(arena.nbytes for arena in (kv, state, open_rows))
