"""The series of ``GET /metrics`` (serving spec, 4.4). Pure."""

from __future__ import annotations

from ninfer.actors.messages import Kept
from ninfer.api.exposition import COUNTER, GAUGE, HISTOGRAM, Histogram, Sample, Series, Value, exposition
from ninfer.api.observed import Constraints, Observed
from ninfer.scheduler.statistics import KeptView, SchedulerStatistics, TotalsView, reuse_counts
from ninfer.scheduler.transitions import Lifecycle


def in_flight(statistics: SchedulerStatistics) -> int:
    """Generation requests between their arrival and their last token."""
    return statistics.preparing + statistics.waiting + statistics.running


def metrics(statistics: SchedulerStatistics, kept: Kept, observed: Observed, ready_at: float | None) -> bytes:
    """The document; `ready_at` is the Unix second at which the server became ready."""
    return exposition(
        [
            *_steps(statistics),
            *_requests(statistics, observed),
            *_scheduler(statistics),
            *_reuse(statistics.totals),
            *_kept(statistics.kept, kept),
            *_constraints(observed.constraints),
            _one("ninfer:engine_ready", GAUGE, int(statistics.lifecycle == Lifecycle.SERVING.name)),
            _one("ninfer:server_start_time_seconds", GAUGE, float(ready_at or 0)),
            _histogram("ninfer:decode_gap_seconds", observed.gaps),
            _histogram("ninfer:time_to_first_token_seconds", observed.first_token),
            _histogram("ninfer:request_duration_seconds", observed.duration),
            _histogram("ninfer:request_queue_seconds", observed.queue),
        ]
    )


def _one(name: str, kind: str, value: Value) -> Series:
    return Series(name, kind, (Sample(value),))


def _histogram(name: str, histogram: Histogram) -> Series:
    return Series(name, HISTOGRAM, histogram.samples())


def _steps(statistics: SchedulerStatistics) -> list[Series]:
    totals = statistics.totals
    return [
        _one("llamacpp:prompt_tokens_total", COUNTER, totals.prefill_tokens),
        _one("llamacpp:prompt_seconds_total", COUNTER, totals.prefill_s),
        _one("llamacpp:tokens_predicted_total", COUNTER, totals.decode_tokens),
        _one("llamacpp:tokens_predicted_seconds_total", COUNTER, totals.decode_s),
        _one("ninfer:decode_rounds_total", COUNTER, totals.rounds),
        _one("ninfer:decode_row_rounds_total", COUNTER, totals.row_rounds),
        _one("ninfer:draft_tokens_total", COUNTER, totals.drafted_tokens),
        _one("ninfer:draft_accepted_tokens_total", COUNTER, totals.accepted_tokens),
        _one("ninfer:draft_rounds_total", COUNTER, totals.draft_rounds),
        _one("ninfer:draft_fallback_steps_total", COUNTER, totals.fallback_steps),
        _one("ninfer:engine_recoveries_total", COUNTER, totals.engine_recoveries),
    ]


def _requests(statistics: SchedulerStatistics, observed: Observed) -> list[Series]:
    totals = statistics.totals
    outcomes = tuple(Sample(count, {"outcome": outcome.value}) for outcome, count in observed.outcomes.items())
    return [
        _one("ninfer:requests_total", COUNTER, sum(observed.outcomes.values())),
        Series("ninfer:requests_outcome_total", COUNTER, outcomes),
        _one("ninfer:admitted_requests_total", COUNTER, totals.admitted),
        _one("ninfer:queue_seconds_total", COUNTER, totals.queue_s),
        _one("ninfer:admission_rejected_overloaded_total", COUNTER, totals.refused_overloaded),
        _one("ninfer:admission_rejected_queue_timeout_total", COUNTER, totals.refused_timeout),
        _one("ninfer:waiting_cancelled_requests_total", COUNTER, observed.waiting_cancelled),
        _one("ninfer:cancelled_prefills_total", COUNTER, observed.cancelled_prefills),
        _one("ninfer:cancelled_prefill_computed_tokens_total", COUNTER, observed.cancelled_prefill_tokens),
    ]


