"""The engine of a GPU: low-bit kernels, captured decode rounds, and steps that are launched before the last has landed.

A step is a handful of small copies and launches on one stream; nothing here waits but :meth:`DeviceStep.wait`. Tokens
stay on the device: a round reads its lanes' anchors, which the step before has written. The same code runs on the
processor through the kernels' plain routes, which is how it is tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, overload

import torch
from torch import Tensor

from ninfer.config import EngineSettings
from ninfer.engine.available import available_bytes
from ninfer.engine.captured import Captured, Part
from ninfer.engine.device_layout import DeviceLayout, Drafting, Workspace, build_workspace, tensor_bytes
from ninfer.engine.device_step import DeviceStep, Marks
from ninfer.engine.devices import chunk_policy, gpu_name, settle_device
from ninfer.engine.keeping import KeepsStates
from ninfer.engine.lanes import Lane, TableLimits, check_chunk, lanes_of
from ninfer.engine.layouts import WithDrafter, drafter_shape
from ninfer.engine.plan import MemoryPlan, plan_memory
from ninfer.engine.transfers import Transfers
from ninfer.errors import DeviceFault, StartupError
from ninfer.kernels.low_bit_linear.chunk_route import warm_up_lengths
from ninfer.kernels.paged_attention.variants import UNIT_KEYS
from ninfer.kernels.sampler.lanes import MAX_STOP_IDS, NOT_FINITE, STOPPED, law_row
from ninfer.kernels.sampler.logprobs import ROWS_AT_ONCE, LogprobRows, logprob_rows
from ninfer.kernels.sampler.masks import mask_row
from ninfer.kernels.sampler.op import Purpose, uniform
from ninfer.model.arena import Arena
from ninfer.model.chunks import Chunks, even_parts
from ninfer.model.device_cache import DeviceCache, build_device_cache, fill_lane
from ninfer.model.draft_rounds import INPUT_WORDS, DraftInputs, DraftRound, LaneDrafts
from ninfer.model.low_bit_weights import StoredModel, TextMatrices, load_matrices, plan_weights
from ninfer.model.rounds import MAX_ROWS, Round, RoundInputs, round_shared
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
    pages_for,
)

# Steps whose host memory is in use: two in flight, and one whose result is being read while the next is prepared.
_HOST_SLOTS = 4
_CPU_MULTIPROCESSORS = 4  # where there is no GPU, programs only shape the buffers

_EVERYTHING = -1  # a word of a mask that leaves all its ids


class ServedModel(StoredModel, WithDrafter, Protocol):
    """What the engine needs of a bound artifact."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What the device has to know of a lane before a round, or before drawing behind a chunk."""

    lane: int
    position: int
    state_block: int
    uniform: float = 0.0


@dataclass(frozen=True, slots=True)
class _HostSlot:
    """Page-locked memory of one step, so that copies need nobody to wait: inputs [4, 8], results [T, 2], ids [chunk],
    begin [1], with guesses the inputs, results and guesses of :class:`DraftRound`, int32."""

    inputs: Tensor
    results: Tensor
    ids: Tensor
    begin: Tensor
    drafts: DraftInputs
    drafted: Tensor
    guesses: Tensor


