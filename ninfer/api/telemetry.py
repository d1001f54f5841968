"""``GET /telemetry``: everything of this moment in one document, for pages that draw it (serving spec, 4.10). Pure.

What other routes say as well is taken from what they say.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.actors.messages import Kept, SlotView
from ninfer.api.metrics import in_flight
from ninfer.api.operations import Operations, Record, slots, stats, uptime
from ninfer.requestlog.writer import RequestLog
from ninfer.scheduler.statistics import SchedulerStatistics
from ninfer.scheduler.transitions import Lifecycle


def telemetry(
    operations: Operations,
    statistics: SchedulerStatistics,
    kept: Kept,
    views: Sequence[SlotView],
    gpu: Record,
    request_log: RequestLog,
    ready_at: float | None,
    unix_time: float,
) -> Record:
    """The document; `gpu` is a reading of the sensors."""
    told, totals = stats(operations, statistics, kept, unix_time), statistics.totals
    limits, scheduler, caches = operations.settings.scheduler, told["scheduler"], told["kv_cache"]
    assert isinstance(scheduler, dict)
    assert isinstance(caches, dict)
    return {
        "timestamp_unix_ms": told["timestamp_unix_ms"],
        "server_instance_id": request_log.instance_id,
        "uptime_seconds": uptime(ready_at, unix_time),
        "attached": statistics.lifecycle == Lifecycle.SERVING.name,
        "model_id": operations.model.public_id,
        "gpu": gpu,
        "scheduler": {
            **scheduler,
            "max_concurrency": limits.lanes,
            "max_pending_requests": limits.max_pending,
            "in_flight_requests": in_flight(statistics),
            "admitted_requests": totals.admitted,
            "queue_seconds_total": totals.queue_s,
            "rejected_overloaded": totals.refused_overloaded,
            "rejected_queue_timeout": totals.refused_timeout,
            "decode_rounds": totals.rounds,
            "decode_row_rounds": totals.row_rounds,
        },
        "counters": told["counters"],
        "cache": {**caches, "reuse": told["cache_reuse"], "host_kv": told["host_kv"]},
        "slots": [_slot(slot) for slot in slots(statistics, views, 0, speculative=False)],
        "memory": told["memory"],
        "events": {"jsonl_enabled": request_log.is_written, "subscribers": request_log.feed.watchers},
    }


def _slot(slot: Record) -> Record:
    """As ``/slots`` has it, in the words of this route."""
    checkpoints = slot["checkpoints"]
    assert isinstance(checkpoints, list)
    return {
        "processing": slot["is_processing"],
        "retained": slot["retained"],
        "prompt_tokens": slot["n_prompt_tokens"],
        "cached_tokens": slot["n_prompt_tokens_cache"],
        "session_digest": slot["session_digest"],
        "checkpoints": len(checkpoints),
    }
