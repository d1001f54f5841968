"""What the scheduler tells about itself: counters that only grow, and gauges of this moment."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ninfer.scheduler.fetches import Fetches
from ninfer.scheduler.holdings import Holdings
from ninfer.scheduler.reuse import WAYS
from ninfer.scheduler.slots import Slots


@dataclass(frozen=True, slots=True)
class TotalsView:
    """Counters since the start. Times are seconds; `queue_s` runs from arrival to admission.

    reuse   how many requests began in which way (serving spec, 14.2)
    host_restores   of them with pages from host memory
    drafted_tokens, accepted_tokens   guesses that were verified, and were right (speculation spec, 1.7);
                    copied_tokens, copied_accepted_tokens those of them that were copied from the request's text
    draft_rounds, fallback_steps      row rounds with guesses, and without any although there is speculation
    """

    admitted: int
    completed: int
    refused_overloaded: int
    refused_timeout: int
    queue_s: float
    prefill_tokens: int
    prefill_s: float
    decode_tokens: int
    decode_s: float
    rounds: int
    row_rounds: int
    engine_recoveries: int
    reused_tokens: int
    host_restores: int
    drafted_tokens: int
    accepted_tokens: int
    copied_tokens: int
    copied_accepted_tokens: int
    draft_rounds: int
    fallback_steps: int
    reuse: tuple[tuple[str, int], ...]


def reuse_counts(totals: TotalsView) -> dict[str, int]:
    """Admissions by how they began (14.2), and how many of them had pages from host memory."""
    return {**dict(totals.reuse), "host_restore": totals.host_restores}


@dataclass(slots=True)
class Totals:
    """The running counters behind :class:`TotalsView`, in the same order."""

    admitted: int = 0
    completed: int = 0
    refused_overloaded: int = 0
    refused_timeout: int = 0
    queue_s: float = 0.0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    rounds: int = 0
    row_rounds: int = 0
    engine_recoveries: int = 0
    reused_tokens: int = 0
    host_restores: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    copied_tokens: int = 0
    copied_accepted_tokens: int = 0
    draft_rounds: int = 0
    fallback_steps: int = 0
    reuse: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))

    def count_reuse(self, way: str, tokens: int, *, host_restored: bool) -> None:
        """A request has begun, `tokens` of its prompt being there."""
        self.reuse[way] += 1
        self.reused_tokens += tokens
        self.host_restores += host_restored

    def count_drafts(self, drafted: int, accepted: int, *, copied: bool) -> None:
        """A row of a server that speculates has landed."""
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        if copied:
            self.copied_tokens += drafted
            self.copied_accepted_tokens += accepted
        if drafted:
            self.draft_rounds += 1
        else:
            self.fallback_steps += 1

    def frozen(self) -> TotalsView:
        """A copy that no later event changes."""
        counters = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return TotalsView(**{**counters, "reuse": tuple(self.reuse.items())})


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane as seen from outside: the prompt of its request, or the session that it retains.

    checkpoints   frontiers of the session's turn checkpoints, ascending
    """

    lane: int
    state: str
    request_id: int | None
    prompt_tokens: int
    cached_tokens: int = 0
    checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptView:
    """What is kept of earlier requests beside the device's pages, in pages and in states.

    host_pages, parked     room for pages in host memory, and how many are there
    parks, loads           pages that went there and came back
    host_evictions         pages forgotten there for others
    unparked               pages that were forgotten because everything there was in use
    states, stored_states  room for states in host memory, and how many are there
    shared                 of them states of beginnings that conversations share; stored and dropped since the start
    turn_checkpoints       turn checkpoints of retained sessions
    saves, restores, erases   slot actions that were done
    auto_saves, auto_save_failures   of sessions that were about to be displaced
    disk_bytes, disk_used, disk_files   what the disk cache may take and takes
    disk_saves, disk_save_failures   sessions that went to its files, or could not
    disk_hits, disk_misses           requests whose beginning was there, or was not
    disk_read_failures               files that could not be read
    """

    host_pages: int
    parked: int
    parks: int
    loads: int
    host_evictions: int
    unparked: int
    states: int
    stored_states: int
    shared: int
    shared_stored: int
    shared_dropped: int
    turn_checkpoints: int
    saves: int
    restores: int
    erases: int
    auto_saves: int
    auto_save_failures: int
    disk_bytes: int
    disk_used: int
    disk_files: int
    disk_saves: int
    disk_save_failures: int
    disk_hits: int
    disk_misses: int
    disk_read_failures: int


def kept_view(holdings: Holdings, slots: Slots, fetches: Fetches) -> KeptView:
    """Of this moment."""
    tree, images = holdings.tree, holdings.images
    return KeptView(
        host_pages=tree.places,
        parked=tree.parked,
        parks=tree.parks,
        loads=tree.loads,
        host_evictions=tree.host_evictions,
        unparked=tree.unparked,
        states=images.capacity,
        stored_states=len(images.stored),
        shared=len(images.shared),
        shared_stored=images.shared_stored,
        shared_dropped=images.shared_dropped,
        turn_checkpoints=sum(len(holdings.checkpoints(lane)) for lane in range(len(holdings.sessions))),
        saves=slots.saves,
        restores=slots.restores,
        erases=slots.erases,
        auto_saves=slots.auto_saves,
        auto_save_failures=slots.auto_save_failures,
        disk_bytes=holdings.disk.capacity,
        disk_used=holdings.disk.used,
        disk_files=len(holdings.disk),
        disk_saves=slots.disk_saves,
        disk_save_failures=slots.disk_save_failures,
        disk_hits=fetches.hits,
        disk_misses=fetches.misses,
        disk_read_failures=fetches.failures,
    )


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """A frozen picture of the scheduler; metrics read only this.

    pages_free        of all `pages`, those that hold nothing; `pages_available` of these are promised to nobody
    """

    lifecycle: str
    preparing: int
    waiting: int
    running: int
    prefilling: int
    decode_ready: int
    pages: int
    pages_free: int
    pages_available: int
    lanes: tuple[LaneView, ...]
    kept: KeptView
    totals: TotalsView
