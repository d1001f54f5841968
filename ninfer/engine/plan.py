"""The memory plan: every byte the engine will hold, known before the first one is allocated.

Pure arithmetic over a model's dimensions and the settings (kv-and-state spec, section 14). One builder makes the plan
for a given number of pages; capacity is resolved by building it, and the engine allocates what it lists.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION, TextConfig
from ninfer.config import EngineSettings
from ninfer.errors import StartupError
from ninfer.model.arena import ITEM_BYTES, TensorSpec, arena_bytes
from ninfer.model.cache import kv_specs, lane_specs, open_row_specs, state_specs
from ninfer.model.weights import weight_specs
from ninfer.step import PAGE_TOKENS, pages_for

MAX_LANES = 8


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What will be allocated, for `pages` pages of the attention cache.

    available   bytes that may be used in all; the plan fits if `required` is no more
    headroom    bytes an automatic capacity left free on purpose; 0 with a stated capacity
    weights, kv, state, open_rows
                tensors of the four arenas, in order; `state` ends with block tables, token counts and anchors
    workspace   bound on what one step holds beside them, the largest of its phases
    graphs      allowance for captured graphs
    """

    pages: int
    max_pages: int
    max_context_tokens: int
    available: int
    headroom: int
    weights: tuple[TensorSpec, ...]
    kv: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...]
    open_rows: tuple[TensorSpec, ...]
    workspace: int
    graphs: int

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """Bytes by group, in the order and by the names of the refusal message (14.3)."""
        return (
            ("weights", arena_bytes(self.weights)),
            ("kv", arena_bytes(self.kv)),
            ("state", arena_bytes(self.state)),
            ("replay", arena_bytes(self.open_rows)),
            ("workspace", self.workspace),
            ("graphs", self.graphs),
        )

    @property
    def required(self) -> int:
        return sum(size for _, size in self.groups)

    @property
    def slack(self) -> int:
        """Bytes left over; negative if the plan does not fit."""
        return self.available - self.required

    @property
    def fits(self) -> bool:
        """Whether `available` covers the plan and the headroom it promised."""
        return self.slack >= self.headroom

    @property
    def kv_capacity_tokens(self) -> int:
        return self.pages * PAGE_TOKENS

    def table(self) -> str:
        """The plan for people: one line per group, exact bytes and MiB."""
        lines = [f"{'memory':<10} {'bytes':>16} {'MiB':>12}"]
        rows = [*self.groups, ("required", self.required), ("available", self.available), ("slack", self.slack)]
        lines += [f"{name:<10} {size:>16,} {size / (1 << 20):>12,.2f}" for name, size in rows]
        lines.append(
            f"{self.pages} pages of {PAGE_TOKENS} tokens = {self.kv_capacity_tokens} tokens of attention cache, "
            f"longest sequence {self.max_context_tokens}"
        )
        return "\n".join(lines)

    def refusal(self) -> str:
        """What the operator is told if the plan does not fit (14.3): exact bytes."""
        groups = ", ".join(f"{name} {size}" for name, size in self.groups)
        if self.headroom > self.available:
            return f"a KV headroom of {self.headroom} bytes is more than the {self.available} bytes that are available"
        beside = f" beside a headroom of {self.headroom} bytes" if self.headroom else ""
        return (
            f"runtime reservation requires {self.required} bytes{beside}; {self.available} bytes are available; "
            f"short by {self.headroom - self.slack} bytes ({groups})"
        )

    def require(self) -> None:
        """Raise StartupError with :meth:`refusal` unless the plan fits."""
        if not self.fits:
            raise StartupError(self.refusal())


def plan_memory(config: TextConfig, settings: EngineSettings, available: int) -> MemoryPlan:
    """The plan of a model on a device with `available` bytes, before loading and after; it need not fit.

    An automatic capacity (14.2) takes all pages that fit beside the headroom; if not even the least number does, the
    plan is for that number. Raises StartupError for settings that contradict each other or the model.
    """
    minimum, maximum = _page_bounds(config, settings)
    headroom = 0
    if settings.kv_capacity_tokens is not None:
        pages = pages_for(settings.kv_capacity_tokens)
        if not minimum <= pages <= maximum:
            raise StartupError(
                f"a KV capacity of {settings.kv_capacity_tokens} tokens is {pages} pages; {settings.lanes} lanes of "
                f"{settings.max_context_tokens} tokens need {minimum} to {maximum}"
            )
    else:
        headroom = settings.kv_headroom_bytes
        pages = _largest_fitting(config, settings, available, minimum, maximum)
    return _build(config, settings, pages, maximum, available, headroom)


