"""The ``server_start`` record (serving spec, 16.4). Pure.

Members of parts that this build lacks say so by their value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.config import Settings
from ninfer.requestlog.records import Guessing, Record
from ninfer.step import PAGE_TOKENS
from ninfer.version import VERSION


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What was learnt while starting.

    memory_groups   bytes by group of the plan: weights, kv, state, replay, workspace, graphs
    presets         sampling of the modes `thinking` and `non_thinking`
    environment     of the process: device, library versions
    """

    public_id: str
    artifact_path: str
    artifact_bytes: int
    target: str
    weights_id: str
    tensor_count: int
    resource_count: int
    load_s: float
    pages: int
    max_pages: int
    memory_groups: Mapping[str, int]
    required_bytes: int
    available_bytes: int
    headroom_bytes: int
    thinks_by_default: bool
    presets: Mapping[str, Mapping[str, object]]
    environment: Mapping[str, object]


def server_start(settings: Settings, facts: StartFacts) -> Record:
    """The first record of a log."""
    return {
        "version": VERSION,
        "server": _server(settings, facts),
        "artifact": _artifact(facts),
        "engine": _engine(settings, facts),
        "sampling_defaults": _sampling(settings, facts.presets),
        "memory": _memory(facts),
        "environment": dict(facts.environment),
        "argv": list(settings.argv),
    }


def _server(settings: Settings, facts: StartFacts) -> Record:
    http, generation = settings.http, settings.generation
    default = generation.default_max_tokens
    return {
        "host": http.host,
        "port": http.port,
        "public_model_id": facts.public_id,
        "api_key_configured": bool(http.api_keys),
        "cors_enabled": http.cors,
        "max_request_bytes": http.max_request_bytes,
        "request_log_jsonl": str(settings.log.request_log) if settings.log.request_log is not None else None,
        "slot_save_path": str(settings.slot_folder) if settings.slot_folder is not None else None,
        "default_output_tokens": default if default is not None else "auto",
        "max_output_tokens": generation.max_output_tokens,
        "default_thinking": generation.thinking if generation.thinking is not None else facts.thinks_by_default,
        "default_thinking_budget": generation.thinking_budget,
        "default_preserve_thinking": generation.preserve_thinking,
        "default_reasoning_effort": generation.reasoning_effort,
        "tolerant_tool_calls": generation.tolerant_tool_calls,
    }


def _artifact(facts: StartFacts) -> Record:
    return {
        "path": facts.artifact_path,
        "size_bytes": facts.artifact_bytes,
        "target": facts.target,
        "model_id": facts.public_id,
        "weights_id": facts.weights_id,
        "bytes_read": facts.artifact_bytes,
        "host_to_device_bytes": facts.memory_groups.get("weights", 0),
        "peak_staging_bytes": 0,
        "tensor_count": facts.tensor_count,
        "resource_count": facts.resource_count,
        "load_seconds": facts.load_s,
        "upload_seconds": 0.0,
    }


def _engine(settings: Settings, facts: StartFacts) -> Record:
    engine, scheduler, guessing = settings.engine, settings.scheduler, Guessing.of(settings)
    return {
        "device": engine.device,
        "max_context": engine.max_context_tokens,
        "kv_capacity_mode": "auto" if engine.kv_capacity_tokens is None else "explicit",
        "kv_capacity": facts.pages * PAGE_TOKENS,
        "kv_capacity_page_groups": facts.pages,
        "kv_capacity_max_page_groups": facts.max_pages,
        "max_concurrency": engine.lanes,
        "max_pending_requests": scheduler.max_pending,
        "pending_timeout_ms": round(scheduler.pending_timeout_s * 1000),
        "prefill_chunk": engine.prefill_chunk_tokens,
        "log_stats_interval_ms": round(settings.log.stats_interval_s * 1000),
        "kv_cache": engine.kv_dtype,
        "vision": False,
        "vision_max_tokens": None,
        "vision_residency": None,
        "cuda_graph": engine.cuda_graph and engine.device.startswith("cuda"),
        "deterministic": engine.short_chunk_products != "in-register",
        "max_inter_token_ms": round(scheduler.max_inter_token_s * 1000),
        "device_memory_limit": engine.device_memory_limit_bytes,
        "devices": [engine.device],
        "stage_layers": [],
        "shared_prefixes": scheduler.max_shared_prefixes,
        "auto_prefix_grid": False,
        "prefix_reuse": scheduler.prefix_reuse,
        "prefix_checkpoint_policy": settings.generation.checkpoint_policy,
        "turn_checkpoints": scheduler.turn_checkpoints,
        "auto_save_evicted": scheduler.auto_save,
        "host_kv_cache_bytes": engine.host_kv_cache_bytes,
        "disk_kv_cache_bytes": scheduler.disk_bytes,
        "speculative_backend": guessing.backend,
        "speculative_draft_window": guessing.window,
        "proposal_head": "optimized" if engine.draft_head else "full",
    }


def _sampling(settings: Settings, presets: Mapping[str, Mapping[str, object]]) -> Record:
    generation = settings.generation
    return {
        **presets,
        "server_overrides": {
            "temperature": generation.temperature,
            "top_p": generation.top_p,
            "top_k": generation.top_k,
            "min_p": generation.min_p,
            "presence_penalty": generation.presence_penalty,
            "frequency_penalty": generation.frequency_penalty,
            "seed": generation.seed,
        },
        "omitted_seed": "random",
        "greedy": generation.greedy,
    }


def _memory(facts: StartFacts) -> Record:
    groups = facts.memory_groups
    weights = groups.get("weights", 0)
    sequence = sum(groups.get(name, 0) for name in ("kv", "state", "replay"))

    def region(size: int) -> Record:
        return {"capacity_bytes": size, "used_bytes": size, "peak_used_bytes": size}

    return {
        "weights": region(weights),
        "sequence": region(sequence),
        "workspace": region(groups.get("workspace", 0)),
        "request_transient": region(0),
        "runtime_reservation_bytes": facts.required_bytes - weights,
        "available_after_weights_bytes": facts.available_bytes - weights,
        "kv_capacity_headroom_bytes": facts.headroom_bytes,
        "planned_slack_bytes": facts.available_bytes - facts.required_bytes,
        "cuda_graph_allowance_bytes": groups.get("graphs", 0),
        "cuda_graph_observed_bytes": 0,
        "kv_payload_bytes": groups.get("kv", 0),
    }
