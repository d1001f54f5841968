"""The command line: every value checked, every absent part named as such, no key ever shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ninfer.config import GIB, MIB, EngineSettings, SchedulerSettings, Settings
from ninfer.options import (
    OPTIONS,
    TO_COME,
    HelpRequested,
    OptionError,
    VersionRequested,
    cautions,
    parse,
    redacted,
    usage,
)
from ninfer.speculation.copying import DEFAULT_MIN_MATCH


def test_nothing_given_is_the_documented_defaults() -> None:
    settings = parse([])
    assert settings.default_artifact
    # One lane: its turn checkpoint and three anchors, and four beginnings that conversations share.
    engine, scheduler = EngineSettings(device="auto", host_images=8), SchedulerSettings(images=8)
    assert settings == Settings(artifact=Path(), default_artifact=True, engine=engine, scheduler=scheduler)


def test_values_reach_the_tree() -> None:
    settings = parse(
        """m.ninfer --host ::1 --port=9000 --api-key k --tls-cert c --tls-key k2 --cors --model-id a/b
        --response-store-max-records 5 --response-store-max-mib 6
        --max-request-mib 2 --max-context 1000 --kv-capacity 3000 --max-concurrency 4 --max-pending-requests 5
        --pending-timeout-ms 1500 --prefill-chunk 256 --max-inter-token-ms 0 --prefill-decode-ratio 0.5
        --device-memory-limit 3GiB --kv-headroom-mib 7 --deterministic --no-cuda-graph --no-exit-on-engine-failure
        --short-chunk-products library
        --kv-dtype fp32 --chat-template t --default-max-tokens auto --max-output-tokens 9 --no-thinking
        --preserve-thinking --greedy --reasoning-effort max --temperature 0.5 --top-p 0.25 --top-k 40 --min-p 0.125
        --presence-penalty=-1 --frequency-penalty 2 --seed 18446744073709551615 --prefill-progress --request-log-jsonl r
        --request-log-max-mib 3 --request-log-keep 0 --log-stats-interval-ms 0 --log-level off --event-log e
        --log-content --engine scripted --script s --stats-port 9001 --prefix-checkpoint-policy stable-turn
        --turn-checkpoints 2 --max-shared-prefixes 3 --host-kv-mib 10 --slot-save-path d
        --default-thinking-budget 77""".split()  # noqa: SIM905
    )
    assert settings.slot_folder == Path("d")
    assert (settings.engine.host_images, settings.engine.host_kv_cache_bytes) == (4 * (4 + 2) + 3, 10 * MIB)
    reuse = settings.scheduler
    assert (reuse.prefix_reuse, reuse.images, reuse.turn_checkpoints, reuse.max_shared_prefixes) == (True, 27, 2, 3)
    assert settings.generation.checkpoint_policy == "stable-turn"
    assert (settings.artifact, settings.default_artifact, settings.script) == (Path("m.ninfer"), False, Path("s"))
    http = settings.http
    assert (http.host, http.port, http.api_keys, http.cors, http.model_id) == ("::1", 9000, ("k",), True, "a/b")
    assert http.stats_port == 9001
    assert (http.tls_cert, http.tls_key, http.max_request_bytes) == (Path("c"), Path("k2"), 2 * MIB)
    assert (http.response_store_max_records, http.response_store_max_bytes) == (5, 6 * MIB)
    engine = settings.engine
    assert (engine.max_context_tokens, engine.kv_capacity_tokens, engine.lanes) == (1000, 3008, 4)
    assert (engine.prefill_chunk_tokens, engine.kv_dtype, engine.device) == (256, "fp32", "auto")
    assert (engine.device_memory_limit_bytes, engine.kv_headroom_bytes) == (3 * GIB, 7 * MIB)
    assert (engine.cuda_graph, engine.short_chunk_products) == (False, "library")
    scheduler = settings.scheduler
    assert (scheduler.lanes, scheduler.max_context_tokens, scheduler.prefill_chunk_tokens) == (4, 1000, 256)
    assert (scheduler.max_pending, scheduler.pending_timeout_s, scheduler.max_inter_token_s) == (5, 1.5, 0.0)
    assert (scheduler.prefill_decode_ratio, scheduler.exit_on_failure) == (0.5, False)
    generation = settings.generation
    assert (generation.default_max_tokens, generation.max_output_tokens) == (None, 9)
    assert generation.prefill_progress
    assert generation.thinking_budget == 77
    assert (generation.thinking, generation.preserve_thinking, generation.greedy) == (False, True, True)
    assert (generation.reasoning_effort, generation.temperature, generation.top_p) == ("max", 0.5, 0.25)
    assert (generation.top_k, generation.min_p, generation.presence_penalty) == (20, 0.125, -1.0)
    assert (generation.frequency_penalty, generation.seed) == (2.0, 2**64 - 1)
    log = settings.log
    assert (log.request_log, log.request_log_max_bytes, log.request_log_keep) == (Path("r"), 3 * MIB, 0)
    assert (log.stats_interval_s, log.level, log.event_log, log.log_content) == (0.0, "off", Path("e"), True)
    assert settings.chat_template == Path("t")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--nonsense", "unknown option '--nonsense'"),
        ("--ho", "unknown option '--ho'"),
        ("-p 1", "unknown option '-p'"),
        ("a b", "unexpected argument 'b'"),
        ("--port", "--port needs a value"),
        ("--port 0", "--port '0' must be in 1..65535"),
        ("--port 65536", "must be in 1..65535"),
        ("--port 8_0", "must be an integer"),
        ("--port 0x50", "must be an integer"),
        ("--port=", "must be an integer"),
        ("--cors=yes", "--cors takes no value"),
        ("--host=", "must not be empty"),
        ("--model-id=a\x00b", "must have no line breaks"),
        ("--temperature nan", "must be in [0,2]"),
        ("--temperature hot", "must be a number"),
        ("--top-p 1.5", "must be in [0,1]"),
        ("--prefill-chunk 100", "multiple of 128"),
        ("--prefill-decode-ratio 0", "must be above 0"),
        ("--max-concurrency 9", "must be in 1..8"),
        ("--max-context 262145", "must be in 1..262144"),
        ("--kv-capacity 100", "less than --max-context 8192"),
        ("--kv-capacity 9000", "more than 1 lane(s)"),
        ("--max-context 64 --max-concurrency 2", "less than one page"),
        ("--kv-dtype fp8", "fp8 is not built into this version"),
        ("--kv-dtype int7", "must be one of bf16, int8, fp32"),
        ("--device-memory-limit 3GB", "must be a number of bytes"),
        ("--device gpu", "must be an integer"),
        ("--seed -1", "must be in 0..18446744073709551615"),
        ("--reasoning-effort none", "must be one of minimal"),
        ("--default-thinking-budget 0", "must be at least 1"),
        ("--stats-port 8080", "another port"),
        ("--engine scripted", "--script and --engine scripted need each other"),
        ("--engine model --script s", "--script and --engine scripted need each other"),
        ("--short-chunk-products fast", "must be one of auto, in-register, library"),
        ("--short-chunk-products in-register --deterministic", "is not exact, which --deterministic asks for"),
        ("--tls-cert a", "need each other"),
        ("--tls-key a", "need each other"),
        ("--log-content", "needs --event-log"),
        ("--host-kv-cache 1", "--host-kv-cache-mib"),
        ("--disk-kv-cache-mib 1", "--disk-kv-cache-mib and --disk-kv-cache-dir need each other"),
        ("--disk-kv-cache-dir d", "--disk-kv-cache-mib and --disk-kv-cache-dir need each other"),
        ("--disk-kv-cache-mib 0 --disk-kv-cache-dir d", "need each other"),
        ("--disk-kv-cache-mib 1 --disk-kv-cache-dir d --no-prefix-reuse", "--disk-kv-cache-mib needs prefix reuse"),
        ("--spec dflash --draft-tokens 3", "dflash is not built into this version; it has mtp"),
        ("--spec eagle --draft-tokens 3", "must be one of mtp"),
        ("--spec mtp", "--spec needs --draft-tokens"),
        ("--spec mtp --draft-tokens 0", "must be in 1..15"),
        ("--spec mtp --draft-tokens 16", "must be in 1..15"),
        ("--spec mtp --draft-tokens 3 --engine scripted --script s", "--spec needs a model"),
        ("--draft-tokens 3", "--draft-tokens needs --spec"),
        ("--lm-head-draft", "--lm-head-draft needs --spec"),
        ("--ngram-draft-tokens 16", "must be in 0..15"),
        ("--ngram-draft-tokens 3 --ngram-min-match 3", "must be in 4..64"),
        ("--ngram-min-match 4", "--ngram-min-match needs --ngram-draft-tokens"),
        ("--ngram-min-match 4 --ngram-draft-tokens 0", "--ngram-min-match needs --ngram-draft-tokens"),
        ("--log-level loud", "must be one of trace"),
    ],
)
def test_wrong_lines_are_refused_with_the_reason(line: str, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(line.split())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("line", "engine", "scheduler"),
    [
        ("", (None, 0, False), (1, 0, 0, False)),
        ("--ngram-draft-tokens 0", (None, 0, False), (1, 0, 0, False)),
        ("--ngram-draft-tokens 7", (None, 7, False), (0, 0, 7, False)),
        ("--spec mtp --draft-tokens 3", ("mtp", 3, False), (0, 3, 0, False)),
        ("--spec mtp --draft-tokens 15 --lm-head-draft", ("mtp", 15, True), (0, 15, 0, False)),
        ("--spec mtp --draft-tokens auto", ("mtp", 5, False), (0, 5, 0, True)),
        ("--spec mtp --draft-tokens 3 --ngram-draft-tokens 9", ("mtp", 9, False), (0, 3, 9, False)),
    ],
)
def test_guesses(line: str, engine: tuple[object, ...], scheduler: tuple[object, ...]) -> None:
    settings = parse(line.split())
    told = settings.engine
    assert (told.drafter, told.draft_tokens, told.draft_head) == engine
    rules = settings.scheduler
    assert (rules.steps_ahead, rules.draft_tokens, rules.copied_tokens, rules.adaptive_drafts) == scheduler


def test_how_much_has_to_repeat_for_a_guess() -> None:
    assert parse([]).copy_min_match == DEFAULT_MIN_MATCH
    assert parse(["--ngram-draft-tokens", "3", "--ngram-min-match", "64"]).copy_min_match == 64


@pytest.mark.parametrize("name", sorted(TO_COME))
def test_parts_to_come_are_named_as_such(name: str) -> None:
    with pytest.raises(OptionError, match="not built into this version of NInfer yet"):
        parse([name, "1"])
    assert name not in OPTIONS


def test_help_and_version() -> None:
    with pytest.raises(HelpRequested):
        parse(["-h"])
    with pytest.raises(HelpRequested):
        parse(["--help"])
    with pytest.raises(VersionRequested):
        parse(["--version"])
    assert all(f"  {name}" in usage() for name in OPTIONS)


def test_a_device_is_a_number_or_the_processor() -> None:
    assert parse(["--device", "cpu"]).engine.device == "cpu"
    assert parse(["--device", "3"]).engine.device == "cuda:3"


def test_automatic_capacity_and_page_rounding() -> None:
    assert parse(["--kv-capacity", "auto"]).engine.kv_capacity_tokens is None
    assert parse(["--max-context", "100"]).engine.kv_capacity_tokens == 128
    assert parse(["--max-context=100", "--max-concurrency=2"]).engine.kv_capacity_tokens == 128


def test_the_scripted_engine_has_pages_for_all_lanes_unless_told_otherwise() -> None:
    scripted = ["--engine", "scripted", "--script", "s", "--max-concurrency", "4"]
    assert parse(scripted).engine.kv_capacity_tokens is None
    assert parse([*scripted, "--kv-capacity", "8192"]).engine.kv_capacity_tokens == 8192


def test_the_key_is_never_shown() -> None:
    assert redacted(["--api-key", "s3cret", "--api-key=s3cret"]) == (
        "--api-key",
        "<redacted>",
        "--api-key=<redacted>",
    )
    assert "s3cret" not in " ".join(parse(["--api-key=s3cret"]).argv)
    assert "s3cret" not in repr(parse(["--api-key", "s3cret"]))


def test_keys_add_up_and_other_options_replace() -> None:
    settings = parse(["--api-key", "a", "--model-id", "x", "--api-key=b", "--model-id", "y", "--api-key-file", "f"])
    assert (settings.http.api_keys, settings.http.model_id) == (("a", "b"), "y")
    assert settings.http.api_key_file == Path("f")
    with pytest.raises(OptionError, match="--api-key must not be empty"):
        parse(["--api-key", "a", "--api-key", ""])


def test_an_open_door_is_pointed_out() -> None:
    assert cautions(parse([])) == []
    for host in ("localhost", "127.3.2.1", "::1"):
        assert cautions(parse(["--host", host])) == []
    assert "no --api-key" in cautions(parse(["--host", "0.0.0.0"]))[0]
    assert "no --api-key" in cautions(parse(["--host", "server.example"]))[0]
    assert cautions(parse(["--host", "0.0.0.0", "--api-key", "k"])) == []
    assert cautions(parse(["--host", "0.0.0.0", "--api-key-file", "f"])) == []


@pytest.mark.parametrize("name", sorted(name for name, option in OPTIONS.items() if option.read is not None))
def test_no_number_is_too_large_for_a_record(name: str) -> None:
    largest = "9" * 25
    try:
        settings = parse([name, largest])
    except OptionError:
        return
    # What takes any text takes this one; no number may come out of it.
    assert not any(isinstance(value, int) and value > 1 << 62 for value in numbers(settings))


def numbers(value: object) -> list[object]:
    if dataclasses.is_dataclass(value):
        return [number for field in dataclasses.fields(value) for number in numbers(getattr(value, field.name))]
    return [value]


def test_arguments_that_are_not_text() -> None:
    for argv in (["m\udcff.ninfer"], ["--api-key", "secret\udcff"], ["--model-id=\udc80"]):
        with pytest.raises(OptionError, match="not valid UTF-8") as refused:
            parse(argv)
        assert "secret" not in str(refused.value)
    assert parse(["größe.ninfer"]).artifact == Path("größe.ninfer")
