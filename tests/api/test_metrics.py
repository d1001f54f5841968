"""What is kept of earlier requests, as monitors read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ninfer.actors.messages import Kept
from ninfer.api.metrics import metrics
from ninfer.api.observed import Observed
from ninfer.api.operations import Operations, load, stats
from ninfer.config import SchedulerSettings, Settings
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.statistics import KeptView
from tests.support.http import FACTS, NO_GPU, UNIX_TIME, model

COUNTS = KeptView(
    host_pages=40,
    parked=15,
    parks=21,
    loads=6,
    host_evictions=3,
    unparked=2,
    states=9,
    stored_states=7,
    shared=4,
    shared_stored=5,
    shared_dropped=1,
    turn_checkpoints=8,
    saves=11,
    restores=12,
    erases=13,
    auto_saves=14,
    auto_save_failures=15,
    disk_bytes=1600,
    disk_used=1700,
    disk_files=18,
    disk_saves=19,
    disk_save_failures=20,
    disk_hits=22,
    disk_misses=23,
    disk_read_failures=24,
)
KEPT = Kept(page_bytes=1000, image_bytes=50_000, park_s=0.5, load_s=0.25)
SETTINGS = SchedulerSettings(max_shared_prefixes=6)
STATISTICS = replace(Scheduler(SETTINGS).statistics(), kept=COUNTS)
OPERATIONS = Operations(Settings(Path("tiny.ninfer"), scheduler=SETTINGS), model(), Observed(), lambda: FACTS, NO_GPU)


def test_the_series_of_what_is_kept() -> None:
    lines = metrics(STATISTICS, KEPT, Observed(), UNIX_TIME).decode().splitlines()
    found = dict(
        line.split(" ")
        for line in lines
        if line.startswith(("ninfer:host", "ninfer:shared", "ninfer:slot", "ninfer:disk"))
    )
    assert found == {
        "ninfer:shared_prefixes": "4",
        "ninfer:shared_prefix_publishes_total": "5",
        "ninfer:shared_prefix_evictions_total": "1",
        "ninfer:host_kv_budget_bytes": "40000",
        "ninfer:host_kv_used_bytes": "15000",
        "ninfer:host_kv_entries": "15",
        "ninfer:host_kv_largest_free_range_bytes": "25000",
        "ninfer:host_kv_parks_total": "21",
        "ninfer:host_kv_restores_total": "6",
        "ninfer:host_kv_evictions_total": "3",
        "ninfer:host_kv_park_failures_total": "2",
        "ninfer:host_kv_restore_failures_total": "0",
        "ninfer:host_kv_park_bytes_total": "21000",
        "ninfer:host_kv_park_seconds_total": "0.500000",
        "ninfer:host_kv_restore_bytes_total": "6000",
        "ninfer:host_kv_restore_seconds_total": "0.250000",
        "ninfer:slot_saves_total": "11",
        "ninfer:slot_restores_total": "12",
        "ninfer:slot_erases_total": "13",
        "ninfer:slot_auto_saves_total": "14",
        "ninfer:slot_auto_save_failures_total": "15",
        "ninfer:disk_kv_budget_bytes": "1600",
        "ninfer:disk_kv_used_bytes": "1700",
        "ninfer:disk_kv_entries": "18",
        "ninfer:disk_kv_saves_total": "19",
        "ninfer:disk_kv_save_failures_total": "20",
        "ninfer:disk_kv_hits_total": "22",
        "ninfer:disk_kv_misses_total": "23",
        "ninfer:disk_kv_read_failures_total": "24",
    }
    assert "ninfer:turn_checkpoints 8" in lines


def test_what_is_kept_in_the_snapshot_and_in_the_load() -> None:
    snapshot = stats(OPERATIONS, STATISTICS, KEPT, UNIX_TIME)
    assert snapshot["host_kv"] == {
        "parks": 21,
        "restores": 6,
        "evictions": 3,
        "park_failures": 2,
        "restore_failures": 0,
        "d2h_bytes": 21_000,
        "h2d_bytes": 6_000,
        "d2h_seconds": 0.5,
        "h2d_seconds": 0.25,
    }
    cache = snapshot["kv_cache"]
    assert isinstance(cache, dict)
    host = {"enabled": True, "budget_bytes": 40_000, "used_bytes": 15_000, "largest_free_range": 25_000, "entries": 15}
    assert cache["host"] == host
    assert cache["shared"] == {"capacity": 6, "entries": 4, "state_bytes": 200_000}
    told = load(OPERATIONS, STATISTICS, KEPT, UNIX_TIME, UNIX_TIME)
    capacity, occupancy = told["capacity"], told["occupancy"]
    assert isinstance(capacity, dict)
    assert isinstance(occupancy, dict)
    assert capacity["host_context_bytes"] == 40 * 1000 + 9 * 50_000
    assert occupancy["host_context_bytes"] == 15 * 1000 + 7 * 50_000
    assert (occupancy["host_state_slots"], occupancy["host_kv_bytes"]) == (7, 15_000)


def test_pages_that_are_promised_are_not_mapped_before_they_are_taken() -> None:
    busy = replace(Scheduler(SETTINGS).statistics(), pages=40, pages_free=25, pages_available=10)
    cache = stats(OPERATIONS, busy, Kept(), UNIX_TIME)["kv_cache"]
    assert isinstance(cache, dict)
    assert cache["text"] == {"page_groups": 40, "entitled_pages": 30, "mapped_pages": 15, "free_pages": 25}
    assert "ninfer:kv_pages_used 30" in metrics(busy, Kept(), Observed(), UNIX_TIME).decode().splitlines()


def test_without_a_cache_in_host_memory_it_is_off() -> None:
    off = stats(OPERATIONS, Scheduler(SETTINGS).statistics(), Kept(), UNIX_TIME)["kv_cache"]
    assert isinstance(off, dict)
    sizes = dict.fromkeys(("budget_bytes", "used_bytes", "largest_free_range", "entries"), 0)
    assert off["host"] == {"enabled": False, **sizes}
