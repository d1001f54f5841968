"""Everything of a moment: the numbers of the other routes, the sensors, who watches."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from ninfer import sensors
from ninfer.config import SchedulerSettings
from ninfer.sensors import Record, unavailable
from tests.support.http import MODEL_ID, UNIX_TIME, Served, ask, served, settle

pytestmark = pytest.mark.asyncio

TWO = SchedulerSettings(lanes=2, max_pending=3, images=8)


async def get(state: Served, path: str) -> Any:
    response = await state.app.test_client().get(path)
    assert response.status_code == 200
    return await response.get_json()


async def test_it_says_what_the_other_routes_say(tmp_path: Path) -> None:
    async with served(scheduler=TWO, log_path=tmp_path / "log") as state:
        for _ in range(3):
            assert (await state.post(ask("word " * 200))).status_code == 200
        await settle(state)
        found, stats, slots = await get(state, "/telemetry"), await get(state, "/stats"), await get(state, "/slots")
        load, instance = await get(state, "/v1/load"), state.log_records()[0]["server_instance_id"]
    assert (found["timestamp_unix_ms"], found["uptime_seconds"]) == (UNIX_TIME * 1000, load["uptime_seconds"])
    assert (found["server_instance_id"], found["model_id"], found["attached"]) == (instance, MODEL_ID, True)
    assert found["gpu"] == unavailable("the server runs on the processor")
    assert found["scheduler"].items() >= stats["scheduler"].items()
    limits = {"max_concurrency": 2, "max_pending_requests": 3, "in_flight_requests": 0, "admitted_requests": 3}
    assert found["scheduler"].items() >= limits.items()
    assert found["scheduler"]["rejected_overloaded"] == found["scheduler"]["rejected_queue_timeout"] == 0
    for name in ("decode_rounds", "decode_row_rounds"):
        assert found["scheduler"][name] == found["counters"][name] == stats["counters"][name] > 0
    assert found["counters"] == stats["counters"]
    assert found["cache"] == {**stats["kv_cache"], "reuse": stats["cache_reuse"], "host_kv": stats["host_kv"]}
    assert found["cache"]["reuse"]["reused_prompt_tokens"] > 0
    assert found["memory"] == stats["memory"]
    assert [tuple(slot.values()) for slot in found["slots"]] == [
        (
            slot["is_processing"],
            slot["retained"],
            slot["n_prompt_tokens"],
            slot["n_prompt_tokens_cache"],
            slot["session_digest"],
            len(slot["checkpoints"]),
        )
        for slot in slots
    ]
    assert any(slot["retained"] and slot["session_digest"] for slot in found["slots"])


@pytest.mark.parametrize("is_written", [True, False])
async def test_who_watches_and_whether_there_is_a_file(tmp_path: Path, is_written: bool) -> None:
    async with served(log_path=tmp_path / "log" if is_written else None) as state:
        watcher = state.log.feed.watch(lambda: None)
        assert (await get(state, "/telemetry"))["events"] == {"jsonl_enabled": is_written, "subscribers": 1}
        state.log.feed.leave(watcher)
        state.log.close()
        assert (await get(state, "/telemetry"))["events"] == {"jsonl_enabled": False, "subscribers": 0}


async def test_sensors_that_hang_cost_a_reading_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "SECONDS", 0.05)
    answers = threading.Event()

    def hang() -> Record:
        assert answers.wait(20)
        return unavailable("at last")

    async with served(read_gpu=hang) as state:
        for _ in range(3):
            found = await get(state, "/telemetry")
            assert found["gpu"] == unavailable("the sensors do not answer")
        assert (await state.post(ask())).status_code == 200
        answers.set()
        with anyio.fail_after(10):
            while (await get(state, "/telemetry"))["gpu"]["error"] != "at last":
                await anyio.lowlevel.checkpoint()
