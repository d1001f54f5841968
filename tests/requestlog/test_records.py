"""Records of the request log: the members the contract lists, and arithmetic that survives restarts of counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from ninfer.actors.messages import Finished, Kept, Usage
from ninfer.config import SchedulerSettings
from ninfer.constraints.matcher import ThinkingControl
from ninfer.requestlog import records
from ninfer.requestlog.records import Picture, PreparedFacts, RequestFacts
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.reuse import WAYS
from ninfer.scheduler.statistics import Totals
from ninfer.types import FinishReason, Sampling

FACTS = RequestFacts(
    request_id=7,
    x_request_id="req_a_1",
    protocol="openai_chat_completions",
    model="m",
    stream=True,
    message_count=2,
    media_item_count=0,
    requested_output_tokens=5,
    requested_output_tokens_source="client",
    tool_count=0,
    tool_choice="auto",
    has_tool_history=False,
    requested_reasoning_effort=None,
    preserve_thinking=None,
    prompt_cache_key=None,
)
PREPARED = PreparedFacts(True, Sampling(1.0, 20, 0.95, 0.0, 0.0, 0.0, 3), 0.5)
COMMON = {
    *("request_id", "x_request_id", "protocol", "model", "stream", "message_count", "media_item_count"),
    *("requested_output_tokens", "requested_output_tokens_source", "tool_count", "tool_choice", "has_tool_history"),
    *("requested_reasoning_effort", "preserve_thinking", "preserve_thinking_semantic_change"),
    *("prompt_cache_key_digest", "graft", "constraint_kind"),
}
IDLE = replace(Scheduler(SchedulerSettings()).statistics(), lifecycle="SERVING", lanes=())


@pytest.mark.parametrize(
    ("ids", "digest"),
    [
        ([], "14650fb0739d0383"),
        ([0], "315446a086a23133"),
        ([1], "91599a98306c74a2"),
        ([1, 2, 3], "6fdedb25bbb27e53"),
        ([248045, 872, 198], "92c11010dd6b1992"),
        (list(range(64)), "d8c9ecce2df5b983"),
    ],
)
def test_the_digest_has_the_published_values(ids: list[int], digest: str) -> None:
    assert records.digest_of(b"".join(n.to_bytes(4, "little", signed=True) for n in ids)) == digest


def test_the_request_object_has_the_listed_members() -> None:
    assert set(records.request_object(FACTS, None)) == COMMON
    whole = records.request_object(FACTS, PREPARED)
    assert set(whole) == COMMON | {"enable_thinking", "thinking_budget", "sampling"}
    assert whole["prompt_cache_key_digest"] == ""
    keyed = records.request_object(replace(FACTS, prompt_cache_key="k"), None)
    assert keyed["prompt_cache_key_digest"] == records.digest_of(b"k")


def test_a_finished_request() -> None:
    finished = Finished(FinishReason.STOP_STRING, Usage(10, 4, 6, 2), 3, 101.0, 102.0, 104.0, way="append_frontier")
    record = cast("dict[str, Any]", records.request_done(FACTS, PREPARED, finished, 100.0, 105.0))
    assert record["result"]["finish_reason"] == "stop_string"
    assert record["result"]["computed_prefill_tokens"] == 6
    assert record["result"]["prefix_reuse_path"] == "append_frontier"
    assert record["result"]["id_slot"] == 3
    assert record["timings_seconds"] == {
        "prepare": 0.5,
        "ttft": 2.0,
        "vision": 0.0,
        "queue": 0.5,
        "restore": 0.0,
        "prefill": 1.0,
        "decode": 2.0,
        "total": 5.0,
    }


@pytest.mark.parametrize(
    ("asked", "control", "effective", "of_the_model", "injected"),
    [
        (None, None, None, 9, 0),
        (40, None, None, 9, 0),  # a hint that nothing enforces
        (40, ThinkingControl(), None, 9, 0),  # no room for it
        (40, ThinkingControl(38), 38, 9, 0),  # the model closed its thinking itself
        (4, ThinkingControl(4, 7, 5), 4, 4, 7),
    ],
)
def test_a_budget_of_thinking(
    asked: int | None, control: ThinkingControl | None, effective: int | None, of_the_model: int, injected: int
) -> None:
    prepared = replace(PREPARED, thinking_budget=asked)
    finished = Finished(FinishReason.STOP_TOKEN, Usage(10, 0, 20, 9), 0, 1.0, 2.0, 3.0, thinking=control)
    record = cast("dict[str, Any]", records.request_done(FACTS, prepared, finished, 0.0, 5.0))
    assert record["request"]["thinking_budget"] == asked
    result = record["result"]
    assert (result["thinking_budget"], result["effective_thinking_budget"]) == (asked, effective)
    assert (result["model_thinking_tokens"], result["thinking_control_tokens"]) == (of_the_model, injected)
    assert result["thinking_control_applied"] is (injected > 0)
    started = cast("dict[str, Any]", records.request_start(FACTS, prepared))
    assert started["request"]["thinking_budget"] == asked


def test_a_request_without_a_token_has_no_times() -> None:
    finished = Finished(FinishReason.OUTPUT_LIMIT, Usage(10, 0, 0, 0), 0, 101.0, None, None)
    record = cast("dict[str, Any]", records.request_done(FACTS, PREPARED, finished, 100.0, 105.0))
    assert record["timings_seconds"]["ttft"] == record["timings_seconds"]["decode"] == 0.0
    assert record["result"]["prefix_reuse_path"] == "full_reset"


def test_throughput_is_a_difference() -> None:
    before = Totals(prefill_tokens=100, decode_tokens=50, rounds=10, row_rounds=20, admitted=3, queue_s=1.0)
    after = Totals(prefill_tokens=300, decode_tokens=150, rounds=30, row_rounds=70, admitted=5, queue_s=1.5)
    before.count_reuse("full_reset", 0, host_restored=False)
    for way in ("full_reset", "append_frontier", "append_frontier"):
        after.count_reuse(way, 64, host_restored=way == "append_frontier")
    after.count_reuse("full_reset", 0, host_restored=False)
    counts = replace(IDLE.kept, parks=5, loads=2, host_evictions=1, parked=4)
    old = Picture(replace(IDLE, totals=before.frozen()), Kept(100, 7, 0.25, 0.0))
    new = Picture(replace(IDLE, totals=after.frozen(), kept=counts), Kept(100, 7, 0.5, 0.25))
    record = cast("dict[str, Any]", records.throughput(old, new, 2.0))
    assert record["tokens"] == {"computed_prefill": 200, "committed_decode": 100}
    assert record["throughput_tokens_per_second"] == {"prefill": 100.0, "decode": 50.0}
    assert record["decode_batch"] == {"rounds": 20, "row_rounds": 50, "average_size": 2.5}
    assert record["scheduler"]["delta_admitted_requests"] == 2
    assert record["scheduler"]["delta_queue_seconds"] == 0.5
    cache = record["context_cache"]
    assert {name: value for name, value in cache.items() if value} == {
        "full_reset": 1,
        "append_frontier": 2,
        "host_restore": 2,
        "parks": 5,
        "restores": 2,
        "evictions": 1,
        "transfer_bytes": 700,
        "transfer_seconds": 0.5,
        "entries": 4,
        "used_bytes": 400,
    }
    assert {*WAYS, "host_restore"} <= cache.keys()
    restarted = cast("dict[str, Any]", records.throughput(new, old, 1.0))
    assert restarted["tokens"] == {"computed_prefill": 100, "committed_decode": 50}
    line = records.throughput_line(record)
    assert line == (
        "throughput interval=2.0s prefill=100.0tok/s decode=50.0tok/s running=0 prefilling=0 decode_ready=0 "
        "waiting=0 avg_decode_batch=2.50"
    )


def test_idleness() -> None:
    idle = Picture(IDLE)
    assert records.is_idle(idle, idle)
    assert not records.is_idle(idle, Picture(replace(IDLE, running=1)))
    assert not records.is_idle(idle, Picture(replace(IDLE, totals=Totals(rounds=1).frozen())))
    nothing = cast("dict[str, Any]", records.throughput(idle, idle, 1.0))
    assert nothing["decode_batch"]["average_size"] is None
