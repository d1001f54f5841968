"""What operators and monitors read, over a running system."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ninfer.api import operations as documents
from ninfer.api.observed import Observed
from ninfer.api.operations import Operations
from ninfer.config import GenerationSettings, HttpSettings, SchedulerSettings, Settings
from ninfer.errors import DeviceFault
from ninfer.scheduler.statistics import SchedulerStatistics
from ninfer.version import VERSION
from tests.support.engines import FakeEngine
from tests.support.http import FACTS, MODEL_ID, NO_GPU, UNIX_TIME, Served, ask, model, served, settle
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

TWO = SchedulerSettings(prefix_reuse=False, lanes=2, max_pending=3)


async def get(state: Served, path: str) -> Any:
    response = await state.app.test_client().get(path)
    assert response.status_code == 200
    return await response.get_json()


async def metrics(state: Served) -> dict[str, float]:
    """Value by name, with the labels as they are written."""
    response = await state.app.test_client().get("/metrics")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/plain; version=0.0.4")
    lines = (await response.get_data(as_text=True)).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def endless() -> FakeEngine:
    return FakeEngine(lambda _prompt: TOKENIZER.encode("a b c " * 2000))


async def test_every_series_of_the_contract_is_there_with_its_kind() -> None:
    # Names of serving spec 4.4.
    counters = """
        llamacpp:prompt_tokens llamacpp:prompt_seconds llamacpp:tokens_predicted llamacpp:tokens_predicted_seconds
        ninfer:requests ninfer:prefix_cache_hit_tokens ninfer:draft_tokens ninfer:draft_accepted_tokens
        ninfer:draft_rounds ninfer:draft_fallback_steps ninfer:decode_rounds ninfer:decode_row_rounds
        ninfer:admitted_requests ninfer:queue_seconds ninfer:admission_rejected_overloaded
        ninfer:admission_rejected_queue_timeout ninfer:waiting_cancelled_requests ninfer:cancelled_prefills
        ninfer:cancelled_prefill_computed_tokens ninfer:requests_outcome ninfer:reuse_full_reset
        ninfer:reuse_append_frontier ninfer:reuse_restore_turn_checkpoint ninfer:reuse_restore_user_turn_anchor
        ninfer:reuse_fork_shared_prefix ninfer:reuse_host_restore ninfer:shared_prefix_publishes
        ninfer:reuse_restore_disk ninfer:disk_kv_saves ninfer:disk_kv_save_failures ninfer:disk_kv_hits
        ninfer:disk_kv_misses ninfer:disk_kv_read_failures
        ninfer:shared_prefix_evictions ninfer:host_kv_parks ninfer:host_kv_restores ninfer:host_kv_evictions
        ninfer:host_kv_park_failures ninfer:host_kv_restore_failures ninfer:host_kv_park_bytes
        ninfer:host_kv_park_seconds ninfer:host_kv_restore_bytes ninfer:host_kv_restore_seconds ninfer:slot_saves
        ninfer:slot_restores ninfer:slot_erases ninfer:slot_auto_saves ninfer:slot_auto_save_failures
        ninfer:constraint_requests ninfer:constraint_cache ninfer:constraint_prepare_seconds
        ninfer:constraint_mask_seconds ninfer:constraint_matcher_seconds ninfer:engine_recoveries
    """
    gauges = """
        llamacpp:requests_processing llamacpp:requests_deferred ninfer:requests_running ninfer:requests_waiting
        ninfer:requests_prefilling ninfer:requests_decode_ready ninfer:shared_prefixes ninfer:kv_pages_used
        ninfer:kv_pages_capacity ninfer:turn_checkpoints ninfer:host_kv_budget_bytes ninfer:host_kv_used_bytes
        ninfer:host_kv_entries ninfer:host_kv_largest_free_range_bytes ninfer:engine_ready
        ninfer:server_start_time_seconds ninfer:disk_kv_budget_bytes ninfer:disk_kv_used_bytes ninfer:disk_kv_entries
    """
    histograms = """
        ninfer:decode_gap_seconds ninfer:time_to_first_token_seconds ninfer:request_duration_seconds
        ninfer:request_queue_seconds
    """
    expected = {
        **dict.fromkeys(counters.split(), "counter"),
        **dict.fromkeys(gauges.split(), "gauge"),
        **dict.fromkeys(histograms.split(), "histogram"),
    }
    async with served() as state:
        body = await (await state.app.test_client().get("/metrics")).get_data(as_text=True)
    assert {family.name: family.type for family in text_string_to_metric_families(body)} == expected


async def test_what_a_request_leaves_in_the_metrics() -> None:
    async with served(scheduler=TWO) as state:
        before = await metrics(state)
        assert before["ninfer:engine_ready"] == 1
        assert before["ninfer:server_start_time_seconds"] == UNIX_TIME
        changing = ("ninfer:engine_ready", "ninfer:server_start_time_seconds", "ninfer:kv_pages_capacity")
        assert not any(value for name, value in before.items() if name not in changing)
        usage = (await (await state.post(ask())).get_json())["usage"]
        await settle(state)
        after = await metrics(state)
    expected = {
        "llamacpp:prompt_tokens_total": usage["prompt_tokens"],
        "llamacpp:tokens_predicted_total": usage["completion_tokens"] - 1,
        "ninfer:requests_total": 1,
        'ninfer:requests_outcome_total{outcome="completed"}': 1,
        "ninfer:admitted_requests_total": 1,
        "ninfer:reuse_full_reset_total": 1,
        "ninfer:time_to_first_token_seconds_count": 1,
        "ninfer:request_duration_seconds_count": 1,
        "ninfer:request_queue_seconds_count": 1,
        "ninfer:decode_gap_seconds_count": usage["completion_tokens"] - 1,
        "llamacpp:requests_processing": 0,
        "ninfer:kv_pages_used": 0,
    }
    assert {name: after[name] for name in expected} == expected


def _has_reached(phase: str, statistics: SchedulerStatistics) -> bool:
    counts = {"queue": statistics.waiting, "prefill": statistics.prefilling, "decode": statistics.totals.rounds // 4}
    return counts[phase] > 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
async def test_clients_that_leave_are_counted_by_where_they_were(phase: str, stream: bool) -> None:
    engine = endless()
    lanes = SchedulerSettings(lanes=1, prefill_chunk_tokens=128)
    async with served(engine, scheduler=lanes) as state:
        machine = state.state.system.machine
        async with anyio.create_task_group() as tasks:
            if phase != "decode":
                engine.gate = threading.Event()
            if phase == "queue":
                tasks.start_soon(state.post, ask(max_tokens=1))
                while not machine.statistics().running:
                    await anyio.lowlevel.checkpoint()
            async with state.app.test_client().request("/v1/chat/completions", method="POST") as connection:
                await connection.send(orjson.dumps(ask("word " * 200, stream=stream)))
                await connection.send_complete()
                while not _has_reached(phase, machine.statistics()):
                    await anyio.lowlevel.checkpoint()
                during = await metrics(state)
                slots = await get(state, "/slots")
                await connection.disconnect()
            if engine.gate is not None:
                engine.gate.set()
        await settle(state)
        after = await metrics(state)
    assert during["llamacpp:requests_processing"] == 1
    assert during["llamacpp:requests_deferred"] == (phase == "queue")
    assert slots[0]["is_processing"]
    assert slots[0]["n_prompt_tokens"] > 0
    assert after['ninfer:requests_outcome_total{outcome="cancelled"}'] == 1
    assert after["ninfer:waiting_cancelled_requests_total"] == (phase == "queue")
    assert after["ninfer:cancelled_prefills_total"] == (phase == "prefill")
    assert after["llamacpp:requests_processing"] == after["llamacpp:requests_deferred"] == 0


async def test_refusals_and_faults_are_outcomes_too() -> None:
    async with served(the_model=model(max_context_tokens=300), scheduler=SchedulerSettings(max_pending=1)) as state:
        await state.post(ask("word " * 400))
        held = [await state.state.system.gateway.arrive() for _ in range(2)]
        assert (await state.post(ask())).status_code == 429
        for ticket in held:
            await ticket.release()
        state.state.engine.fail_next = DeviceFault("detail")
        await state.post(ask())
        await state.post({**ask(), "model": "other"})  # refused before it is a request of this model
        await settle(state)
        found = await metrics(state)
    assert found['ninfer:requests_outcome_total{outcome="rejected"}'] == 2
    assert found['ninfer:requests_outcome_total{outcome="failed"}'] == 1
    assert found["ninfer:requests_total"] == 3
    assert found["ninfer:admission_rejected_overloaded_total"] == 1
    assert found["ninfer:engine_recoveries_total"] == 1


async def test_a_request_that_waits_too_long_is_rejected() -> None:
    engine = endless()
    async with served(engine, scheduler=SchedulerSettings(pending_timeout_s=1.5)) as state:
        engine.gate = threading.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(state.post, ask(max_tokens=1))
            while not state.state.system.machine.statistics().running:
                await anyio.lowlevel.checkpoint()
            assert (await state.post(ask())).status_code == 503
            engine.gate.set()
        found = await metrics(state)
    assert found['ninfer:requests_outcome_total{outcome="rejected"}'] == 1
    assert found["ninfer:admission_rejected_queue_timeout_total"] == 1


async def test_empty_slots() -> None:
    async with served(scheduler=TWO) as state:
        empty = {
            "is_processing": False,
            "retained": False,
            "session_digest": "",
            "checkpoints": [],
            "n_ctx": 8192,
            "n_prompt_tokens": 0,
            "n_prompt_tokens_cache": 0,
            "speculative": False,
        }
        assert await get(state, "/slots") == [{"id": 0, **empty}, {"id": 1, **empty}]


async def test_stats() -> None:
    async with served(scheduler=TWO) as state:
        usage = (await (await state.post(ask())).get_json())["usage"]
        await settle(state)
        found = await get(state, "/stats")
    assert (found["schema"], found["schema_version"]) == ("ninfer_serve_stats", 1)
    assert found["timestamp_unix_ms"] == UNIX_TIME * 1000
    assert found["http"] == {"in_flight": 0, "max_in_flight": 5}
    assert found["counters"]["computed_prefill_tokens"] == usage["prompt_tokens"]
    assert found["counters"]["committed_decode_tokens"] == usage["completion_tokens"] - 1
    assert found["cache_reuse"]["full_reset_selections"] == 1
    assert found["kv_cache"]["text"] == {
        "page_groups": 4096,
        "entitled_pages": 0,
        "mapped_pages": 0,
        "free_pages": 4096,
    }
    memory = found["memory"]
    assert (memory["kv_capacity"], memory["kv_capacity_max_page_groups"]) == (4096 * 64, 8192)
    assert memory["sequence"] == {"capacity_bytes": 75, "used_bytes": 75, "peak_used_bytes": 75}
    assert memory["planned_slack_bytes"] == 795
    assert found["load"] == {
        "target": "qwen3_8_27b",
        "model_id": MODEL_ID,
        "weights_id": "plain",
        "load_seconds": 0.25,
        "tensor_count": 12,
    }


async def test_load() -> None:
    async with served(scheduler=TWO) as state:
        assert (await get(state, "/v1/load"))["last_request"] is None
        usage = (await (await state.post(ask())).get_json())["usage"]
        await settle(state)
        found = await get(state, "/v1/load")
    assert (found["object"], found["model"], found["uptime_seconds"]) == ("ninfer.load", MODEL_ID, 0.0)
    assert found["capacity"]["max_admitted_requests"] == 5
    assert found["requests"] == dict.fromkeys(found["requests"], 0)
    assert found["occupancy"] == dict.fromkeys(found["occupancy"], 0)
    assert found["counters"]["committed_decode_tokens"] == usage["completion_tokens"] - 1
    last = found["last_request"]
    assert last["completion_tokens"] == usage["completion_tokens"]
    assert last["inter_token_seconds"] == last["generation_wall_seconds"] / (usage["completion_tokens"] - 1)


async def test_props() -> None:
    async with served(scheduler=TWO) as state:
        assert await get(state, "/props") == {
            "default_generation_settings": {
                "n_ctx": 8192,
                "params": {
                    "n_predict": 8192,
                    "max_tokens": 8192,
                    "temperature": 1.0,
                    "top_k": 20,
                    "top_p": 0.95,
                    "min_p": 0.0,
                    "presence_penalty": 0.0,
                    "frequency_penalty": 0.0,
                },
            },
            "total_slots": 2,
            "model_alias": MODEL_ID,
            "model_path": "tiny.ninfer",
            "modalities": {"vision": False, "audio": False},
            "build_info": f"ninfer {VERSION}",
        }


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (GenerationSettings(default_max_tokens=None), {"n_predict": -1, "max_tokens": -1}),
        (GenerationSettings(default_max_tokens=None, max_output_tokens=7), {"n_predict": 7}),
        (GenerationSettings(thinking=False), {"temperature": 0.7, "presence_penalty": 1.5}),
        (GenerationSettings(greedy=True, top_p=0.5, seed=9), {"temperature": 0.0, "top_p": 0.5, "seed": 9}),
    ],
    ids=["auto", "capped", "no thinking", "overrides"],
)
async def test_props_follow_the_flags(generation: GenerationSettings, expected: dict[str, object]) -> None:
    settings = Settings(artifact=Path("x"), generation=generation)
    found = documents.props(Operations(settings, model(), Observed(), lambda: FACTS, NO_GPU))
    inner = found["default_generation_settings"]
    assert isinstance(inner, dict)
    assert {name: inner["params"][name] for name in expected} == expected


@pytest.mark.parametrize("path", ["/metrics", "/slots", "/stats", "/props", "/telemetry", "/v1/load"])
async def test_operators_need_the_key_and_wait_for_the_model(path: str) -> None:
    async with served(http=HttpSettings(api_keys=("k",))) as state:
        assert (await state.app.test_client().get(path)).status_code == 401
        assert (await state.app.test_client().get(path, headers={"x-api-key": "k"})).status_code == 200
        assert (await state.app.test_client().post(path, headers={"x-api-key": "k"})).status_code == 405
