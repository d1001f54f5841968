"""The command line of ``ninfer-serve`` as one frozen :class:`Settings` (serving spec, 18).

Pure: nothing is opened, probed or printed here. Options of the contract that this build does not have yet are known by
name and refused as such, so that a typing error and a missing part are never confused.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer.config import (
    GIB,
    MIB,
    EngineSettings,
    GenerationSettings,
    HttpSettings,
    LogSettings,
    SchedulerSettings,
    Settings,
)
from ninfer.errors import NinferError
from ninfer.step import MOST_DRAFTS, PAGE_TOKENS, pages_for

MODEL_MAX_CONTEXT = 262_144  # serving spec, 18.2
LANES_MAX = 8
U64_MAX = (1 << 64) - 1
# Where the contract names no upper limit. It leaves room to multiply by a unit, and fits the 64 bits of every record.
LARGEST_INTEGER = (1 << 31) - 1
LARGEST_SIZE = 1 << 60
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "critical", "off")
EFFORT_WORDS = ("minimal", "low", "medium", "high", "xhigh", "max")
ENGINES = ("model", "scripted")
KV_DTYPES = ("bf16", "int8", "fp32")
SHORT_CHUNK_PRODUCTS = ("auto", "in-register", "library")
DRAFTERS = ("mtp",)
DRAFTERS_TO_COME = ("dflash", "dflash2")
# Longest window of `--draft-tokens auto`: later guesses of this drafter are seldom right.
AUTO_DRAFTS = 5
KV_DTYPES_TO_COME = ("fp8", "rk8v4", "rk4v4", "nvfp4", "k8v4", "rk4v4-e8", "rk2v4-e8")

# Options of the contract (18.1 to 18.5, 18.9) whose parts this build lacks.
TO_COME = frozenset(
    """
    --cuda-graph-allowance-mib --devices --stage-layers --kv-affinity-burst --kv-affinity-grace-ms --yarn-factor
    --gdn-state-fp16 --embedding-q4 --embedding-q6 --lm-head-q4 --lm-head-q6 --mtp-experts-q4 --mlp-a8-decode
    --no-prefill-a8 --prefill-cublas --no-prefill-cublas-projections
    --lookup-ngram --vision --vision-max-tokens --vision-limit --vision-max-merged --vision-residency
    --media-cache-mib --media-live-mib --media-preprocess-threads --context-cost-presets
    --auto-host-cache
    --host-cache-reserve-mib --host-cache-max-mib --host-cache-percent --device-state-slots
    --auto-prefix-grid --context-store --graft --default-graft
    --repetition-guard --repetition-guard-window
    --repetition-guard-ngram --repetition-guard-cycles --repetition-guard-min-tokens
    """.split()  # noqa: SIM905 - a list of names reads better in columns
)


CHECKPOINT_POLICIES = ("rolling-tool", "stable-turn")

# Other names of the same option; the last one given wins.
ALIASES = dict.fromkeys(("--host-context-mib", "--host-kv-mib", "--host-prefix-cache-mib"), "--host-kv-cache-mib")

# A lane has a turn checkpoint and up to three anchors besides its ring (serving spec, 14.4).
IMAGES_PER_LANE = 4

# Options that add to what was given before, instead of replacing it.
REPEATED = frozenset({"--api-key"})


class OptionError(NinferError):
    """The command line is wrong; the text says where."""


class HelpRequested(NinferError):
    """``--help`` or ``-h`` was given."""


class VersionRequested(NinferError):
    """``--version`` was given."""


@dataclass(frozen=True, slots=True)
class _Option:
    """One option: the values that `read` makes of its argument, or True for a flag (`read` is None)."""

    metavar: str
    help: str
    read: Callable[[str], Any] | None = None


def _integer(low: int, high: int = LARGEST_INTEGER, multiple_of: int = 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,25}", text):
            raise OptionError("must be an integer")
        value = int(text)
        if not low <= value <= high or value % multiple_of:
            limits = f"at least {low}" if value < low and high == LARGEST_INTEGER else f"in {low}..{high}"
            raise OptionError(f"must be {limits}" + (f" and a multiple of {multiple_of}" if multiple_of > 1 else ""))
        return value

    return read


def _number(low: float, high: float | None = None, *, above: bool = False) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise OptionError("must be a number") from None
        too_low = value <= low if above else value < low
        if not math.isfinite(value) or too_low or (high is not None and value > high):
            limits = f"above {low:g}" if above else f"at least {low:g}" if high is None else f"in [{low:g},{high:g}]"
            raise OptionError(f"must be {limits}")
        return value

    return read


def _or_auto(read_integer: Callable[[str], int]) -> Callable[[str], int | None]:
    return lambda text: None if text == "auto" else read_integer(text)


def _text(text: str) -> str:
    if not text:
        raise OptionError("must not be empty")
    return text


def _name(text: str) -> str:
    if not _text(text).isprintable():
        raise OptionError("must have no line breaks and other control characters")
    return text


def _path(text: str) -> Path:
    return Path(_text(text))


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or not text.partition("://")[2].strip("/"):
        raise OptionError("must begin with http:// or https:// and name a host")
    if "@" in text:
        raise OptionError("must hold no name or password; OTEL_EXPORTER_OTLP_HEADERS is for those")
    return text


def _word(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise OptionError(f"must be one of {', '.join(words)}")
        return text

    return read


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,20})(MiB|GiB)?", text)
    size = 0 if found is None else int(found[1]) * {None: 1, "MiB": MIB, "GiB": GIB}[found[2]]
    if not 0 < size <= LARGEST_SIZE:
        raise OptionError("must be a number of bytes, or a number with the suffix MiB or GiB")
    return size


def _device(text: str) -> str:
    return text if text in ("cpu", "auto") else f"cuda:{_integer(0, 255)(text)}"


def _kv_dtype(text: str) -> str:
    if text in KV_DTYPES_TO_COME:
        raise OptionError(f"{text} is not built into this version; it has {', '.join(KV_DTYPES)}")
    return _word(*KV_DTYPES)(text)


def _drafter(text: str) -> str:
    if text in DRAFTERS_TO_COME:
        raise OptionError(f"{text} is not built into this version; it has {', '.join(DRAFTERS)}")
    return _word(*DRAFTERS)(text)


def _top_k(text: str) -> int:
    value = _integer(-1)(text)
    return value if 1 <= value <= 20 else 20


OPTIONS: dict[str, _Option] = {
    "--host": _Option("H", "address to listen on (127.0.0.1)", _text),
    "--port": _Option("N", "port to listen on (8080)", _integer(1, 65535)),
    "--stats-port": _Option("N", "second port, for /stats alone, 0 = none (0)", _integer(0, 65535)),
    "--api-key": _Option("KEY", "key that clients have to send; may be given several times", _text),
    "--api-key-file": _Option("FILE", "file with more keys, one a line", _path),
    "--tls-cert": _Option("FILE", "PEM certificate; with --tls-key", _path),
    "--tls-key": _Option("FILE", "PEM private key; with --tls-cert", _path),
    "--cors": _Option("", "let web pages of any origin call the server"),
    "--web-dir": _Option("DIR", "serve the files of this folder, with its index.html at /", _path),
    "--model-id": _Option("ID", "public model id (the artifact's name)", _name),
    "--max-request-mib": _Option("N", "largest request body (384)", _integer(1)),
    "--response-store-max-records": _Option("N", "stored responses (1024)", _integer(1)),
    "--response-store-max-mib": _Option("N", "memory of stored responses (256)", _integer(1)),
    "--max-context": _Option("N", "longest sequence, prompt and output (8192)", _integer(1, MODEL_MAX_CONTEXT)),
    "--kv-capacity": _Option("N|auto", "tokens of the shared page pool (= max-context)", _or_auto(_integer(1))),
    "--max-concurrency": _Option("N", "sequences decoded together, 1..8 (1)", _integer(1, LANES_MAX)),
    "--max-pending-requests": _Option("N", "requests held beyond those (16)", _integer(1)),
    "--pending-timeout-ms": _Option("N", "from receipt to admission (30000)", _integer(1)),
    "--prefill-chunk": _Option("N", "most tokens of one prefill unit (1024)", _integer(128, multiple_of=128)),
    "--max-inter-token-ms": _Option("N", "bound on the gap between tokens, 0 = none (100)", _integer(0)),
    "--prefill-decode-ratio": _Option("R", "prefill's share of device time beside decode", _number(0, above=True)),
    "--device-memory-limit": _Option("SIZE", "plan as if the device had only this much in all", _size),
    "--kv-headroom-mib": _Option("N", "left free by --kv-capacity auto (1024)", _integer(0)),
    "--deterministic": _Option("", "exact route for every operation, as by default; refuses inexact ones"),
    "--no-cuda-graph": _Option("", "launch every kernel of a decode round by itself, for diagnosis; same output"),
    "--short-chunk-products": _Option(
        "W", "short prefill chunks on a GPU: auto, library, in-register (inexact) (auto)", _word(*SHORT_CHUNK_PRODUCTS)
    ),
    "--device": _Option("N|cpu|auto", "GPU number, the processor, or GPU 0 if there is one (auto)", _device),
    "--no-exit-on-engine-failure": _Option("", "stay up, unavailable, when the engine is beyond repair"),
    "--kv-dtype": _Option("T", "attention cache: bf16; int8 on a GPU; fp32 on the processor (bf16)", _kv_dtype),
    "--chat-template": _Option("FILE", "Jinja template instead of the artifact's", _path),
    "--engine": _Option("E", "model, or scripted: the answers of --script (model)", _word(*ENGINES)),
    "--script": _Option("FILE", "what the scripted engine says, JSON lines", _path),
    "--no-prefix-reuse": _Option("", "read every prompt from its beginning"),
    "--prefix-checkpoint-policy": _Option(
        "P",
        f"where a turn's state is kept: {', '.join(CHECKPOINT_POLICIES)} (rolling-tool)",
        _word(*CHECKPOINT_POLICIES),
    ),
    "--turn-checkpoints": _Option("N", "earlier turns of a session whose states are kept, 0..64 (0)", _integer(0, 64)),
    "--max-shared-prefixes": _Option(
        "N", "states kept of beginnings that conversations share, 0..64 (4)", _integer(0, 64)
    ),
    "--host-state-slots": _Option(
        "N", "states kept in host memory in all, 0 = as many as needed (0)", _integer(0, 4096)
    ),
    "--host-kv-cache-mib": _Option("N", "host memory for pages that the device has no room for (0)", _integer(0)),
    "--disk-kv-cache-mib": _Option(
        "N", "disk space for sessions that lanes have no room for; with --disk-kv-cache-dir (0)", _integer(0)
    ),
    "--disk-kv-cache-dir": _Option("DIR", "folder of their files, this server's alone", _path),
    "--spec": _Option("D", "guess tokens and verify them, with mtp; the same output", _drafter),
    "--draft-tokens": _Option(
        "N|auto", "guesses in a round, 1..15, or as many as pay off; with --spec", _or_auto(_integer(1, MOST_DRAFTS))
    ),
    "--lm-head-draft": _Option("", "guess with the artifact's short head; with --spec"),
    "--ngram-draft-tokens": _Option(
        "N", "guess that text which repeats goes on as before, up to so many, 0..15 (0)", _integer(0, MOST_DRAFTS)
    ),
    "--ngram-min-match": _Option(
        "N", "tokens that have to repeat for such a guess, 4..64 (12); with --ngram-draft-tokens", _integer(4, 64)
    ),
    "--slot-save-path": _Option("DIR", "folder of session files; turns slot actions on", _path),
    "--auto-save-evicted": _Option("", "write a session back to its slot file before it is displaced"),
    "--default-max-tokens": _Option("N|auto", "output limit if a request names none (8192)", _or_auto(_integer(1))),
    "--max-output-tokens": _Option("N", "upper bound of every output limit", _integer(1)),
    "--default-thinking-budget": _Option("N", "most tokens of thinking if a request names none (none)", _integer(1)),
    "--no-thinking": _Option("", "answer without thinking unless a request asks for it"),
    "--preserve-thinking": _Option("", "keep all earlier reasoning in the prompt"),
    "--greedy": _Option("", "temperature 0 for every request"),
    "--reasoning-effort": _Option("E", f"default effort: {', '.join(EFFORT_WORDS)}", _word(*EFFORT_WORDS)),
    "--temperature": _Option("F", "default temperature, [0,2]", _number(0, 2)),
    "--top-p": _Option("F", "default nucleus, [0,1]", _number(0, 1)),
    "--top-k": _Option("N", "default candidates, at most 20", _top_k),
    "--min-p": _Option("F", "default min-p, [0,1]", _number(0, 1)),
    "--presence-penalty": _Option("F", "default presence penalty, [-2,2]", _number(-2, 2)),
    "--frequency-penalty": _Option("F", "default frequency penalty, [-2,2]", _number(-2, 2)),
    "--seed": _Option("N", "seed of requests that give none (random)", _integer(0, U64_MAX)),
    "--tolerant-tool-calls": _Option("", "repair tool calls that are slightly damaged, and pass on unknown tools"),
    "--no-repetition-guard": _Option("", "accepted; there is no guard"),
    "--prefill-progress": _Option("", "show in every stream, from its start, how far the prompt is read"),
    "--request-log-jsonl": _Option("FILE", "append one JSON record per request event", _path),
    "--request-log-max-mib": _Option("N", "rotate the request log at this size, 0 = never (0)", _integer(0)),
    "--request-log-keep": _Option("N", "rotated request logs to keep (4)", _integer(0)),
    "--log-stats-interval-ms": _Option("N", "period of throughput records, 0 = off (5000)", _integer(0)),
    "--log-level": _Option("L", f"console: {'|'.join(LOG_LEVELS)} (info)", _word(*LOG_LEVELS)),
    "--event-log": _Option("FILE", "the scheduler's own record, for ninfer-replay", _path),
    "--log-content": _Option("", "token ids and text in the event log"),
    "--otlp-endpoint": _Option("URL", "collector of OpenTelemetry traces, OTLP/HTTP (none)", _url),
}


def usage() -> str:
    """The help text; ends with a newline."""
    lines = [
        "usage: ninfer-serve [MODEL.ninfer] [options]",
        "",
        "Without a model the small embedded one of the package is served.",
        "",
    ]
    for name, option in OPTIONS.items():
        lines.append(f"  {f'{name} {option.metavar}'.rstrip():<32} {option.help}")
    lines += [f"  {'-h, --help':<32} this text", f"  {'--version':<32} the version"]
    return "\n".join(lines) + "\n"


def parse(argv: Sequence[str]) -> Settings:
    """The settings that a command line (without the program's name) states.

    raises OptionError for a wrong one, HelpRequested, VersionRequested
    """
    values: dict[str, Any] = {}
    artifact: str | None = None
    arguments = iter(argv)
    if not all(_is_unicode(argument) for argument in argv):
        raise OptionError("an argument is not valid UTF-8")
    for argument in arguments:
        if argument in ("--help", "-h"):
            raise HelpRequested
        if argument == "--version":
            raise VersionRequested
        if not argument.startswith("-"):
            if artifact is not None:
                raise OptionError(f"unexpected argument '{argument}': the model is already '{artifact}'")
            artifact = argument
            continue
        name, has_value, attached = argument.partition("=")
        name = ALIASES.get(name, name)
        option = _known(name)
        if option.read is None:
            if has_value:
                raise OptionError(f"{name} takes no value")
            values[name] = True
            continue
        given = attached if has_value else next(arguments, None)
        if given is None:
            raise OptionError(f"{name} needs a value")
        try:
            value = option.read(given)
            values[name] = (*values.get(name, ()), value) if name in REPEATED else value
        except OptionError as error:
            # The key is a secret: nothing of it may reach a terminal.
            shown = "" if name == "--api-key" else f" '{given}'"
            raise OptionError(f"{name}{shown} {error}") from None
    return _settings(artifact, values, argv)


def _is_unicode(text: str) -> bool:
    """Whether it can be written to a log or sent to a client; bytes that are not UTF-8 arrive as surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _known(name: str) -> _Option:
    if name in OPTIONS:
        return OPTIONS[name]
    if name == "--host-kv-cache":
        raise OptionError("--host-kv-cache is not an option any more; its replacement is --host-kv-cache-mib")
    if name in TO_COME:
        raise OptionError(f"{name} is not built into this version of NInfer yet")
    raise OptionError(f"unknown option '{name}'")


def _settings(artifact: str | None, values: Mapping[str, Any], argv: Sequence[str]) -> Settings:
    if ("--tls-cert" in values) != ("--tls-key" in values):
        raise OptionError("--tls-cert and --tls-key need each other")
    if "--log-content" in values and "--event-log" not in values:
        raise OptionError("--log-content needs --event-log")
    if ("--script" in values) != (values.get("--engine") == "scripted"):
        raise OptionError("--script and --engine scripted need each other")
    if "--deterministic" in values and values.get("--short-chunk-products") == "in-register":
        raise OptionError("--short-chunk-products in-register is not exact, which --deterministic asks for")
    for name in ("--draft-tokens", "--lm-head-draft"):
        if name in values and "--spec" not in values:
            raise OptionError(f"{name} needs --spec")
    if "--spec" in values and "--draft-tokens" not in values:
        raise OptionError("--spec needs --draft-tokens")
    if "--spec" in values and "--script" in values:
        raise OptionError("--spec needs a model, which --engine scripted does without")
    own, copied = _drafts(values), values.get("--ngram-draft-tokens", 0)
    if "--ngram-min-match" in values and not copied:
        raise OptionError("--ngram-min-match needs --ngram-draft-tokens")
    reuse = "--no-prefix-reuse" not in values
    for name in ("--turn-checkpoints", "--max-shared-prefixes", "--host-kv-cache-mib", "--disk-kv-cache-mib"):
        if not reuse and values.get(name):
            raise OptionError(f"{name} needs prefix reuse, which --no-prefix-reuse turns off")
    if "--auto-save-evicted" in values and "--slot-save-path" not in values:
        raise OptionError("--auto-save-evicted needs --slot-save-path")
    if bool(values.get("--disk-kv-cache-mib")) != ("--disk-kv-cache-dir" in values):
        raise OptionError("--disk-kv-cache-mib and --disk-kv-cache-dir need each other")
    if values.get("--stats-port") == values.get("--port", 8080):
        raise OptionError("--stats-port has to be another port than --port")
    max_context = values.get("--max-context", 8192)
    lanes = values.get("--max-concurrency", 1)
    images = _images(values, lanes)
    chunk = values.get("--prefill-chunk", 1024)
    return Settings(
        artifact=Path(artifact or ""),
        default_artifact=artifact is None,
        chat_template=values.get("--chat-template"),
        script=values.get("--script"),
        copy_min_match=values.get("--ngram-min-match", 12),
        slot_folder=values.get("--slot-save-path"),
        disk_folder=values.get("--disk-kv-cache-dir"),
        engine=EngineSettings(
            device=values.get("--device", "auto"),
            max_context_tokens=max_context,
            kv_capacity_tokens=_kv_capacity(values, max_context, lanes),
            lanes=lanes,
            prefill_chunk_tokens=chunk,
            kv_dtype=values.get("--kv-dtype", "bf16"),
            device_memory_limit_bytes=values.get("--device-memory-limit"),
            kv_headroom_bytes=values.get("--kv-headroom-mib", 1024) * MIB,
            cuda_graph="--no-cuda-graph" not in values,
            host_images=images,
            host_kv_cache_bytes=values.get("--host-kv-cache-mib", 0) * MIB,
            short_chunk_products=values.get("--short-chunk-products", "auto"),
            drafter=values.get("--spec"),
            draft_tokens=max(own, copied),
            draft_head="--lm-head-draft" in values,
        ),
        scheduler=SchedulerSettings(
            lanes=lanes,
            max_context_tokens=max_context,
            prefill_chunk_tokens=chunk,
            max_pending=values.get("--max-pending-requests", 16),
            pending_timeout_s=values.get("--pending-timeout-ms", 30_000) / 1000,
            max_inter_token_s=values.get("--max-inter-token-ms", 100) / 1000,
            prefill_decode_ratio=values.get("--prefill-decode-ratio"),
            exit_on_failure="--no-exit-on-engine-failure" not in values,
            prefix_reuse=reuse,
            images=images,
            turn_checkpoints=values.get("--turn-checkpoints", 0),
            auto_save="--auto-save-evicted" in values,
            max_shared_prefixes=values.get("--max-shared-prefixes", 4) if reuse else 0,
            disk_bytes=values.get("--disk-kv-cache-mib", 0) * MIB,
            # Where a round begins is known when the last one has landed.
            steps_ahead=0 if own or copied else 1,
            draft_tokens=own,
            copied_tokens=copied,
            adaptive_drafts=bool(own) and values["--draft-tokens"] is None,
        ),
        http=HttpSettings(
            host=values.get("--host", "127.0.0.1"),
            port=values.get("--port", 8080),
            stats_port=values.get("--stats-port", 0),
            api_keys=values.get("--api-key", ()),
            api_key_file=values.get("--api-key-file"),
            tls_cert=values.get("--tls-cert"),
            tls_key=values.get("--tls-key"),
            cors="--cors" in values,
            web_dir=values.get("--web-dir"),
            model_id=values.get("--model-id"),
            max_request_bytes=values.get("--max-request-mib", 384) * MIB,
            response_store_max_records=values.get("--response-store-max-records", 1024),
            response_store_max_bytes=values.get("--response-store-max-mib", 256) * MIB,
        ),
        generation=_generation(values),
        log=LogSettings(
            level=values.get("--log-level", "info"),
            event_log=values.get("--event-log"),
            log_content="--log-content" in values,
            request_log=values.get("--request-log-jsonl"),
            request_log_max_bytes=values.get("--request-log-max-mib", 0) * MIB,
            request_log_keep=values.get("--request-log-keep", 4),
            stats_interval_s=values.get("--log-stats-interval-ms", 5000) / 1000,
            otlp_endpoint=values.get("--otlp-endpoint"),
        ),
        argv=redacted(argv),
    )


def _images(values: Mapping[str, Any], lanes: int) -> int:
    """States that there is room for: what every lane may have, and the shared ones; at least one, to save a slot by."""
    if "--no-prefix-reuse" in values:
        return 0
    per_lane = IMAGES_PER_LANE + int(values.get("--turn-checkpoints", 0))
    wanted = lanes * per_lane + int(values.get("--max-shared-prefixes", 4))
    limit = int(values.get("--host-state-slots", 0))
    return min(wanted, limit) if limit else wanted


def _drafts(values: Mapping[str, Any]) -> int:
    """Most guesses of the drafter in a round."""
    if "--spec" not in values:
        return 0
    given = values["--draft-tokens"]
    return AUTO_DRAFTS if given is None else int(given)


def _kv_capacity(values: Mapping[str, Any], max_context: int, lanes: int) -> int | None:
    # Pages of the scripted engine cost nothing: unless somebody wants them scarce, there are enough for all lanes.
    default = None if values.get("--engine") == "scripted" else max_context
    capacity: int | None = values.get("--kv-capacity", default)
    if capacity is None:
        return None
    if capacity < max_context:
        raise OptionError(f"--kv-capacity {capacity} is less than --max-context {max_context}")
    pages, most = pages_for(capacity), lanes * pages_for(max_context)
    if "--kv-capacity" in values and pages > most:
        raise OptionError(
            f"--kv-capacity {capacity} is more than {lanes} lane(s) of --max-context {max_context} can use "
            f"({most * PAGE_TOKENS} tokens)"
        )
    if pages < lanes:
        raise OptionError(f"--kv-capacity {capacity} is less than one page of {PAGE_TOKENS} tokens for each lane")
    return pages * PAGE_TOKENS


def _generation(values: Mapping[str, Any]) -> GenerationSettings:
    return GenerationSettings(
        default_max_tokens=values.get("--default-max-tokens", 8192),
        checkpoint_policy=values.get("--prefix-checkpoint-policy", "rolling-tool"),
        max_output_tokens=values.get("--max-output-tokens"),
        thinking=False if "--no-thinking" in values else None,
        thinking_budget=values.get("--default-thinking-budget"),
        preserve_thinking=True if "--preserve-thinking" in values else None,
        reasoning_effort=values.get("--reasoning-effort"),
        greedy="--greedy" in values,
        temperature=values.get("--temperature"),
        top_p=values.get("--top-p"),
        top_k=values.get("--top-k"),
        min_p=values.get("--min-p"),
        presence_penalty=values.get("--presence-penalty"),
        frequency_penalty=values.get("--frequency-penalty"),
        seed=values.get("--seed"),
        prefill_progress="--prefill-progress" in values,
        tolerant_tool_calls="--tolerant-tool-calls" in values,
    )


def redacted(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line as it may be logged: the key is `<redacted>` (serving spec, 16)."""
    shown: list[str] = []
    for argument in argv:
        if shown and shown[-1] == "--api-key":
            shown.append("<redacted>")
        elif argument.startswith("--api-key="):
            shown.append("--api-key=<redacted>")
        else:
            shown.append(argument)
    return tuple(shown)


def cautions(settings: Settings) -> list[str]:
    """What the operator should know about settings that are allowed."""
    http = settings.http
    if not http.api_keys and http.api_key_file is None and not _is_loopback(settings.http.host):
        return [f"--host {settings.http.host} is reachable from other machines and no --api-key is set"]
    return []


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