def _page_bounds(config: TextConfig, settings: EngineSettings) -> tuple[int, int]:
    """M_min and M_max of 8.2, after the rules that are not about memory."""
    if not 1 <= settings.lanes <= MAX_LANES:
        raise StartupError(f"{settings.lanes} lanes: there must be 1 to {MAX_LANES}")
    for name, value in (("KV dtype", settings.kv_dtype), ("compute dtype", settings.compute_dtype)):
        if value not in ("bf16", "fp32"):
            raise StartupError(f"{name} {value!r} is not built for this device: use bf16 or fp32")
    context, chunk = settings.max_context_tokens, settings.prefill_chunk_tokens
    if not 1 <= context <= config.max_position_embeddings:
        raise StartupError(f"a context of {context} tokens: the model allows 1 to {config.max_position_embeddings}")
    if chunk < 1 or chunk % PAGE_TOKENS:
        raise StartupError(f"a prefill chunk of {chunk} tokens: it must be a positive multiple of {PAGE_TOKENS}")
    capacity = settings.kv_capacity_tokens
    if capacity is not None and capacity < context:
        raise StartupError(f"a KV capacity of {capacity} tokens is less than the context of {context}")
    blocks = pages_for(context)
    return max(blocks, settings.lanes), blocks * settings.lanes


def _largest_fitting(config: TextConfig, settings: EngineSettings, available: int, minimum: int, maximum: int) -> int:
    """Pages of an automatic capacity, or `minimum` if even that does not fit."""
    smallest = _build(config, settings, minimum, maximum, available, 0)
    step = _build(config, settings, minimum + 1, maximum, available, 0).required - smallest.required
    spare = smallest.slack - settings.kv_headroom_bytes
    if spare < 0:
        return minimum
    pages = maximum if step == 0 else min(maximum, minimum + spare // step)
    predicted = smallest.required + (pages - minimum) * step
    built = _build(config, settings, pages, maximum, available, 0).required
    assert built == predicted, f"the plan is not affine in pages: {built} bytes, predicted {predicted}"
    return pages


def _build(
    config: TextConfig, settings: EngineSettings, pages: int, maximum: int, available: int, headroom: int
) -> MemoryPlan:
    lanes, blocks = settings.lanes, pages_for(settings.max_context_tokens)
    return MemoryPlan(
        pages=pages,
        max_pages=maximum,
        max_context_tokens=settings.max_context_tokens,
        available=available,
        headroom=headroom,
        weights=weight_specs(config, settings.compute_dtype),
        kv=kv_specs(config, pages, settings.kv_dtype),
        state=state_specs(config, lanes, settings.compute_dtype) + lane_specs(config, lanes, blocks),
        open_rows=open_row_specs(config, lanes),
        workspace=workspace_bytes(config, settings),
        graphs=0,
    )


def workspace_bytes(config: TextConfig, settings: EngineSettings) -> int:
    """Bound on the temporary tensors of one step of the plain-torch route: the larger of its two phases.

    Counts fp32 copies of the widest rows, the recurrence's matrices of every block of a chunk, one query tile against
    one group of pages, and the logits with the sampler's copy.
    """
    chunk = min(settings.prefill_chunk_tokens, pages_for(settings.max_context_tokens) * PAGE_TOKENS)
    vocabulary = 3 * ITEM_BYTES["fp32"] * config.vocab_size
    return max(_rows_bytes(config, chunk) + vocabulary, _rows_bytes(config, PAGE_TOKENS) + settings.lanes * vocabulary)


def _rows_bytes(config: TextConfig, rows: int) -> int:
    widths = [2 * (config.intermediate_size or 0)]
    mixing = 0
    if LINEAR_ATTENTION in config.layer_types:
        key_heads, heads, block = config.gdn_key_heads, config.gdn_value_heads, PAGE_TOKENS
        widths.append(config.conv_channels + config.gdn_value_width + 2 * heads)
        per_token = 4 * config.gdn_key_width + 4 * config.gdn_value_width + 2 * key_heads * block
        per_token += heads * (2 * config.gdn_key_dim + 5 * block)
        mixing = rows * per_token
    if FULL_ATTENTION in config.layer_types:
        widths.append(2 * (config.query_width + config.kv_width))
        tile = PAGE_TOKENS * config.heads
        keys = 16 * PAGE_TOKENS
        pages = 2 * keys * config.kv_width + 3 * tile * keys + 2 * tile * 16 * config.head_dim
        mixing = max(mixing, pages + 4 * rows * config.query_width)
    return ITEM_BYTES["fp32"] * (rows * (5 * config.hidden_size + 4 * max(widths)) + mixing)
