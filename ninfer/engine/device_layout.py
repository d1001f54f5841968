"""The memory plan of the GPU engine.

Activations and scratch are planned by building them on torch's `meta` device, where tensors have shapes and no memory:
what is planned and what is allocated comes from the same functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.artifact.config import TextConfig
from ninfer.config import MIB, EngineSettings
from ninfer.engine.layouts import Specs
from ninfer.engine.transfers import scratch_bytes
from ninfer.errors import StartupError
from ninfer.model.arena import Arena
from ninfer.model.cache import pending_specs
from ninfer.model.chunks import ChunkBuffers, chunk_buffers
from ninfer.model.device_cache import (
    KV_DTYPES,
    DeviceCache,
    build_device_cache,
    kv_specs,
    lane_specs,
    open_row_specs,
    state_specs,
)
from ninfer.model.draft_rounds import DraftRound, DraftShared, draft_shared, widest_window
from ninfer.model.low_bit_weights import TextMatrices, WeightPlan, gathered
from ninfer.model.rounds import Round, RoundShared, round_shared
from ninfer.step import PAGE_TOKENS, pages_for

# The allocator hands out memory in pieces of this.
_ALLOCATION = 512
# What the library of matrix products keeps for itself on a GPU, and code of kernels that is loaded on first use. On an
# H200 a server of the 27B with 4 lanes of 172,032 tokens took 138 MiB. Log-probabilities of four rows, for lanes that
# ask, take up to 44 bytes per id of each beside that.
LIBRARY_BYTES = 240 * MIB
# One captured round per number of lanes (kv-and-state spec, section 15).
GRAPH_BYTES_PER_LANE = 4 * MIB


@dataclass(frozen=True, slots=True)
class Workspace:
    """Everything an engine allocates beside weights, pages and state.

    rounds    of 1 to C lanes, if there are no guesses
    drafting  what there is instead if there are
    """

    shared: RoundShared
    rounds: tuple[Round, ...]
    chunk: ChunkBuffers
    drafting: Drafting | None


@dataclass(frozen=True, slots=True)
class Drafting:
    """What rounds with guesses need: rounds by lanes and guesses per lane, `widest` at most."""

    shared: DraftShared
    rounds: dict[tuple[int, int], DraftRound]
    widest: int


def build_workspace(
    config: TextConfig,
    settings: EngineSettings,
    weights: TextMatrices,
    cache: DeviceCache,
    multiprocessors: int,
    public_ids: int,
    device: torch.device,
) -> Workspace:
    """Rounds of 1 to C lanes and the buffers of a chunk."""
    lanes = settings.lanes
    widest = widest_window(settings.draft_tokens, lanes)
    shared = round_shared(config, weights, cache, lanes, 1 + widest, multiprocessors, device)
    rounds: tuple[Round, ...] = ()
    drafting = None
    if not settings.draft_tokens:
        rounds = tuple(Round(config, weights, cache, shared, public_ids, rows) for rows in range(1, lanes + 1))
    else:
        buffers = draft_shared(config, shared, lanes, widest, device)
        kinds = {
            (rows, drafts): DraftRound(
                config, weights, cache, shared, buffers, public_ids, rows, drafts, widest
            )
            for rows in range(1, lanes + 1)
            for drafts in range(widest + 1)
        }  # fmt: skip
        drafting = Drafting(buffers, kinds, widest)
    context = cache.tables.shape[1] * PAGE_TOKENS
    chunk = min(settings.prefill_chunk_tokens, context)
    chunk_memory = chunk_buffers(config, weights, chunk, context, scratch_bytes(cache.carried), device)
    return Workspace(shared, rounds, chunk_memory, drafting)


def tensor_bytes(*owners: object) -> int:
    """Bytes of the distinct storages that objects own, as the allocator rounds them."""
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    for owner in owners:
        for tensor in _tensors(owner, seen):
            storage = tensor.untyped_storage()
            sizes[storage._cdata] = -(-storage.nbytes() // _ALLOCATION) * _ALLOCATION
    return sum(sizes.values())


def _tensors(owner: object, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(owner, Tensor):
        yield owner
        return
    if isinstance(owner, str | int | float | bool | torch.device | TextConfig) or owner is None or id(owner) in seen:
        return
    seen.add(id(owner))
    if isinstance(owner, tuple | list):
        members = list(owner)
    elif isinstance(owner, dict):
        members = list(owner.values())
    elif dataclasses.is_dataclass(owner):
        members = [getattr(owner, field.name) for field in dataclasses.fields(owner)]
    else:
        members = list(vars(owner).values())
    for member in members:
        yield from _tensors(member, seen)


class DeviceLayout:
    """`multiprocessors` of the device that will be used: programs and their scratch are counted by them."""

    kv_dtypes = KV_DTYPES
    compute_dtypes = ("bf16",)

    def __init__(self, plan: WeightPlan, multiprocessors: int) -> None:
        self.plan = plan
        self.config = plan.config
        self.multiprocessors = multiprocessors
        if self.config.heads and self.config.head_dim != 256:
            raise StartupError(f"the GPU kernels have attention heads of 256 columns, the model {self.config.head_dim}")

    def weights(self, settings: EngineSettings) -> Specs:
        return self.plan.specs

    @property
    def has_drafter(self) -> bool:
        return self.plan.drafter is not None

    def kv(self, settings: EngineSettings, pages: int) -> Specs:
        # Behind the pages lies one that belongs to nobody, for columns that lead beyond those of a lane.
        return kv_specs(self.config, pages + (settings.draft_tokens > 0), settings.kv_dtype, drafter=self.has_drafter)

    def state(self, settings: EngineSettings) -> Specs:
        config, lanes = self.config, settings.lanes
        # Rows of whole 16 bytes: kernels are compiled for how their operands are aligned.
        blocks = -(-(pages_for(settings.max_context_tokens) + (settings.draft_tokens > 0)) // 4) * 4
        pending: Specs = ()
        if self.has_drafter:
            pending = pending_specs(config, lanes, "bf16", widest_window(settings.draft_tokens, lanes))
        columns = 1 + widest_window(settings.draft_tokens, lanes)
        return state_specs(config, lanes) + pending + lane_specs(config, lanes, blocks, columns)

    def open_rows(self, settings: EngineSettings) -> Specs:
        return open_row_specs(self.config, settings.lanes)

    def graph_bytes(self, settings: EngineSettings) -> int:
        kinds = 1 + widest_window(settings.draft_tokens, settings.lanes)
        return settings.lanes * kinds * GRAPH_BYTES_PER_LANE if settings.cuda_graph else 0

    def workspace_bytes(self, settings: EngineSettings) -> int:
        meta = torch.device("meta")
        weights = gathered(self.plan, Arena(self.plan.specs, meta))
        kv, state, rows = (
            Arena(specs, meta) for specs in (self.kv(settings, 1), self.state(settings), self.open_rows(settings))
        )
        cache = build_device_cache(self.config, kv, state, rows, settings.kv_dtype, drafter=self.has_drafter)
        workspace = build_workspace(
            self.config, settings, weights, cache, self.multiprocessors, self.config.vocab_size, meta
        )
        persistent = tensor_bytes(weights, cache)
        return tensor_bytes(workspace, weights, cache) - persistent + LIBRARY_BYTES
