"""Records of the request log as plain objects (serving spec, 16.2 to 16.4). Pure; times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ninfer.actors.messages import Finished, Kept
from ninfer.config import Settings
from ninfer.scheduler.statistics import SchedulerStatistics, reuse_counts
from ninfer.speculation.statistics import DraftStatistics
from ninfer.types import Sampling

Record = dict[str, object]

_FNV_START = 1469598103934665603  # serving spec, 14.6: not the textbook offset
_FNV_PRIME = 1099511628211


def digest_of(data: bytes) -> str:
    """The session hash over bytes, 16 hex digits."""
    value = _FNV_START
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFF_FFFF_FFFF_FFFF
    return f"{value:016x}"


@dataclass(frozen=True, slots=True)
class Guessing:
    """How the server guesses tokens: the drafter's name, and the most guesses in a round."""

    backend: str = "none"
    window: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Guessing:
        """As the settings say."""
        return cls(settings.engine.drafter or "none", settings.scheduler.guesses)


NO_GUESSING = Guessing()
NOTHING_KEPT = Kept()


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The ``request`` object of one request, without what preparation finds out."""

    request_id: int
    x_request_id: str
    protocol: str
    model: str
    stream: bool
    message_count: int
    media_item_count: int
    requested_output_tokens: int
    requested_output_tokens_source: str
    tool_count: int
    tool_choice: str
    has_tool_history: bool
    requested_reasoning_effort: str | None
    preserve_thinking: bool | None
    prompt_cache_key: str | None
    preserve_thinking_semantic_change: bool = False
    constraint_kind: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedFacts:
    """What is known of a request once it is prepared.

    thinking_budget   most tokens of thinking that were asked for; None for a request that does not think
    """

    enable_thinking: bool
    sampling: Sampling
    prepare_s: float
    thinking_budget: int | None = None


def request_object(facts: RequestFacts, prepared: PreparedFacts | None) -> Record:
    """The ``request`` member; without `prepared` the members that are not known yet are left out."""
    record: Record = asdict(facts)
    key = record.pop("prompt_cache_key")
    record["prompt_cache_key_digest"] = digest_of(str(key).encode()) if key is not None else ""
    record |= {"graft": None, "constraint_kind": record.pop("constraint_kind")}
    if prepared is not None:
        record |= {
            "enable_thinking": prepared.enable_thinking,
            "thinking_budget": prepared.thinking_budget,
            "sampling": asdict(prepared.sampling),
        }
    return record


def request_start(facts: RequestFacts, prepared: PreparedFacts) -> Record:
    """Preparation succeeded."""
    media = ("media_items", "media_bytes", "raw_patches", "vision_tokens", "patch_bytes", "cache_hits")
    counts = dict.fromkeys((*media, "cache_misses", "singleflight_waits"), 0)
    times = {"acquisition": 0.0, "media_preprocess": 0.0, "media_preprocess_work": 0.0}
    preparation = {"total": prepared.prepare_s, **times, "tokenize": prepared.prepare_s, **counts}
    return {"request": request_object(facts, prepared), "preparation_seconds": preparation}


def request_rejected(facts: RequestFacts, status: int, error: Mapping[str, object]) -> Record:
    """Preparation failed; `error` has `type`, `code`, `param`, `message`."""
    return {"request": request_object(facts, None), "phase": "prepare", "error": {"status": status, **error}}


def request_error(facts: RequestFacts, prepared: PreparedFacts, message: str) -> Record:
    """The request did not come to its end."""
    return {"request": request_object(facts, prepared), "error": {"message": message}}


def _span(begin: float | None, end: float | None) -> float:
    return 0.0 if begin is None or end is None else end - begin


def request_done(
    facts: RequestFacts,
    prepared: PreparedFacts,
    finished: Finished,
    received_at: float,
    ended_at: float,
    guessing: Guessing = NO_GUESSING,
) -> Record:
    """The request came to its end; all times on one monotonic scale."""
    usage, control = finished.usage, finished.thinking
    injected = control.tokens if control is not None else 0
    result = {
        "finish_reason": finished.reason.value,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "computed_prefill_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "prefix_cache_hit_tokens": usage.cached_tokens,
        "prefix_reuse_path": reuse_path(finished),
        "host_restored": finished.host_restored,
        "id_slot": finished.lane,
        "session_digest": finished.session_digest,
        "thinking_budget": prepared.thinking_budget,
        "effective_thinking_budget": control.budget if control is not None else None,
        "model_thinking_tokens": usage.reasoning_tokens - (control.of_thinking if control is not None else 0),
        "thinking_control_tokens": injected,
        "thinking_control_applied": injected > 0,
        "tool_call_count": finished.tool_calls.structured_call_count if finished.tool_calls is not None else 0,
        "tool_call_parse": asdict(finished.tool_calls) if finished.tool_calls is not None else None,
    }
    times = {
        "prepare": prepared.prepare_s,
        "ttft": _span(received_at, finished.first_token_at),
        "vision": 0.0,
        "queue": max(0.0, _span(received_at, finished.admitted_at) - prepared.prepare_s),
        "restore": 0.0,
        "prefill": _span(finished.admitted_at, finished.first_token_at),
        "decode": _span(finished.first_token_at, finished.last_token_at),
        "total": ended_at - received_at,
    }
    speculative = (finished.speculation or DraftStatistics()).as_dict(guessing.backend, guessing.window)
    return {
        "request": request_object(facts, prepared),
        "result": result,
        "timings_seconds": times,
        "speculative": speculative,
        "constraint": asdict(finished.constraint) if finished.constraint is not None else None,
    }


def reuse_path(finished: Finished) -> str:
    """Where the beginning of the prompt came from (14.2)."""
    return finished.way


def _delta(now: float, before: float) -> float:
    return now - before if now >= before else now  # a counter below its previous value was started anew


@dataclass(frozen=True, slots=True)
class Picture:
    """The server at one moment."""

    scheduler: SchedulerStatistics
    kept: Kept = NOTHING_KEPT


def is_idle(before: Picture, now: Picture) -> bool:
    """Whether nothing happened between two pictures and nothing is going on."""
    scheduler = now.scheduler
    busy = scheduler.preparing or scheduler.waiting or scheduler.running
    return before.scheduler.totals == scheduler.totals and not busy


def throughput(earlier: Picture, later: Picture, interval_s: float) -> Record:
    """What happened between two pictures, `interval_s` > 0 apart."""
    now, old, new = later.scheduler, earlier.scheduler.totals, later.scheduler.totals
    prefill = int(_delta(new.prefill_tokens, old.prefill_tokens))
    decode = int(_delta(new.decode_tokens, old.decode_tokens))
    rounds = int(_delta(new.rounds, old.rounds))
    rows = int(_delta(new.row_rounds, old.row_rounds))
    return {
        "interval_seconds": interval_s,
        "tokens": {"computed_prefill": prefill, "committed_decode": decode},
        "throughput_tokens_per_second": {"prefill": prefill / interval_s, "decode": decode / interval_s},
        "scheduler": {
            "running": now.running,
            "prefilling": now.prefilling,
            "decode_ready": now.decode_ready,
            "waiting": now.waiting,
            "admitted_requests": new.admitted,
            "queue_seconds_total": new.queue_s,
            "delta_admitted_requests": int(_delta(new.admitted, old.admitted)),
            "delta_queue_seconds": _delta(new.queue_s, old.queue_s),
            "rejected_overloaded": new.refused_overloaded,
            "rejected_queue_timeout": new.refused_timeout,
        },
        "decode_batch": {"rounds": rounds, "row_rounds": rows, "average_size": rows / rounds if rounds else None},
        "context_cache": _context_cache(earlier, later),
        "engine_recoveries": int(_delta(new.engine_recoveries, old.engine_recoveries)),
        "energy": None,
    }


def _context_cache(earlier: Picture, later: Picture) -> Record:
    before, now = reuse_counts(earlier.scheduler.totals), reuse_counts(later.scheduler.totals)
    old, new = earlier.scheduler.kept, later.scheduler.kept
    parks, restores = int(_delta(new.parks, old.parks)), int(_delta(new.loads, old.loads))
    seconds = (kept.park_s + kept.load_s for kept in (later.kept, earlier.kept))
    return {
        **{path: int(_delta(count, before[path])) for path, count in now.items()},
        "parks": parks,
        "restores": restores,
        "evictions": int(_delta(new.host_evictions, old.host_evictions)),
        "transfer_bytes": (parks + restores) * later.kept.page_bytes,
        "transfer_seconds": _delta(*seconds),
        "entries": new.parked,
        "used_bytes": new.parked * later.kept.page_bytes,
    }


def throughput_line(record: Record) -> str:
    """The console's version of a ``throughput`` record (serving spec, 17)."""
    rates, scheduler, batch = record["throughput_tokens_per_second"], record["scheduler"], record["decode_batch"]
    assert isinstance(rates, dict)
    assert isinstance(scheduler, dict)
    assert isinstance(batch, dict)
    average = batch["average_size"]
    return (
        f"throughput interval={record['interval_seconds']:.1f}s prefill={rates['prefill']:.1f}tok/s "
        f"decode={rates['decode']:.1f}tok/s running={scheduler['running']} prefilling={scheduler['prefilling']} "
        f"decode_ready={scheduler['decode_ready']} waiting={scheduler['waiting']} "
        f"avg_decode_batch={0.0 if average is None else average:.2f}"
    )
