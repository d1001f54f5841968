"""Health, models and what operators read (serving spec, 4)."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from ninfer.api.schema.common import Json


class Health(Struct):
    """Whether requests are served."""

    status: Literal["ok", "unavailable"]
    version: str


class ModelEntry(Struct):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_window: int
    max_model_len: int
    context_length: int
    modalities: Json
    architecture: Json
    supported_endpoints: list[str]


class ModelList(Struct):
    """Its list, of one entry."""

    object: Literal["list"]
    data: list[ModelEntry]


class Checkpoint(Struct):
    """A depth at which the state of a session is kept."""

    frontier: int
    session_digest: str


class Slot(Struct):
    """One lane."""

    id: int
    is_processing: bool
    retained: bool
    session_digest: str
    checkpoints: list[Checkpoint]
    n_ctx: int
    n_prompt_tokens: int
    n_prompt_tokens_cache: int
    speculative: bool


class RequestTimeline(Struct):
    """What happened to a request so far; times are seconds since its arrival."""

    object: Literal["ninfer.request"]
    id: int
    x_request_id: str
    arrived_unix_ms: int
    state: Literal["preparing", "waiting", "prefilling", "decoding", "ended"]
    position: int | None
    age_s: float
    deadline_s: float
    prepared_s: float | None
    admitted_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float | None
    released_s: float | None
    prompt_tokens: int
    max_tokens: int
    priority: int
    lane: int | None
    prefix_reuse_path: str | None
    cached_tokens: int
    host_restored: bool
    read_tokens: int
    chunks: int
    drawn_tokens: int
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    finish_reason: str | None
    error_code: str | None
    retained_tokens: int


class Stats(Struct):
    """A snapshot for monitors."""

    schema: Literal["ninfer_serve_stats"]
    schema_version: int
    timestamp_unix_ms: int
    http: Json
    scheduler: Json
    counters: Json
    cache_reuse: Json
    kv_cache: Json
    host_kv: Json
    memory: Json
    load: Json


class Gpu(Struct):
    """What the sensors of the GPU show; null is what it has no sensor for."""

    available: bool
    name: str | None
    uuid: str | None
    driver_version: str | None
    temperature_c: int | None
    fan_percent: int | None
    power_watts: float | None
    power_limit_watts: float | None
    utilization_gpu_percent: int | None
    utilization_memory_percent: int | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    throttle_reasons: list[str]
    error: str | UnsetType = UNSET


class TelemetrySlot(Struct):
    """One lane; `checkpoints` counts them."""

    processing: bool
    retained: bool
    prompt_tokens: int
    cached_tokens: int
    session_digest: str
    checkpoints: int


class Events(Struct):
    """Who is told of requests."""

    jsonl_enabled: bool
    subscribers: int


class Telemetry(Struct):
    """Everything of this moment."""

    timestamp_unix_ms: int
    server_instance_id: str
    uptime_seconds: float
    attached: bool
    model_id: str
    gpu: Gpu
    scheduler: dict[str, int | float]
    counters: Json
    cache: Json
    slots: list[TelemetrySlot]
    memory: Json
    events: Events


class Props(Struct):
    """Properties as llama.cpp's server has them."""

    default_generation_settings: Json
    total_slots: int
    model_alias: str
    model_path: str
    modalities: Json
    build_info: str


class Load(Struct):
    """For a balancer in front of several servers."""

    object: Literal["ninfer.load"]
    model: str
    uptime_seconds: float
    capacity: dict[str, int]
    requests: dict[str, int]
    occupancy: dict[str, int]
    counters: dict[str, int]
    host: dict[str, float]
    last_request: Json | None
