"""The ``server_start`` record: every listed member, sums that add up, no key."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from ninfer.options import parse
from ninfer.requestlog.start import StartFacts, server_start

FACTS = StartFacts(
    public_id="m",
    artifact_path="m.ninfer",
    artifact_bytes=1000,
    target="m",
    weights_id="bf16",
    tensor_count=3,
    resource_count=4,
    load_s=0.5,
    pages=16,
    max_pages=32,
    memory_groups={"weights": 100, "kv": 10, "state": 20, "replay": 30, "workspace": 40, "graphs": 0},
    required_bytes=200,
    available_bytes=500,
    headroom_bytes=50,
    thinks_by_default=True,
    presets={"thinking": {"temperature": 1.0}, "non_thinking": {"temperature": 0.7}},
    environment={"device": "cpu"},
)


def record(*arguments: str) -> dict[str, Any]:
    return cast("dict[str, Any]", server_start(parse(arguments), FACTS))


def test_the_listed_members_are_there() -> None:
    found = record()
    assert list(found) == [
        *("version", "server", "artifact", "engine", "sampling_defaults", "memory", "environment", "argv"),
    ]
    assert found["server"]["default_output_tokens"] == 8192
    assert found["server"]["default_thinking"] is True
    assert found["engine"]["kv_capacity"] == 16 * 64
    assert found["engine"]["kv_capacity_mode"] == "explicit"
    assert found["sampling_defaults"]["omitted_seed"] == "random"
    assert found["sampling_defaults"]["thinking"] == {"temperature": 1.0}


def test_inexact_products_are_told() -> None:
    assert record()["engine"]["deterministic"] is True
    assert record("--short-chunk-products", "in-register")["engine"]["deterministic"] is False


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", {"prefix_reuse": True, "shared_prefixes": 4, "turn_checkpoints": 0, "host_kv_cache_bytes": 0}),
        ("", {"prefix_checkpoint_policy": "rolling-tool", "cuda_graph": False, "auto_save_evicted": False}),
        ("--no-prefix-reuse", {"prefix_reuse": False, "shared_prefixes": 0}),
        ("--turn-checkpoints 3 --max-shared-prefixes 2", {"turn_checkpoints": 3, "shared_prefixes": 2}),
        ("--host-kv-cache-mib 5", {"host_kv_cache_bytes": 5 << 20}),
        ("--prefix-checkpoint-policy stable-turn", {"prefix_checkpoint_policy": "stable-turn"}),
        ("--device 1", {"device": "cuda:1", "cuda_graph": True}),
        ("--device 1 --no-cuda-graph", {"cuda_graph": False}),
        ("--device cpu", {"cuda_graph": False}),
    ],
)
def test_what_is_kept_and_how_rounds_run_is_told_as_it_is(options: str, told: dict[str, object]) -> None:
    engine = record(*options.split())["engine"]
    assert {name: engine[name] for name in told} == told


def test_memory_adds_up() -> None:
    memory = record()["memory"]
    assert memory["weights"]["capacity_bytes"] == 100
    assert memory["sequence"]["capacity_bytes"] == 60
    assert memory["runtime_reservation_bytes"] == 100
    assert memory["available_after_weights_bytes"] == 400
    assert memory["planned_slack_bytes"] == memory["available_after_weights_bytes"] - 100 == 300


def test_options_show_and_the_key_does_not() -> None:
    found = record(
        *("--default-thinking-budget", "17"),
        *("--api-key", "s3cret", "--no-thinking", "--default-max-tokens", "auto", "--kv-capacity", "auto"),
        *("--temperature", "0.5", "--request-log-jsonl", "log"),
    )
    assert found["server"]["api_key_configured"] is True
    assert found["server"]["default_thinking"] is False
    assert found["server"]["default_thinking_budget"] == 17
    assert found["server"]["default_output_tokens"] == "auto"
    assert found["server"]["request_log_jsonl"] == "log"
    assert found["engine"]["kv_capacity_mode"] == "auto"
    assert found["sampling_defaults"]["server_overrides"]["temperature"] == 0.5
    assert b"s3cret" not in orjson.dumps(found)
