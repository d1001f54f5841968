"""What operators and monitors read: slots, stats, properties, load (serving spec, 4.5 to 4.9). Pure.

Members of parts that this build lacks say so by their value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ninfer.actors.messages import Kept, SlotView
from ninfer.api.metrics import in_flight
from ninfer.api.observed import Observed
from ninfer.api.preparation import Model, default_preset, output_limit
from ninfer.api.presets import SamplingRequest, resolve_sampling
from ninfer.config import Settings
from ninfer.requestlog.start import StartFacts
from ninfer.scheduler.statistics import LaneView, SchedulerStatistics, reuse_counts
from ninfer.step import PAGE_TOKENS
from ninfer.version import VERSION

Record = dict[str, object]


@dataclass(frozen=True, slots=True)
class Operations:
    """What the documents are made of.

    facts       what was learnt while starting; None before the server is ready
    read_gpu    what the sensors of the GPU show; blocks
    """

    settings: Settings
    model: Model
    observed: Observed
    facts: Callable[[], StartFacts | None]
    read_gpu: Callable[[], Record]


def slots(
    statistics: SchedulerStatistics, views: Sequence[SlotView], max_context_tokens: int, *, speculative: bool
) -> list[Record]:
    """One object per lane, in order (4.5)."""
    return [
        _slot(lane, view, max_context_tokens, speculative=speculative)
        for lane, view in zip(statistics.lanes, views, strict=True)
    ]


def _slot(lane: LaneView, view: SlotView, max_context_tokens: int, *, speculative: bool) -> Record:
    idle = lane.request_id is None
    return {
        "id": lane.lane,
        "is_processing": not idle,
        "retained": idle and lane.prompt_tokens > 0,
        "session_digest": view.session_digest if idle else "",
        "checkpoints": [{"frontier": at, "session_digest": digest} for at, digest in view.checkpoints if idle],
        "n_ctx": max_context_tokens,
        "n_prompt_tokens": lane.prompt_tokens,
        "n_prompt_tokens_cache": lane.cached_tokens,
        "speculative": speculative,
    }


def stats(operations: Operations, statistics: SchedulerStatistics, kept: Kept, unix_time: float) -> Record:
    """The snapshot for monitors (4.7)."""
    settings, totals = operations.settings.scheduler, statistics.totals
    facts = operations.facts()
    return {
        "schema": "ninfer_serve_stats",
        "schema_version": 1,
        "timestamp_unix_ms": int(unix_time * 1000),
        "http": {"in_flight": in_flight(statistics), "max_in_flight": settings.lanes + settings.max_pending},
        "scheduler": {
            "running": statistics.running,
            "prefilling": statistics.prefilling,
            "decode_ready": statistics.decode_ready,
            "waiting": statistics.waiting,
        },
        "counters": {
            "computed_prefill_tokens": totals.prefill_tokens,
            "committed_decode_tokens": totals.decode_tokens,
            "decode_rounds": totals.rounds,
            "decode_row_rounds": totals.row_rounds,
            "drafted_tokens": totals.drafted_tokens,
            "accepted_draft_tokens": totals.accepted_tokens,
            "draft_rounds": totals.draft_rounds,
            "draft_fallback_steps": totals.fallback_steps,
            "copied_tokens": totals.copied_tokens,
            "accepted_copied_tokens": totals.copied_accepted_tokens,
        },
        "cache_reuse": {
            **{f"{path}_selections": count for path, count in reuse_counts(totals).items()},
            "reused_prompt_tokens": totals.reused_tokens,
        },
        "kv_cache": _kv_cache(statistics, kept, settings.max_shared_prefixes),
        "host_kv": {
            "parks": statistics.kept.parks,
            "restores": statistics.kept.loads,
            "evictions": statistics.kept.host_evictions,
            "park_failures": statistics.kept.unparked,
            "restore_failures": 0,
            "d2h_bytes": statistics.kept.parks * kept.page_bytes,
            "h2d_bytes": statistics.kept.loads * kept.page_bytes,
            "d2h_seconds": kept.park_s,
            "h2d_seconds": kept.load_s,
        },
        "memory": _memory(statistics, facts),
        "load": _load(operations.model, facts),
    }


def _kv_cache(statistics: SchedulerStatistics, kept: Kept, max_shared: int) -> Record:
    # All pages of its life are promised to a request when it is admitted, and mapped as it grows into them.
    counts, entitled = statistics.kept, statistics.pages - statistics.pages_available
    mapped = statistics.pages - statistics.pages_free
    members = ("page_groups", "entitled_pages", "mapped_pages", "free_pages")
    return {
        "text": dict(zip(members, (statistics.pages, entitled, mapped, statistics.pages_free), strict=True)),
        "mtp": dict.fromkeys(members, 0),
        "host": {
            "enabled": counts.host_pages > 0,
            "budget_bytes": counts.host_pages * kept.page_bytes,
            "used_bytes": counts.parked * kept.page_bytes,
            "largest_free_range": (counts.host_pages - counts.parked) * kept.page_bytes,
            "entries": counts.parked,
        },
        "shared": {
            "capacity": max_shared,
            "entries": counts.shared,
            "state_bytes": counts.shared * kept.image_bytes,
        },
    }


def _memory(statistics: SchedulerStatistics, facts: StartFacts | None) -> Record:
    groups: Mapping[str, int] = facts.memory_groups if facts is not None else {}

    def region(*names: str) -> Record:
        size = sum(groups.get(name, 0) for name in names)
        return {"capacity_bytes": size, "used_bytes": size, "peak_used_bytes": size}

    return {
        "kv_capacity": statistics.pages * PAGE_TOKENS,
        "kv_capacity_page_groups": statistics.pages,
        "kv_capacity_max_page_groups": facts.max_pages if facts is not None else 0,
        "kv_payload_bytes": groups.get("kv", 0),
        "planned_slack_bytes": facts.available_bytes - facts.required_bytes if facts is not None else 0,
        "weights": region("weights"),
        "sequence": region("kv", "state", "replay"),
        "workspace": region("workspace"),
        "request_transient": region(),
    }


def _load(model: Model, facts: StartFacts | None) -> Record:
    return {
        "target": facts.target if facts is not None else "",
        "model_id": model.public_id,
        "weights_id": facts.weights_id if facts is not None else "",
        "load_seconds": facts.load_s if facts is not None else 0.0,
        "tensor_count": facts.tensor_count if facts is not None else 0,
    }


def props(operations: Operations) -> Record:
    """Discovery for clients of llama.cpp (4.8)."""
    settings, model = operations.settings, operations.model
    generation = settings.generation
    law = resolve_sampling(SamplingRequest(), generation, default_preset(model, generation), random_seed=0)
    unlimited = generation.default_max_tokens is None and generation.max_output_tokens is None
    tokens = -1 if unlimited else output_limit(None, generation, model.max_context_tokens).tokens
    params: Record = {
        "n_predict": tokens,
        "max_tokens": tokens,
        "temperature": law.temperature,
        "top_k": law.top_k,
        "top_p": law.top_p,
        "min_p": law.min_p,
        "presence_penalty": law.presence_penalty,
        "frequency_penalty": law.frequency_penalty,
    }
    if generation.seed is not None:
        params["seed"] = law.seed
    return {
        "default_generation_settings": {"n_ctx": model.max_context_tokens, "params": params},
        "total_slots": settings.scheduler.lanes,
        "model_alias": model.public_id,
        "model_path": str(settings.artifact),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"ninfer {VERSION}",
    }


def uptime(ready_at: float | None, unix_time: float) -> float:
    """Seconds since the server became ready."""
    return max(0.0, unix_time - ready_at) if ready_at is not None else 0.0


def load(
    operations: Operations, statistics: SchedulerStatistics, kept: Kept, ready_at: float | None, unix_time: float
) -> Record:
    """For a balancer in front of several servers (4.9)."""
    scheduler, totals = operations.settings.scheduler, statistics.totals
    counts, used = statistics.kept, statistics.pages - statistics.pages_available
    last = operations.observed.last
    return {
        "object": "ninfer.load",
        "model": operations.model.public_id,
        "uptime_seconds": uptime(ready_at, unix_time),
        "capacity": {
            "max_concurrency": scheduler.lanes,
            "max_pending_requests": scheduler.max_pending,
            "max_admitted_requests": scheduler.lanes + scheduler.max_pending,
            "max_context": operations.model.max_context_tokens,
            "kv_capacity_tokens": statistics.pages * PAGE_TOKENS,
            "kv_capacity_pages": statistics.pages,
            "kv_page_tokens": PAGE_TOKENS,
            "device_state_slots": scheduler.lanes,
            "host_context_bytes": counts.host_pages * kept.page_bytes + counts.states * kept.image_bytes,
        },
        "requests": {
            "admitted": in_flight(statistics),
            "running": statistics.running,
            "prefilling": statistics.prefilling,
            "decode_ready": statistics.decode_ready,
            "waiting": statistics.waiting,
            **dict.fromkeys(("paused", "replaying", "materializing"), 0),
        },
        "occupancy": {
            "device_main_kv_pages": used,
            "device_main_kv_tokens": used * PAGE_TOKENS,
            "device_state_slots": sum(lane.request_id is not None for lane in statistics.lanes),
            "host_context_bytes": counts.parked * kept.page_bytes + counts.stored_states * kept.image_bytes,
            "host_state_slots": counts.stored_states,
            "host_kv_bytes": counts.parked * kept.page_bytes,
        },
        "counters": {
            "computed_prefill_tokens": totals.prefill_tokens,
            "committed_decode_tokens": totals.decode_tokens,
            "reused_prompt_tokens": totals.reused_tokens,
            "decode_rounds": totals.rounds,
            "decode_row_rounds": totals.row_rounds,
        },
        "host": {"active_seconds": 0.0, "device_wait_seconds": 0.0},
        "last_request": None
        if last is None
        else {
            "completion_tokens": last.completion_tokens,
            "generation_wall_seconds": last.generation_s,
            "inter_token_seconds": last.inter_token_s,
            "decode_host_seconds": 0.0,
        },
    }