def _scheduler(statistics: SchedulerStatistics) -> list[Series]:
    everybody = in_flight(statistics)
    processing = min(everybody, len(statistics.lanes))
    return [
        _one("llamacpp:requests_processing", GAUGE, processing),
        _one("llamacpp:requests_deferred", GAUGE, everybody - processing),
        _one("ninfer:requests_running", GAUGE, statistics.running),
        _one("ninfer:requests_waiting", GAUGE, statistics.waiting),
        _one("ninfer:requests_prefilling", GAUGE, statistics.prefilling),
        _one("ninfer:requests_decode_ready", GAUGE, statistics.decode_ready),
        _one("ninfer:kv_pages_used", GAUGE, statistics.pages - statistics.pages_available),
        _one("ninfer:kv_pages_capacity", GAUGE, statistics.pages),
    ]


def _reuse(totals: TotalsView) -> list[Series]:
    return [
        _one("ninfer:prefix_cache_hit_tokens_total", COUNTER, totals.reused_tokens),
        *(_one(f"ninfer:reuse_{path}_total", COUNTER, count) for path, count in reuse_counts(totals).items()),
    ]


def _kept(counts: KeptView, kept: Kept) -> list[Series]:
    page = kept.page_bytes
    return [
        _one("ninfer:shared_prefixes", GAUGE, counts.shared),
        _one("ninfer:shared_prefix_publishes_total", COUNTER, counts.shared_stored),
        _one("ninfer:shared_prefix_evictions_total", COUNTER, counts.shared_dropped),
        _one("ninfer:turn_checkpoints", GAUGE, counts.turn_checkpoints),
        _one("ninfer:host_kv_budget_bytes", GAUGE, counts.host_pages * page),
        _one("ninfer:host_kv_used_bytes", GAUGE, counts.parked * page),
        _one("ninfer:host_kv_entries", GAUGE, counts.parked),
        # Any place takes any page, so what is free is one range.
        _one("ninfer:host_kv_largest_free_range_bytes", GAUGE, (counts.host_pages - counts.parked) * page),
        _one("ninfer:host_kv_parks_total", COUNTER, counts.parks),
        _one("ninfer:host_kv_restores_total", COUNTER, counts.loads),
        _one("ninfer:host_kv_evictions_total", COUNTER, counts.host_evictions),
        _one("ninfer:host_kv_park_failures_total", COUNTER, counts.unparked),
        # A page in host memory cannot fail to be read.
        _one("ninfer:host_kv_restore_failures_total", COUNTER, 0),
        _one("ninfer:host_kv_park_bytes_total", COUNTER, counts.parks * page),
        _one("ninfer:host_kv_park_seconds_total", COUNTER, kept.park_s),
        _one("ninfer:host_kv_restore_bytes_total", COUNTER, counts.loads * page),
        _one("ninfer:host_kv_restore_seconds_total", COUNTER, kept.load_s),
        _one("ninfer:slot_saves_total", COUNTER, counts.saves),
        _one("ninfer:slot_restores_total", COUNTER, counts.restores),
        _one("ninfer:slot_erases_total", COUNTER, counts.erases),
        _one("ninfer:slot_auto_saves_total", COUNTER, counts.auto_saves),
        _one("ninfer:slot_auto_save_failures_total", COUNTER, counts.auto_save_failures),
        _one("ninfer:disk_kv_budget_bytes", GAUGE, counts.disk_bytes),
        _one("ninfer:disk_kv_used_bytes", GAUGE, counts.disk_used),
        _one("ninfer:disk_kv_entries", GAUGE, counts.disk_files),
        _one("ninfer:disk_kv_saves_total", COUNTER, counts.disk_saves),
        _one("ninfer:disk_kv_save_failures_total", COUNTER, counts.disk_save_failures),
        _one("ninfer:disk_kv_hits_total", COUNTER, counts.disk_hits),
        _one("ninfer:disk_kv_misses_total", COUNTER, counts.disk_misses),
        _one("ninfer:disk_kv_read_failures_total", COUNTER, counts.disk_read_failures),
    ]


def _constraints(seen: Constraints) -> list[Series]:
    outcomes = tuple(Sample(count, {"outcome": outcome.value}) for outcome, count in seen.outcomes.items())
    results = tuple(Sample(count, {"result": result}) for result, count in seen.cache.items())
    return [
        _one("ninfer:constraint_prepare_seconds_total", COUNTER, seen.prepare_s),
        _one("ninfer:constraint_mask_seconds_total", COUNTER, seen.mask_s),
        _one("ninfer:constraint_matcher_seconds_total", COUNTER, seen.matcher_s),
        Series("ninfer:constraint_requests_total", COUNTER, outcomes),
        Series("ninfer:constraint_cache_total", COUNTER, results),
    ]
