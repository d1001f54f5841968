"""The memory plan: every byte the engine will hold, known before the first one is allocated.

Pure arithmetic over a model's dimensions and the settings (kv-and-state spec, section 14). One builder makes the plan
for a given number of pages; capacity is resolved by building it, and the engine allocates what it lists.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.config import EngineSettings
from ninfer.engine.layouts import Layout
from ninfer.errors import StartupError
from ninfer.model.arena import TensorSpec, arena_bytes
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


def plan_memory(layout: Layout, settings: EngineSettings, available: int) -> MemoryPlan:
    """The plan of a model on a device with `available` bytes, before loading and after; it need not fit.

    An automatic capacity (14.2) takes all pages that fit beside the headroom; if not even the least number does, the
    plan is for that number. Raises StartupError for settings that contradict each other or the model.
    """
    minimum, maximum = _page_bounds(layout, settings)
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
        pages = _largest_fitting(layout, settings, available, minimum, maximum)
    return _build(layout, settings, pages, maximum, available, headroom)


def _page_bounds(layout: Layout, settings: EngineSettings) -> tuple[int, int]:
    """M_min and M_max of 8.2, after the rules that are not about memory."""
    if not 1 <= settings.lanes <= MAX_LANES:
        raise StartupError(f"{settings.lanes} lanes: there must be 1 to {MAX_LANES}")
    for name, value, built in (
        ("KV dtype", settings.kv_dtype, layout.kv_dtypes),
        ("compute dtype", settings.compute_dtype, layout.compute_dtypes),
    ):
        if value not in built:
            raise StartupError(f"{name} {value!r} is not built for this device: use {' or '.join(built)}")
    context, chunk = settings.max_context_tokens, settings.prefill_chunk_tokens
    if not 1 <= context <= layout.config.max_position_embeddings:
        raise StartupError(
            f"a context of {context} tokens: the model allows 1 to {layout.config.max_position_embeddings}"
        )
    if chunk < 1 or chunk % PAGE_TOKENS:
        raise StartupError(f"a prefill chunk of {chunk} tokens: it must be a positive multiple of {PAGE_TOKENS}")
    capacity = settings.kv_capacity_tokens
    if capacity is not None and capacity < context:
        raise StartupError(f"a KV capacity of {capacity} tokens is less than the context of {context}")
    blocks = pages_for(context)
    return max(blocks, settings.lanes), blocks * settings.lanes


def _largest_fitting(layout: Layout, settings: EngineSettings, available: int, minimum: int, maximum: int) -> int:
    """Pages of an automatic capacity, or `minimum` if even that does not fit."""
    smallest = _build(layout, settings, minimum, maximum, available, 0)
    step = _build(layout, settings, minimum + 1, maximum, available, 0).required - smallest.required
    spare = smallest.slack - settings.kv_headroom_bytes
    if spare < 0:
        return minimum
    pages = maximum if step == 0 else min(maximum, minimum + spare // step)
    predicted = smallest.required + (pages - minimum) * step
    built = _build(layout, settings, pages, maximum, available, 0).required
    assert built == predicted, f"the plan is not affine in pages: {built} bytes, predicted {predicted}"
    return pages


def _build(
    layout: Layout, settings: EngineSettings, pages: int, maximum: int, available: int, headroom: int
) -> MemoryPlan:
    return MemoryPlan(
        pages=pages,
        max_pages=maximum,
        max_context_tokens=settings.max_context_tokens,
        available=available,
        headroom=headroom,
        weights=layout.weights(settings),
        kv=layout.kv(settings, pages),
        state=layout.state(settings),
        open_rows=layout.open_rows(settings),
        workspace=layout.workspace_bytes(settings),
        graphs=layout.graph_bytes(settings),
    )
