"""What an engine allocates, by group of the memory plan: one layout for each kind of engine."""

from __future__ import annotations

from typing import Protocol

from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION, MtpConfig, TextConfig
from ninfer.config import EngineSettings
from ninfer.errors import StartupError
from ninfer.model.arena import ITEM_BYTES, TensorSpec
from ninfer.model.cache import kv_specs, lane_specs, open_row_specs, pending_specs, state_specs
from ninfer.model.weights import DrafterShape, weight_specs
from ninfer.step import PAGE_TOKENS, pages_for

Specs = tuple[TensorSpec, ...]


class WithDrafter(Protocol):
    """What a bound artifact says of its drafter."""

    @property
    def mtp(self) -> MtpConfig | None:
        """The multi-token prediction layer, if it is bound."""

    @property
    def proposal_rows(self) -> int | None:
        """Rows of the short head, if it is bound."""


def drafter_shape(model: WithDrafter, settings: EngineSettings) -> DrafterShape | None:
    """What to load for the drafter of the settings; raises StartupError if the model does not have it."""
    if settings.drafter is None:
        return None
    if settings.drafter != "mtp":
        raise StartupError(f"drafter {settings.drafter!r} is not built: use mtp")
    if model.mtp is None:
        raise StartupError("this model has no multi-token prediction layer: start without --spec")
    if settings.draft_head and model.proposal_rows is None:
        raise StartupError("this model has no draft head: start without --lm-head-draft")
    return DrafterShape(model.proposal_rows if settings.draft_head else None)


class Layout(Protocol):
    """Everything but the pages must be independent of their number, and pages must all be alike."""

    @property
    def config(self) -> TextConfig: ...

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """Codecs of the attention cache that the engine has."""

    @property
    def compute_dtypes(self) -> tuple[str, ...]:
        """Types of activations that the engine has."""

    def weights(self, settings: EngineSettings) -> Specs: ...

    def kv(self, settings: EngineSettings, pages: int) -> Specs: ...

    def state(self, settings: EngineSettings) -> Specs: ...

    def open_rows(self, settings: EngineSettings) -> Specs: ...

    def workspace_bytes(self, settings: EngineSettings) -> int:
        """Bound on what one step holds beside the rest, the largest of its phases."""

    def graph_bytes(self, settings: EngineSettings) -> int:
        """Allowance for captured graphs."""


class PlainLayout:
    """The engine of the processor: decoded weights, plain-torch kernels."""

    kv_dtypes = ("bf16", "fp32")
    compute_dtypes = ("bf16", "fp32")

    def __init__(self, config: TextConfig, drafter: DrafterShape | None = None) -> None:
        self.config = config
        self.drafter = drafter

    def weights(self, settings: EngineSettings) -> Specs:
        return weight_specs(self.config, settings.compute_dtype, self.drafter)

    def kv(self, settings: EngineSettings, pages: int) -> Specs:
        return kv_specs(self.config, pages, settings.kv_dtype, drafter=self.drafter is not None)

    def state(self, settings: EngineSettings) -> Specs:
        config, lanes, dtype, drafts = self.config, settings.lanes, settings.compute_dtype, settings.draft_tokens
        pending = pending_specs(config, lanes, dtype, drafts) if self.drafter is not None else ()
        tables = lane_specs(config, lanes, pages_for(settings.max_context_tokens))
        return state_specs(config, lanes, dtype, drafts) + pending + tables

    def open_rows(self, settings: EngineSettings) -> Specs:
        return open_row_specs(self.config, settings.lanes)

    def graph_bytes(self, settings: EngineSettings) -> int:
        return 0

    def workspace_bytes(self, settings: EngineSettings) -> int:
        """The larger of the step's two phases.

        Counts fp32 copies of the widest rows, the recurrence's matrices of every block of a chunk, one query tile
        against one group of pages, and the logits with the sampler's copy.
        """
        chunk = min(settings.prefill_chunk_tokens, pages_for(settings.max_context_tokens) * PAGE_TOKENS)
        vocabulary = 3 * ITEM_BYTES["fp32"] * self.config.vocab_size
        rows = self._rows_bytes
        columns = settings.lanes * (1 + settings.draft_tokens)
        return max(rows(chunk) + vocabulary, rows(max(PAGE_TOKENS, columns)) + columns * vocabulary)

    def _rows_bytes(self, rows: int) -> int:
        config = self.config
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
