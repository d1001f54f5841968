"""An engine without a model: strict about the plans it is given, and its words are a function of the prompt alone.

A launch checks the plan and takes its effects, as a queue of work on a device would; the gate and the faults of a
test are met by whoever waits for the step.

A page holds the ids of its tokens and a digest of all before them, and a state is a digest of what led to it: a lane
that goes on from the wrong pages or the wrong state, or whose pages somebody else has written, is found out.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, overload

from ninfer.actors.engine import MemoryCheck
from ninfer.errors import StartupError
from ninfer.step import (
    MOST_DRAFTS,
    PAGE_TOKENS,
    CaptureState,
    DecodeResult,
    DecodeRound,
    DecodeRow,
    Drawn,
    LaneSetup,
    LoadPages,
    NextPart,
    PageMapping,
    ParkPages,
    PrefillChunk,
    PrefillResult,
    RestoreState,
    TokenLogprobs,
    Transfer,
    pages_for,
)

R = TypeVar("R")
Words = Callable[[tuple[int, ...]], list[int]]


DIGEST_BYTES = 8


def _digest(before: bytes, ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(before + array("q", ids).tobytes(), digest_size=DIGEST_BYTES).digest()


def _page(before: bytes, ids: Sequence[int]) -> bytes:
    """Content of a page with these ids behind what `before` is the digest of."""
    return before + array("q", [*ids, *[-1] * (PAGE_TOKENS - len(ids))]).tobytes()


def _leaves(mask: bytes, token_id: int) -> bool:
    return token_id // 8 < len(mask) and bool(mask[token_id // 8] >> token_id % 8 & 1)


@dataclass
class _Lane:
    """ids: of the prompt and all drawn, by position; digests[b]: of all tokens before block b"""

    setup: LaneSetup
    ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    table: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=lambda: [bytes(DIGEST_BYTES)])
    words: list[int] | None = None
    drawn: int = 0

    def page(self, block: int, end: int) -> bytes:
        """What the page of a block must hold when the tokens before `end` have been read."""
        begin = block * PAGE_TOKENS
        while len(self.digests) <= block:
            at = len(self.digests) * PAGE_TOKENS
            self.digests.append(_digest(self.digests[-1], self.ids[at - PAGE_TOKENS : at]))
        return _page(self.digests[block], self.ids[begin : min(end, begin + PAGE_TOKENS)])


@dataclass
class FakePending(Generic[R]):
    """A step given to the fake engine."""

    engine: FakeEngine
    result: R

    def wait(self) -> R:
        self.engine.done()
        return self.result


def told_of(token: int, at: int, count: int | None) -> tuple[TokenLogprobs, ...]:
    """What is told of the token with number `at` of an output: another number for each, and the ids behind it."""
    if count is None:
        return ()
    own = -(at + 1) / 64
    return (TokenLogprobs(token, own, tuple((token + n, own - n) for n in range(count))),)


def every_number(position: int) -> int:
    """None to all of the guesses, each about as often, whatever is before."""
    return position * 0x9E3779B1 >> 7 & 15


class FakeEngine:
    """Draws ``words(prompt)`` token by token, then the first stop id, then zeros; checks every plan on the way. What a
    mask forbids gives way to the lowest id that it leaves. Of the guesses that a row may have, as many turn out right
    as `accepts` says of its position, or of copied ones those that are. Of those that it tells ahead, as many are its
    words as `accepts` says of where they begin.

    folds_late    as :func:`ninfer.step.standing_block` says
    chunk_parts   into how many parts chunks may be cut; all the work is done with the last
    appends       whether prompts go on inside a block
    round_s       what it says that a round takes
    """

    image_bytes = 8 + DIGEST_BYTES
    page_bytes = DIGEST_BYTES + 8 * PAGE_TOKENS
    host_seconds = (0.0, 0.0)

    def __init__(
        self,
        words: Words,
        lanes: int = 8,
        pages: int = 1 << 20,
        *,
        folds_late: bool = False,
        chunk_parts: tuple[int, ...] = (1, 2, 4),
        appends: bool = True,
        accepts: Callable[[int], int] = every_number,
        round_s: float = 0.0005,
    ) -> None:
        self._words = words
        self._accepts = accepts
        self._round_s = round_s
        self._lanes: list[_Lane | None] = [None] * lanes
        self._states: list[bytes | None] = [None] * lanes
        self._page_count = pages
        self._pages: dict[int, bytes] = {}
        self._places: dict[int, bytes] = {}
        self._images: dict[int, bytes] = {}
        self.chunk_parts = chunk_parts
        self._open: tuple[PrefillChunk, int] | None = None  # and how many of its parts were launched
        self.folds_late, self.appends = folds_late, appends
        self._frontiers = [0] * lanes
        self.threads: set[int] = set()
        self.fail_next: Exception | None = None
        self.fail_reset: Exception | None = None
        self.gate: threading.Event | None = None
        self.reset_gate: threading.Event | None = None
        self.resets = 0
        self._lock = threading.Lock()
        self.in_flight = 0
        self.most_in_flight = 0
        self.rows_seen: list[int] = []

    @overload
    def launch(self, plan: PrefillChunk | NextPart) -> FakePending[PrefillResult]: ...
    @overload
    def launch(self, plan: DecodeRound) -> FakePending[DecodeResult]: ...
    def launch(
        self, plan: PrefillChunk | NextPart | DecodeRound
    ) -> FakePending[PrefillResult] | FakePending[DecodeResult]:
        self.threads.add(threading.get_ident())
        with self._lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if isinstance(plan, DecodeRound):
            return FakePending(self, self._decode(plan))
        return FakePending(self, self._part(plan))

    def done(self) -> None:
        """A step is waited for: here it takes its time, or fails."""
        if self.gate is not None:
            assert self.gate.wait(30), "the test never opened the gate"
        with self._lock:
            self.in_flight -= 1
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error

    def reset(self) -> None:
        assert self.in_flight == 0, "a reset with steps in flight"
        if self.reset_gate is not None:
            assert self.reset_gate.wait(30), "the test never opened the gate"
        if self.fail_reset is not None:
            raise self.fail_reset
        self.resets += 1
        self._lanes = [None] * len(self._lanes)
        self._states = [None] * len(self._states)
        self._open = None

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        assert self.in_flight == 0, "pages are read with steps in flight"
        return memoryview(b"".join(self._pages[page] for page in pages))

    def read_places(self, places: Sequence[int]) -> memoryview:
        assert self.in_flight == 0, "pages are read with steps in flight"
        return memoryview(b"".join(self._places[place] for place in places))

    def write_pages(self, pages: Sequence[int], data: memoryview) -> None:
        assert self.in_flight == 0, "pages are written with steps in flight"
        assert data.nbytes == len(pages) * self.page_bytes
        for at, page in enumerate(pages):
            self._pages[page] = bytes(data[at * self.page_bytes : (at + 1) * self.page_bytes])

    def read_image(self, image: int) -> memoryview:
        assert self.in_flight == 0, "an image is read with steps in flight"
        return memoryview(self._images[image])

    def write_image(self, image: int, data: memoryview) -> None:
        assert self.in_flight == 0, "an image is written with steps in flight"
        assert data.nbytes == self.image_bytes
        self._images[image] = bytes(data)

    def transfer(self, transfers: Sequence[Transfer]) -> None:
        assert self.in_flight == 0, "transfers of no step with steps in flight"
        self._carry_out(transfers)

    def capture(self, lane: int, image: int) -> None:
        assert self.in_flight == 0, "a state is captured with steps in flight"
        self._carry_out((CaptureState(lane, image),))

    def _carry_out(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            match transfer:
                case CaptureState(lane, image):
                    state = self._states[lane]
                    assert state is not None, f"lane {lane} has no state to capture"
                    self._images[image] = state
                case RestoreState(image, lane):
                    self._lanes[lane], self._states[lane] = None, self._images[image]
                case ParkPages(pages, places):
                    self._places.update(zip(places, [self._pages[page] for page in pages], strict=True))
                case LoadPages(places, pages):
                    self._pages.update(zip(pages, [self._places[place] for place in places], strict=True))

    def _part(self, plan: PrefillChunk | NextPart) -> PrefillResult:
        if isinstance(plan, PrefillChunk):
            assert self._open is None, "a chunk between the parts of another"
            assert plan.parts in self.chunk_parts
            chunk, launched = plan, 1
        else:
            assert self._open is not None, "no chunk has parts to come"
            chunk, launched = self._open[0], self._open[1] + 1
            assert chunk.lane == plan.lane
        if launched < chunk.parts:
            self._open = chunk, launched
            return PrefillResult(None, 0.001)
        self._open = None
        return self._prefill(chunk)

    def _prefill(self, plan: PrefillChunk) -> PrefillResult:
        assert plan.setup is not None or plan.begin > 0
        assert plan.begin % PAGE_TOKENS == 0 or (plan.setup is not None and self.appends)
        assert plan.token_ids
        self._carry_out(plan.before)
        if plan.begin % PAGE_TOKENS:
            before = self._lane(plan.lane)
            assert self._frontiers[plan.lane] == plan.begin, "the lane stands elsewhere"
            assert plan.setup is not None
            assert before.ids[: plan.begin] == list(plan.setup.prompt_ids[: plan.begin]), "another history"
        if plan.setup is not None:
            lane = self._lanes[plan.lane] = _Lane(plan.setup, list(plan.setup.prompt_ids[: plan.begin]))
        else:
            lane = self._lane(plan.lane)
        assert len(lane.ids) == plan.begin
        end = plan.begin + len(plan.token_ids)
        lane.ids.extend(plan.token_ids)
        lane.prompt_tokens = end
        self._map(plan.lane, plan.mapping, end)
        self._check_prefix(lane, plan.begin)
        if plan.begin >= PAGE_TOKENS:
            assert self._states[plan.lane] == self._state(lane, plan.begin // PAGE_TOKENS), "another state"
        for block in range(plan.begin // PAGE_TOKENS, pages_for(end)):
            self._pages[lane.table[block]] = lane.page(block, end)
        self._stand(plan.lane, end // PAGE_TOKENS)
        self._frontiers[plan.lane] = end
        assert plan.sample or plan.mask is None
        drawn = self._draw(plan.lane, plan.mask) if plan.sample else None
        if drawn is not None and not drawn.stopped:
            drawn = replace(drawn, foreseen=self._foreseen(lane, end, plan.foresee))
        self._carry_out(plan.after)
        return PrefillResult(drawn, 0.001)

    def _decode(self, plan: DecodeRound) -> DecodeResult:
        self.rows_seen.append(len(plan.rows))
        self._carry_out(plan.before)
        for row in plan.rows:
            lane = self._lane(row.lane)
            assert row.position == lane.prompt_tokens + lane.drawn - 1
            self._check_prefix(lane, row.position)
            assert 0 <= row.drafts <= MOST_DRAFTS
            assert len(row.copied or ()) <= row.drafts
            changes = row.mask is not None and row.halts is None
            assert not changes or row.copied is not None or not row.drafts
            assert len(row.masks) == (len(row.copied or ()) if changes else 0)
            assert row.halts is None or row.mask is not None
            self._map(row.lane, row.mapping, row.position + 1 + row.drafts)
        return DecodeResult(tuple(self._row(row) for row in plan.rows), self._round_s)

    def _row(self, row: DecodeRow) -> Drawn:
        lane = self._lane(row.lane)
        drafted = row.drafts if row.copied is None else len(row.copied)
        wanted = min(drafted, self._accepts(row.position))
        drawn: list[int] = []
        told: list[TokenLogprobs] = []
        accepted = 0
        while True:
            last = self._draw(row.lane, row.masks[len(drawn) - 1] if drawn and row.masks else row.mask)
            drawn += last.token_ids
            told += last.logprobs
            right = accepted < (drafted if row.copied is not None else wanted)
            if right and row.copied is not None:
                right = row.copied[accepted] == drawn[-1]
            if row.halts is not None and _leaves(row.halts, drawn[-1]):
                right = False
            accepted += right
            if last.stopped or not right:
                break
        end = row.position + len(drawn)
        first = row.position // PAGE_TOKENS
        for block in range(first, pages_for(row.position + 1 + row.drafts)):
            # Rejected guesses leave something in their pages, which nobody may read.
            self._pages[lane.table[block]] = lane.page(block, end) if block * PAGE_TOKENS < end else b"rejected"
        self._frontiers[row.lane] = end
        self._stand(row.lane, first if self.folds_late else end // PAGE_TOKENS)
        foreseen = self._foreseen(lane, end, row.foresee) if not last.stopped else ()
        return Drawn(row.lane, tuple(drawn), last.stopped, drafted, accepted, tuple(told), foreseen)

    def _foreseen(self, lane: _Lane, position: int, count: int) -> tuple[int, ...]:
        assert lane.words is not None
        words = [*lane.words[lane.drawn :], *lane.setup.stop_ids[:1], *[0] * count][:count]
        right = self._accepts(position)
        return tuple(word if at < right else word ^ 1 for at, word in enumerate(words))

    def _state(self, lane: _Lane, block: int) -> bytes:
        lane.page(block, block * PAGE_TOKENS)
        return block.to_bytes(8) + lane.digests[block]

    def _stand(self, index: int, block: int) -> None:
        self._states[index] = self._state(self._lane(index), block) if block else None

    def _check_prefix(self, lane: _Lane, end: int) -> None:
        for block in range(pages_for(end)):
            assert self._pages.get(lane.table[block]) == lane.page(block, end), f"another page for block {block}"

    def _lane(self, index: int) -> _Lane:
        lane = self._lanes[index]
        assert lane is not None, f"lane {index} was never set up"
        return lane

    def _map(self, index: int, mapping: PageMapping, tokens: int) -> None:
        lane = self._lane(index)
        assert mapping.first == len(lane.table)
        assert all(0 <= page < self._page_count for page in mapping.pages)
        lane.table.extend(mapping.pages)
        assert len(lane.table) >= pages_for(tokens)

    def _draw(self, index: int, mask: bytes | None) -> Drawn:
        lane = self._lane(index)
        if lane.words is None:
            lane.words = self._words(tuple(lane.ids[: lane.prompt_tokens]))
        stop_ids = lane.setup.stop_ids
        at = lane.drawn
        lane.drawn += 1
        if at < len(lane.words):
            token = lane.words[at]
        else:
            token = stop_ids[0] if stop_ids else 0
        if mask is not None and not _leaves(mask, token):
            token = next(n for n in range(8 * len(mask)) if _leaves(mask, n))
        lane.ids.append(token)
        return Drawn(index, (token,), token in stop_ids, logprobs=told_of(token, at, lane.setup.logprobs))


class FakeBuilder:
    """Plans and loads a fake engine in no time."""

    def __init__(self, engine: FakeEngine, pages: int = 4096, required: int = 1, available: int = 2) -> None:
        self.engine = engine
        self.check = MemoryCheck(required, available, pages, "runtime reservation requires more than there is")
        self.load_error: StartupError | None = None
        self.late: MemoryCheck | None = None

    def plan(self) -> MemoryCheck:
        return self.check

    def load(self) -> tuple[FakeEngine, MemoryCheck]:
        if self.load_error is not None:
            raise self.load_error
        return self.engine, self.late if self.late is not None else self.check
