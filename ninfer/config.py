"""Every setting of the server as one frozen tree. Units are in the names; nobody fills a field in later.

Values are checked where they enter (``ninfer.options`` for flags); what is learnt at run time lives in the object
that learnt it, so `kv_capacity_tokens` is None for *auto* here and a number only in the memory plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the memory plan and the engine are built from (serving spec, 18.2 and 18.3).

    device                     torch device string, or `auto`: the first GPU if there is one, else the processor
    max_context_tokens         longest sequence, prompt and output together
    kv_capacity_tokens         size of the shared page pool; None is `auto`
    lanes                      sequences decoded together, 1..8
    prefill_chunk_tokens       most tokens of one prefill unit
    kv_dtype                   codec of the attention cache; `fp32` exists for reference runs only
    compute_dtype              dtype of activations, and on the processor of decoded weights: `fp32` or `bf16`
    device_memory_limit_bytes  the planner treats the device as having this much in all; None is the real size
    kv_headroom_bytes          left free by `auto`
    cuda_graph                 whether decode rounds are captured and replayed; the same bits either way
    short_chunk_products       how a GPU multiplies short prefill chunks: `auto`, `library`, or `in-register`, which is
                               inexact: a token's bits may depend on the length of its chunk
    host_images                states of sequences at a block start that fit into page-locked host memory
    host_pages                 pages of the attention cache that fit there
    host_kv_cache_bytes        what those pages may take; how many that is depends on the model
    drafter                    what guesses tokens to verify in decode rounds: `mtp`, or None
    draft_tokens               most guesses per lane in a round, the drafter's or copied ones; 0 is no speculation
    draft_head                 whether the drafter looks only at the rows of the artifact's short head
    """

    device: str = "cpu"
    max_context_tokens: int = 8192
    kv_capacity_tokens: int | None = 8192
    lanes: int = 1
    prefill_chunk_tokens: int = 1024
    kv_dtype: str = "bf16"
    compute_dtype: str = "fp32"
    device_memory_limit_bytes: int | None = None
    kv_headroom_bytes: int = 1024 * MIB
    cuda_graph: bool = True
    short_chunk_products: str = "auto"
    host_images: int = 0
    host_pages: int = 0
    host_kv_cache_bytes: int = 0
    drafter: str | None = None
    draft_tokens: int = 0
    draft_head: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Rules of admission and of sharing the device (serving spec, 13).

    max_pending            requests beyond one per lane that may be held, in preparation or in the queue
    pending_timeout_s      from receipt to admission
    max_inter_token_s      bound on the gap between tokens of a stream; 0 is no bound
    prefill_decode_ratio   if set, prefill gets at most this multiple of the device time of decode while both have
                           work, instead of alternating one to one
    steps_ahead            steps launched behind the one that the device is running, 0 or 1; with 0 the next is decided
                           when the last has landed, for an engine that cannot overlap
    drain_s                time that running requests get to finish after a stop signal
    exit_on_failure        whether the process ends when the engine is beyond repair
    prefix_reuse           whether what earlier requests have read is gone on from
    images                 state images that there is room for; `host_pages` the same for pages in host memory
    turn_checkpoints       size of a session's ring of earlier turn checkpoints
    auto_save              whether a session that has a slot file goes back there before its lane or pages are taken
    max_shared_prefixes    images of beginnings that are kept for other conversations
    disk_bytes             what files of the disk cache may take in all; 0 is no such cache
    disk_least_tokens      fewest tokens that are worth a file, or waiting for one
    disk_name              what names of this process's files begin with
    draft_tokens           most guesses of the engine's own per row of a round
    copied_tokens          most guesses that are copied from the request's own text instead
    adaptive_drafts        whether each request's window follows what its guesses have been worth
    """

    lanes: int = 1
    max_context_tokens: int = 8192
    prefill_chunk_tokens: int = 1024
    max_pending: int = 16
    pending_timeout_s: float = 30.0
    max_inter_token_s: float = 0.1
    prefill_decode_ratio: float | None = None
    steps_ahead: int = 1
    drain_s: float = 5.0
    exit_on_failure: bool = True
    prefix_reuse: bool = True
    images: int = 0
    host_pages: int = 0
    turn_checkpoints: int = 0
    auto_save: bool = False
    max_shared_prefixes: int = 4
    disk_bytes: int = 0
    disk_least_tokens: int = 1024
    disk_name: str = ""
    draft_tokens: int = 0
    copied_tokens: int = 0
    adaptive_drafts: bool = False

    @property
    def saves_sessions(self) -> bool:
        """Whether sessions go to files before they are displaced."""
        return self.auto_save or self.disk_bytes > 0

    @property
    def guesses(self) -> int:
        """Most guesses per row of a round. With any, `steps_ahead` is 0: a round begins where the last has got to."""
        return max(self.draft_tokens, self.copied_tokens)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Network and protocol (serving spec, 18.1).

    stats_port     of a second listener that has ``/stats`` alone; 0 is none
    api_keys       any of them opens the server; none is needed if there is none
    api_key_file   more of them, read at the start
    web_dir        folder whose files are served where no route is, instead of the page of ours
    """

    host: str = "127.0.0.1"
    port: int = 8080
    stats_port: int = 0
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    cors: bool = False
    web_dir: Path | None = None
    model_id: str | None = None
    max_request_bytes: int = 384 * MIB
    response_store_max_records: int = 1024
    response_store_max_bytes: int = 256 * MIB
    keep_alive_comment_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Defaults for what a request leaves open (serving spec, 18.5). None means that no process flag was given."""

    default_max_tokens: int | None = 8192  # None is `auto`: the remaining context
    checkpoint_policy: str = "rolling-tool"
    max_output_tokens: int | None = None
    thinking: bool | None = None
    thinking_budget: int | None = None  # most tokens of thinking; None is no limit
    preserve_thinking: bool | None = None
    reasoning_effort: str | None = None
    greedy: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    prefill_progress: bool = False  # whether every stream says how far its prompt is read, from its first second
    tolerant_tool_calls: bool = False


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Where records go (serving spec, 18.6)."""

    level: str = "info"
    event_log: Path | None = None
    log_content: bool = False
    request_log: Path | None = None
    request_log_max_bytes: int = 0
    request_log_keep: int = 4
    stats_interval_s: float = 5.0
    otlp_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole server: one artifact, one device, one port.

    default_artifact   no model was named, and the embedded one is meant
    script             what the scripted engine says; None is the real engine
    copy_min_match     tokens that have to have stood before, for guesses copied from the text that they began
    """

    artifact: Path
    default_artifact: bool = False
    chat_template: Path | None = None
    slot_folder: Path | None = None
    disk_folder: Path | None = None
    script: Path | None = None
    copy_min_match: int = 12
    engine: EngineSettings = field(default_factory=EngineSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    log: LogSettings = field(default_factory=LogSettings)
    argv: tuple[str, ...] = ()