class DeviceEngine(KeepsStates):
    """One model on one GPU. Not thread-safe: one thread launches its steps, in order."""

    def __init__(
        self,
        settings: EngineSettings,
        memory: MemoryPlan,
        weights: TextMatrices,
        cache: DeviceCache,
        workspace: Workspace,
        public_ids: int,
        layout: DeviceLayout,
    ) -> None:
        self._settings, self._memory = settings, memory
        self._device = torch.device(settings.device)
        self._weights, self._cache, self._workspace = weights, cache, workspace
        self._layout, self._public_ids = layout, public_ids
        self._chunk_policy = chunk_policy(settings.short_chunk_products, gpu_name(self._device))
        self._chunks = Chunks(
            layout.config, weights, cache, workspace.shared, workspace.chunk, public_ids, self._chunk_policy
        )
        self._lanes = [Lane() for _ in range(settings.lanes)]
        self._transfers = Transfers(cache.carried, settings, workspace.chunk.matrix)
        self._tables = self._pinned(*cache.tables.shape)
        self._drafting = workspace.drafting
        self._captured = Captured(workspace, drafter=weights.drafter is not None)
        room = pages_for(settings.max_context_tokens)
        self._limits = TableLimits(settings.max_context_tokens, memory.pages, room)
        self._unseen: list[tuple[int, ...]] = [()] * settings.lanes
        # Guesses for the next round of a lane, if they were made behind its last; the drafter has looked at that then.
        self._made: list[tuple[int, ...] | None] = [None] * settings.lanes
        self._slots = [self._host_slot() for _ in range(_HOST_SLOTS)]
        self._next_slot = 0
        self._logit_rows = [0]
        self._open: tuple[PrefillChunk, int] | None = None  # a chunk that has parts to come, and the next of them
        cache.drawing.masks.fill_(_EVERYTHING)
        cache.drawing.halts.zero_()

    @classmethod
    def load(cls, artifact: ServedModel, settings: EngineSettings, public_ids: int) -> DeviceEngine:
        """Plan, repack the weights onto the device, check the plan against the memory then free, allocate the rest,
        run every kernel once and capture the decode rounds.

        public_ids  token ids below this can be drawn; the head's other rows are reserved
        Raises StartupError if the model has no kernels, the settings are contradictory or the plan does not fit.
        """
        device = torch.device(settings.device)
        layout = device_layout(artifact, settings)
        config = layout.config
        if not 0 < public_ids <= config.vocab_size:
            raise StartupError(f"the tokenizer has {public_ids} ids, the model's head {config.vocab_size} rows")
        limit = settings.device_memory_limit_bytes
        plan_memory(layout, settings, available_bytes(device, limit)).require()
        with torch.inference_mode():
            weights = load_matrices(layout.plan, artifact, device)
            if device.type == "cuda":
                torch.cuda.empty_cache()  # blocks of stored rows
            memory = plan_memory(layout, settings, available_bytes(device, limit, resident=weights.nbytes))
            memory.require()
            kv, state, rows = (Arena(specs, device) for specs in (memory.kv, memory.state, memory.open_rows))
            cache = build_device_cache(config, kv, state, rows, settings.kv_dtype, drafter=layout.has_drafter)
            workspace = build_workspace(config, settings, weights, cache, layout.multiprocessors, public_ids, device)
            engine = cls(settings, memory, weights, cache, workspace, public_ids, layout)
            engine._warm_up()
            if device.type == "cuda" and settings.cuda_graph:
                engine._captured.capture()
            engine.reset()
        return engine

    @property
    def memory(self) -> MemoryPlan:
        """The plan that was checked after loading."""
        return self._memory

    @property
    def weights(self) -> TextMatrices:
        """The model's weights on the device."""
        return self._weights

    @property
    def allocated_bytes(self) -> int:
        """Bytes of every storage that the engine holds: the plan's total without graphs and the library's own."""
        return tensor_bytes(self._weights, self._cache, self._workspace)

    @property
    def logits(self) -> Tensor:
        """[rows, V] fp32 copy: what the last launched step drew from, a row for each token of a round's lanes, guesses
        included; public ids first, then the reserved rows. Something else behind a round that foresees.
        """
        return self._workspace.shared.logits[self._logit_rows]

    @property
    def folds_late(self) -> bool:
        """A block that rounds have filled becomes a state when the next begins."""
        return True

    @property
    def chunk_parts(self) -> tuple[int, ...]:
        """Parts with the same kinds of layers in each, so that all take about the same time."""
        return even_parts(self._layout.config)

    @property
    def appends(self) -> bool:
        """A prompt may go on inside the block in which its lane stands."""
        return True

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget every lane, after a fault: each must start anew. Raises DeviceFault if the device is lost."""
        try:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._cache.drawing.counts.zero_()
            self._cache.drawing.masks.fill_(_EVERYTHING)
            self._cache.drawing.halts.zero_()
        except RuntimeError as error:
            raise DeviceFault(f"the device is lost: {error}") from error
        self._lanes = [Lane() for _ in self._lanes]
        self._made = [None] * len(self._lanes)
        self._open = None

    @overload
    def run(self, plan: PrefillChunk | NextPart) -> PrefillResult: ...
    @overload
    def run(self, plan: DecodeRound) -> DecodeResult: ...
    def run(self, plan: PrefillChunk | NextPart | DecodeRound) -> PrefillResult | DecodeResult:
        """Launch one step and wait for it."""
        return self.launch(plan).wait()

    @overload
    def launch(self, plan: PrefillChunk | NextPart) -> DeviceStep[PrefillResult]: ...
    @overload
    def launch(self, plan: DecodeRound) -> DeviceStep[DecodeResult]: ...
    @torch.inference_mode()
    def launch(
        self, plan: PrefillChunk | NextPart | DecodeRound
    ) -> DeviceStep[PrefillResult] | DeviceStep[DecodeResult]:
        """Queue one step behind those before it. An assertion fails if the plan breaks a rule of ``ninfer.step``."""
        match plan:
            case PrefillChunk():
                return self._launch_chunk(plan)
            case NextPart():
                return self._launch_part(plan)
            case DecodeRound():
                return self._launch_round(plan)

    # --- chunks --------------------------------------------------------------------------------------------------

    def _launch_chunk(self, chunk: PrefillChunk) -> DeviceStep[PrefillResult]:
        check_chunk(chunk)
        assert self._open is None, "a chunk between the parts of another"
        tokens = len(chunk.token_ids)
        seen = self._seen(chunk)
        room = self._workspace.chunk.ids.shape[0]
        assert chunk.begin % PAGE_TOKENS + tokens <= room, f"a chunk of {tokens} tokens at {chunk.begin}"
        slot, marks = self._slot(), Marks(self._device)
        marks.begin()
        self._transfers.carry_out(chunk.before, self._lanes, chunk)
        if chunk.setup is not None:
            self._set_up(chunk.lane, chunk.setup, chunk.begin)
        lane = self._lanes[chunk.lane]
        lane.check_chunk(chunk)
        self._map(chunk.lane, chunk.mapping, chunk.begin + tokens)
        buffers = self._workspace.chunk
        ids = chunk.token_ids if seen is None else (*chunk.token_ids, *seen)
        slot.ids[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
        slot.begin[0] = chunk.begin
        buffers.ids[: len(ids)].copy_(slot.ids[: len(ids)], non_blocking=True)
        buffers.begin.copy_(slot.begin, non_blocking=True)
        return self._run_part(chunk, 0, marks)

    def _launch_part(self, plan: NextPart) -> DeviceStep[PrefillResult]:
        assert self._open is not None, "no chunk has parts to come"
        chunk, part = self._open
        assert chunk.lane == plan.lane, f"lane {plan.lane}, the chunk is of lane {chunk.lane}"
        marks = Marks(self._device)
        marks.begin()
        return self._run_part(chunk, part, marks)

    def _run_part(self, chunk: PrefillChunk, part: int, marks: Marks) -> DeviceStep[PrefillResult]:
        """A part of a chunk whose tokens lie in the buffers; the last makes an end of it."""
        tokens, lane = len(chunk.token_ids), self._lanes[chunk.lane]
        self._chunks.read(chunk.lane, chunk.begin, tokens, part, chunk.parts)
        if part + 1 < chunk.parts:
            self._open = chunk, part + 1
            marks.end()
            return DeviceStep(marks, lambda seconds: PrefillResult(None, seconds))
        self._open = None
        slot, end, foresee = self._slot(), chunk.begin + tokens, 0
        told: dict[int, LogprobRows] = {}
        if self._weights.drafter is not None:
            seen = self._seen(chunk)
            self._chunks.show_drafter(chunk.lane, chunk.begin, tokens, 0 if seen is None else 1 + len(seen))
            self._unseen[chunk.lane] = (0,)  # one position, and the token behind it is not known
            self._made[chunk.lane] = None
        lane.advance(end)
        if chunk.sample:
            drawn_by = uniform(lane.running.sampling.seed, end, Purpose.PREFILL)
            self._tell(slot, [_Row(chunk.lane, end, lane.state_block, drawn_by)])
            self._allow(chunk.lane, chunk.mask)
            self._chunks.logits(tokens)
            self._chunks.draw()
            self._logit_rows = [0]
            slot.results[:1].copy_(self._workspace.shared.results[:1], non_blocking=True)
            told = self._logprobs((chunk.lane,), self._workspace.shared.results[:1, :1])
            foresee = self._foresee_first(chunk, slot)
        marks.end()
        self._transfers.carry_out(chunk.after, self._lanes, chunk)

        def read(seconds: float) -> PrefillResult:
            if not chunk.sample:
                return PrefillResult(None, seconds)
            (drawn,) = _with_logprobs(_drawn(slot.results, (chunk.lane,)), told)
            self._unseen[chunk.lane] = drawn.token_ids
            self._made[chunk.lane] = tuple(slot.guesses[1 : 1 + foresee].tolist()) if foresee else None
            (drawn,) = self._with_foreseen((chunk,), (drawn,))
            return PrefillResult(drawn, seconds)

        return DeviceStep(marks, read)

    def _seen(self, chunk: PrefillChunk) -> tuple[int, ...] | None:
        """Where the chunk goes on from the last step of its lane: tokens behind that step's positions but the last one,
        behind which the chunk's first token is. None where it goes on from a state, whose hidden state nobody has kept.
        """
        if chunk.setup is not None and not chunk.begin % PAGE_TOKENS:
            return None
        return self._unseen[chunk.lane][:-1] if self._weights.drafter is not None else ()

    def _set_up(self, number: int, setup: LaneSetup, begin: int) -> None:
        assert len(setup.stop_ids) <= MAX_STOP_IDS, f"{len(setup.stop_ids)} stop ids, there is room for {MAX_STOP_IDS}"
        self._lanes[number] = self._lanes[number].restarted(setup, begin)
        if begin and not begin % PAGE_TOKENS:  # inside a block everything that the lane has is gone on from
            self._cache.carried.go_back(number)
        tables = self._cache.drawing
        stops = [*setup.stop_ids, *[-1] * (MAX_STOP_IDS - len(setup.stop_ids))]
        tables.laws[number].copy_(self._locked(torch.tensor(law_row(setup.sampling))), non_blocking=True)
        tables.stops[number].copy_(self._locked(torch.tensor(stops, dtype=torch.int32)), non_blocking=True)
        tables.counts[number].zero_()
        tables.masks[number].fill_(_EVERYTHING)
        tables.halts[number].zero_()

    # --- rounds --------------------------------------------------------------------------------------------------

    def _launch_round(self, plan: DecodeRound) -> DeviceStep[DecodeResult]:
        if self._drafting is not None:
            return self._launch_draft_round(plan, self._drafting)
        lanes = lanes_of(plan)
        assert not any(row.drafts for row in plan.rows), "guesses without a drafter"
        slot, marks = self._slot(), Marks(self._device)
        marks.begin()
        self._transfers.carry_out(plan.before, self._lanes)
        told = []
        for row in plan.rows:
            lane = self._lanes[row.lane]
            drawn_by = uniform(lane.running.sampling.seed, row.position, Purpose.DECODE)
            told.append(self._enter(row, 0, drawn_by))
            lane.frontier = row.position + 1
        self._tell(slot, told)
        self._captured.replay(Part.ROUND, len(lanes))
        self._logit_rows = list(range(len(lanes)))
        slot.results.copy_(self._workspace.shared.results, non_blocking=True)
        logprobs = self._logprobs(lanes, self._workspace.shared.results[:, :1])
        marks.end()
        return DeviceStep(
            marks, lambda seconds: DecodeResult(_with_logprobs(_drawn(slot.results, lanes), logprobs), seconds)
        )

    def _launch_draft_round(self, plan: DecodeRound, drafting: Drafting) -> DeviceStep[DecodeResult]:
        """As above with guesses. The step before must have been waited for: its tokens are what the drafter sees."""
        lanes = lanes_of(plan)
        slot, marks = self._slot(), Marks(self._device)
        marks.begin()
        self._transfers.carry_out(plan.before, self._lanes)
        told, wishes = [], []
        for row in plan.rows:
            seed = self._lanes[row.lane].running.sampling.seed
            has_guesses = row.copied is not None or self._weights.drafter is not None
            live = min(row.drafts if row.copied is None else len(row.copied), drafting.widest) if has_guesses else 0
            uniforms = tuple(uniform(seed, row.position + at, Purpose.DECODE) for at in range(1 + live))
            told.append(self._enter(row, live))
            known, made = row.copied, self._made[row.lane]
            if known is None and made is not None and len(made) >= live:
                known = made[:live]
            wishes.append(LaneDrafts(row.lane, row.position, self._unseen[row.lane], live, known, uniforms))
        drafts = max(wish.live for wish in wishes)
        slot.drafts.fill(wishes, drafts, 1 + drafting.widest)
        drafting.shared.inputs.storage.copy_(slot.drafts.storage, non_blocking=True)
        self._tell(slot, told)
        if self._weights.drafter is not None and not all(self._is_ready(wish) for wish in wishes):
            self._captured.replay(Part.GUESS, len(lanes), drafts)
        self._captured.replay(Part.ROUND, len(lanes), drafts)
        self._logit_rows = [
            number * (1 + drafts) + column for number, wish in enumerate(wishes) for column in range(1 + wish.live)
        ]
        slot.drafted.copy_(drafting.shared.results, non_blocking=True)
        logprobs = self._logprobs(lanes, drafting.shared.results[:, 2 : 3 + drafts])
        foresee = self._foresee(max(row.foresee for row in plan.rows), len(lanes), slot)
        marks.end()

        def read(seconds: float) -> DecodeResult:
            drawn = _with_logprobs(_verified(slot.drafted, wishes), logprobs)
            foreseen = slot.guesses[: len(lanes) * (1 + foresee)].view(len(lanes), -1)[:, 1:].tolist()
            for row, guesses in zip(drawn, foreseen, strict=True):
                self._unseen[row.lane] = row.token_ids
                self._made[row.lane] = tuple(guesses) if foresee else None
                self._lanes[row.lane].frontier += len(row.token_ids)
            return DecodeResult(self._with_foreseen(plan.rows, drawn), seconds)

        return DeviceStep(marks, read)

    def _is_ready(self, wish: LaneDrafts) -> bool:
        """Whether there is nothing that the drafter has to look at or to guess in front of a round."""
        return wish.copied is not None and self._made[wish.lane] is not None

    def _foresee(self, wished: int, lanes: int, slot: _HostSlot) -> int:
        """Behind a round, guess for the next rows of all its lanes if one of them wishes it; returns how many."""
        drafting = self._drafting
        if drafting is None or self._weights.drafter is None or not wished:
            return 0
        foresee = min(wished, drafting.widest)
        self._captured.replay(Part.TURN, lanes)
        self._captured.replay(Part.GUESS, lanes, foresee)
        count = lanes * (1 + foresee)
        slot.guesses[:count].copy_(drafting.shared.guesses[:count], non_blocking=True)
        return foresee

    def _foresee_first(self, chunk: PrefillChunk, slot: _HostSlot) -> int:
        """The same behind a prompt: as behind a round of its last position alone."""
        if self._drafting is None or not chunk.foresee:
            return 0
        results, end = self._drafting.shared.results, chunk.begin + len(chunk.token_ids)
        results[0, 0] = 0
        results[0, 2:3].copy_(self._workspace.shared.results[0, :1])
        self._tell(self._slot(), [_Row(chunk.lane, end - 1, self._lanes[chunk.lane].state_block)])
        return self._foresee(chunk.foresee, 1, slot)

    def _with_foreseen(self, plans: Sequence[DecodeRow | PrefillChunk], drawn: tuple[Drawn, ...]) -> tuple[Drawn, ...]:
        """With the guesses behind what was drawn, where plans ask for them."""
        return tuple(
            replace(tokens, foreseen=(self._made[plan.lane] or ())[: plan.foresee])
            if plan.foresee and not tokens.stopped
            else tokens
            for plan, tokens in zip(plans, drawn, strict=True)
        )

    def _enter(self, row: DecodeRow, live: int, drawn_by: float = 0.0) -> _Row:
        """Map, mask and fold for a row of a round with `live` guesses; what the device has to know of it."""
        lane = self._lanes[row.lane]
        lane.check_row(row)
        self._map(row.lane, row.mapping, row.position + 1 + row.drafts)
        if row.mask is not None and row.halts is not None:
            self._allow_throughout(row.lane, row.mask)
        else:
            self._allow(row.lane, row.mask, *row.masks[:live])
        self._halt(row.lane, row.halts)
        told = _Row(row.lane, row.position, lane.state_block, drawn_by)
        block = row.position // PAGE_TOKENS
        if block > lane.state_block:
            self._cache.carried.keep_entry(row.lane)  # the round folds the block before
        lane.state_block = block
        return told

    def _logprobs(self, lanes: Sequence[int], drawn: Tensor) -> dict[int, LogprobRows]:
        """Of the lanes that tell of them, for each column of a round; in host memory once the step is done.

        drawn   [B, columns] int32: what stands behind the last drawn token of a row is no token
        """
        columns, on_gpu = drawn.shape[1], self._device.type == "cuda"
        found = {}
        for number, lane in enumerate(lanes):
            count = self._lanes[lane].running.logprobs
            if count is not None:
                logits = self._workspace.shared.logits[number * columns : (number + 1) * columns, : self._public_ids]
                found[lane] = logprob_rows(logits, drawn[number], count).to_host(pinned=on_gpu)
        return found

    def _tell(self, slot: _HostSlot, rows: Sequence[_Row]) -> None:
        """Everything a step reads of its lanes, in one copy to the device."""
        _fill(RoundInputs(slot.inputs), rows)
        self._workspace.shared.inputs.storage.copy_(slot.inputs, non_blocking=True)

    def _allow(self, number: int, *row: bytes | None) -> None:
        """What the next tokens of a lane may be, behind the draws that are queued, by column; None for anything."""
        lane, masks = self._lanes[number], self._cache.drawing.masks
        for column, mask in enumerate(row):
            if mask is not None:
                words = self._locked(mask_row(mask, masks.shape[2]))
                masks[number, column].copy_(words, non_blocking=True)
        if lane.is_masked and row[0] is None:
            masks[number].fill_(_EVERYTHING)
        lane.is_masked, lane.mask = row[0] is not None, None

    def _allow_throughout(self, number: int, mask: bytes) -> None:
        """What all next tokens of a lane may be, in every column, until something else is said."""
        lane = self._lanes[number]
        if mask != lane.mask:
            self._allow(number, mask)
            columns = self._cache.drawing.masks[number]
            columns[1:].copy_(columns[:1].expand_as(columns[1:]))
            lane.mask = mask

    def _halt(self, number: int, halts: bytes | None) -> None:
        """Which ids end the rounds of a lane from the next one on; None for no id."""
        lane, words = self._lanes[number], self._cache.drawing.halts[number]
        if halts == lane.halts:
            return
        if halts is None:
            words.zero_()
        else:
            words.copy_(self._locked(mask_row(halts, len(words))), non_blocking=True)
        lane.halts = halts

    # --- memory --------------------------------------------------------------------------------------------------

    def _map(self, number: int, mapping: PageMapping, end: int) -> None:
        """Append pages to a lane's table and see that positions below `end` have one."""
        entries = self._lanes[number].map(mapping, end, self._limits)
        if entries is not None:
            pages = mapping.pages
            if self._drafting is not None:  # behind the lane's pages stands the one that belongs to nobody
                pages, entries = (*pages, self._memory.pages), slice(entries.start, entries.stop + 1)
            added = self._tables[number, entries]
            added.copy_(torch.tensor(pages, dtype=torch.int32))
            self._cache.tables[number, entries].copy_(added, non_blocking=True)

    def _pinned(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.int32, pin_memory=self._device.type == "cuda")

    def _locked(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _host_slot(self) -> _HostSlot:
        chunk = self._workspace.chunk.ids.shape[0]
        rows = self._workspace.shared.results.shape[0]
        drafting = self._workspace.drafting
        drafted: tuple[tuple[int, ...], ...] = ((0, 0), (0,))
        if drafting is not None:
            drafted = (drafting.shared.results.shape, drafting.shared.guesses.shape)
        return _HostSlot(
            self._pinned(4, MAX_ROWS), self._pinned(rows, 2), self._pinned(chunk), self._pinned(1),
            DraftInputs(self._pinned(INPUT_WORDS)), *(self._pinned(*shape) for shape in drafted),
        )  # fmt: skip

    def _slot(self) -> _HostSlot:
        slot = self._slots[self._next_slot]
        self._next_slot = (self._next_slot + 1) % _HOST_SLOTS
        return slot

    # --- start ---------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """Run every kernel in every form that serving uses, so that none is compiled then."""
        shared, chunk = self._workspace.shared, self._workspace.chunk
        shared.inputs.storage[0].copy_(torch.arange(MAX_ROWS, dtype=torch.int32))
        self._cache.tables.zero_()
        longest, room = chunk.ids.shape[0], self._cache.tables.shape[1] * PAGE_TOKENS
        lengths = {1, PAGE_TOKENS, PAGE_TOKENS + 1, 4 * PAGE_TOKENS, longest, *warm_up_lengths(self._chunk_policy)}
        for tokens in sorted({min(tokens, longest) for tokens in lengths}):
            self._chunks.read(0, 0, tokens)
            if self._weights.drafter is not None:
                self._chunks.show_drafter(0, 0, tokens, 0)
                # A chunk that goes on has one in front of it, and the table may have room for no longer one.
                self._chunks.show_drafter(0, PAGE_TOKENS, min(tokens, room - PAGE_TOKENS), 1)
            self._chunks.logits(tokens)
            self._chunks.draw()
        if room > UNIT_KEYS:
            self._chunks.read(0, UNIT_KEYS, 1)  # the shortest history behind which attention joins sums of units
        self._transfers.warm_up()
        likeliest = 20  # as many as a client may ask for
        logprob_rows(shared.logits[:ROWS_AT_ONCE, : self._public_ids], shared.results[:ROWS_AT_ONCE, 0], likeliest)
        if self._device.type != "cuda":
            return
        self._captured.launch_all()
        torch.cuda.synchronize(self._device)
        self._prefer_cache()

    def _prefer_cache(self) -> None:
        from ninfer.kernels.served.carveout import prefer_cache
        from ninfer.kernels.served.kernels import ROUND_KERNELS

        prefer_cache(ROUND_KERNELS)

    # --- for measurements ----------------------------------------------------------------------------------------

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds of one lane, two lanes, and so on."""
        return self._workspace.rounds

    @property
    def draft_rounds(self) -> Mapping[tuple[int, int], DraftRound]:
        """Rounds with guesses, by lanes and guesses per lane."""
        return self._drafting.rounds if self._drafting is not None else {}

    @torch.inference_mode()
    def tell_draft_round(self, lanes: int, drafts: int) -> None:
        """Write inputs of a round of the first lanes from where they stand, with all of the drafter's guesses."""
        assert self._drafting is not None
        slot = self._slot()
        rows = [_Row(number, lane.frontier, lane.state_block) for number, lane in enumerate(self._lanes[:lanes])]
        wishes = [
            LaneDrafts(row.lane, row.position, self._unseen[row.lane], drafts, None, (0.5,) * (1 + drafts))
            for row in rows
        ]
        slot.drafts.fill(wishes, drafts, 1 + self._drafting.widest)
        self._drafting.shared.inputs.storage.copy_(slot.drafts.storage)
        self._tell(slot, rows)

    @torch.inference_mode()
    def assume_depth(self, number: int, setup: LaneSetup, tokens: int, pages: tuple[int, ...]) -> None:
        """Set a lane up as if it had read `tokens` tokens, a positive multiple of a page, into these pages. What is in
        its cache and state is random and finite.
        """
        assert 0 < tokens == PAGE_TOKENS * len(pages), f"{tokens} tokens, {len(pages)} pages"
        self._set_up(number, setup, 0)
        self._map(number, PageMapping(0, pages), tokens)
        fill_lane(self._cache, number, torch.tensor(pages, device=self._device))
        lane = self._lanes[number]
        lane.frontier, lane.state_block = tokens, tokens // PAGE_TOKENS
        self._unseen[number], self._made[number] = (0,), None

    @torch.inference_mode()
    def extra_round(self, rows: int, per_lane: int) -> Round:
        """A round of the first `rows` lanes with several columns each, from where they stand; its buffers are its own,
        and not in the memory plan.
        """
        layout = self._layout
        shared = round_shared(
            layout.config, self._weights, self._cache, rows, per_lane, layout.multiprocessors, self._device
        )
        told = RoundInputs(torch.zeros(4, MAX_ROWS, dtype=torch.int32))
        _fill(told, [_Row(at, lane.frontier, lane.state_block) for at, lane in enumerate(self._lanes[:rows])])
        shared.inputs.storage.copy_(told.storage)
        round_ = Round(layout.config, self._weights, self._cache, shared, self._public_ids, rows, per_lane)
        if self._device.type == "cuda":
            round_.launch(torch.zeros(rows * per_lane, dtype=torch.int32, device=self._device))
            torch.cuda.synchronize(self._device)
            self._prefer_cache()
        return round_


def _fill(inputs: RoundInputs, rows: Sequence[_Row]) -> None:
    """Write rows into the first places of inputs in host memory."""
    count = len(rows)
    numbers = [[row.lane for row in rows], [row.position for row in rows], [row.state_block for row in rows]]
    inputs.storage[:3, :count] = torch.tensor(numbers, dtype=torch.int32)
    inputs.uniforms[:count] = torch.tensor([row.uniform for row in rows])


def _drawn(results: Tensor, lanes: tuple[int, ...]) -> tuple[Drawn, ...]:
    rows = results[: len(lanes)].tolist()
    if any(flags & NOT_FINITE for _, flags in rows):
        raise DeviceFault(f"logits of lanes {list(lanes)} are not finite")
    return tuple(Drawn(lane, (token,), bool(flags & STOPPED)) for lane, (token, flags) in zip(lanes, rows, strict=True))


def _with_logprobs(drawn: tuple[Drawn, ...], told: Mapping[int, LogprobRows]) -> tuple[Drawn, ...]:
    """What is told of the tokens of some lanes, by lane, put to them."""
    if not told:
        return drawn
    return tuple(
        replace(row, logprobs=tuple(told[row.lane].of(column, token) for column, token in enumerate(row.token_ids)))
        if row.lane in told
        else row
        for row in drawn
    )


def _verified(results: Tensor, wishes: Sequence[LaneDrafts]) -> tuple[Drawn, ...]:
    rows = results[: len(wishes)].tolist()
    if any(flags & NOT_FINITE for _, flags, *_ in rows):
        raise DeviceFault(f"logits of lanes {[wish.lane for wish in wishes]} are not finite")
    return tuple(
        Drawn(
            wish.lane,
            tuple(tokens[: accepted + 1]),
            bool(flags & STOPPED),
            drafted=wish.live,
            accepted=accepted,
        )
        for wish, (accepted, flags, *tokens) in zip(wishes, rows, strict=True)
    )  # fmt: skip


def device_layout(artifact: ServedModel, settings: EngineSettings) -> DeviceLayout:
    """The layout of a model on the device of the settings. On a GPU, the first use of it.

    Raises StartupError if there is no such device or the model has no kernels.
    """
    device = torch.device(settings.device)
    plan = plan_weights(artifact, drafter_shape(artifact, settings))
    if device.type != "cuda":
        return DeviceLayout(plan, _CPU_MULTIPROCESSORS)
    return DeviceLayout(plan, settle_device(device))
