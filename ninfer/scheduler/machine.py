"""The scheduler itself: ``handle(event, now) -> commands``.

Reading guide: `handle` looks up one method per event type. Each method moves the machines of `transitions` and notes
commands; then `_advance` admits from the queue, gives the device its next steps and asks to be woken for the next
deadline. A transition is looked up before anything it owns is moved.

The device has up to two steps in flight (`flight`), so that the next is there when one ends and the news of it is still
on the way. What follows from that: a row may be launched that turns out to be void, because the token before it was a
stop token or the client has gone meanwhile; its lane and pages go back when the last step that uses them has landed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.audit import audit
from ninfer.scheduler.candidates import (
    first_draw_in_flight,
    masks_in_work,
    may_read,
    next_to_read,
    rows,
    with_pages,
)
from ninfer.scheduler.disk import Entry
from ninfer.scheduler.faults import FAULTS_TO_LATCH, FaultStreak
from ninfer.scheduler.fetches import Fetches
from ninfer.scheduler.flight import Flight, OpenChunk, Step, Window
from ninfer.scheduler.holdings import Holdings
from ninfer.scheduler.pages import PagePool
from ninfer.scheduler.policy import Sharing, Turn
from ninfer.scheduler.requests import ENDED, VACATING, WITH_LANE, Request
from ninfer.scheduler.reuse import FROM_DISK
from ninfer.scheduler.slots import Slots
from ninfer.scheduler.statistics import LaneView, SchedulerStatistics, Totals, kept_view
from ninfer.scheduler.transitions import (
    LANE,
    LIFECYCLE,
    REQUEST,
    DeviceSignal,
    DeviceState,
    LaneSignal,
    LaneState,
    Lifecycle,
    LifeSignal,
    RequestSignal,
    RequestState,
    after,
)
from ninfer.scheduler.waiting import candidates, in_order
from ninfer.scheduler.windows import Windows
from ninfer.step import PAGE_TOKENS, PageMapping, pages_for
from ninfer.types import FinishReason

# Where one more step may be launched, with and without steps ahead.
HAS_ROOM = {
    0: (DeviceState.IDLE,),
    1: (DeviceState.IDLE, DeviceState.PREFILL_CHUNK, DeviceState.DECODE_ROUND),
}
# From the latch to the end of the process: time for clients and probes to see it (serving spec, 1).
LATCHED_EXIT_S = 5.0
LATCHED_EXIT_STATUS = 3
# From the end of the drain to the end of the process, for the last words to reach their clients.
LAST_WORDS_S = 2.0


class Scheduler:
    """One server's whole state. Not thread safe; raises :class:`IllegalTransition` when one of its rules is broken."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.lifecycle = Lifecycle.PLANNING
        self.flight = Flight()
        self.lanes = [LaneState.EMPTY] * settings.lanes
        self.holdings = Holdings(settings)
        self._saves = settings.saves_sessions
        self.slots = Slots(self.holdings, self.lanes, self._move_lane, self._say, saves=self._saves)
        self.fetches = Fetches(self.holdings, self.lanes, self._waits, self._say)
        self.requests: dict[int, Request] = {}
        self._queue: list[Request] = []
        self._sharing = Sharing(settings)
        self._windows = Windows(settings)
        self._totals = Totals()
        self._next_request = 1
        self._may_admit = True  # whether anything has changed since nobody could be admitted
        if settings.guesses and settings.steps_ahead:
            raise IllegalTransition("no step can be ahead of a round that may draw several tokens")
        self._has_room = HAS_ROOM[settings.steps_ahead]
        self._faults = FaultStreak()
        self._latch_message = ""
        self._give_up_at: float | None = None
        self._wake_at: float | None = None
        self._now = 0.0
        self._out: list[cmd.Command] = []

    @property
    def pages(self) -> PagePool:
        """The pool of pages."""
        return self.holdings.pages

    @property
    def device(self) -> DeviceState:
        """What the device is doing."""
        return self.flight.device

    def handle(self, event: ev.Event, now: float) -> list[cmd.Command]:
        """Take one event at time `now` (seconds, monotonic) and say what to do, in order."""
        self._now = now
        self._out = []
        HANDLERS[type(event)](self, event)
        self._advance()
        return self._out

    def statistics(self) -> SchedulerStatistics:
        """Counts and gauges for metrics and logs; reading it changes nothing."""
        states = [request.state for request in self.requests.values()]
        return SchedulerStatistics(
            lifecycle=self.lifecycle.name,
            preparing=states.count(RequestState.PREPARING),
            waiting=len(self._queue),
            running=sum(state in WITH_LANE for state in states),
            prefilling=self.lanes.count(LaneState.PREFILLING),
            decode_ready=self.lanes.count(LaneState.DECODING),
            pages=self.pages.capacity,
            pages_free=self.pages.free,
            pages_available=self.pages.available,
            lanes=tuple(self._lane_view(lane) for lane in range(len(self.lanes))),
            kept=kept_view(self.holdings, self.slots, self.fetches),
            totals=self._totals.frozen(),
        )

    def ahead_of(self, request_id: int, now: float) -> int | None:
        """How many requests are in front of one in the queue; None if it is not in the queue."""
        order = [request.id for request in in_order(self._queue, now)]
        return order.index(request_id) if request_id in order else None

    # --- life of the process ---------------------------------------------------------------------------------------

    def _on_plan_made(self, event: ev.PlanMade) -> None:
        self._validate(event.required_bytes, event.available_bytes, event.message, cmd.LoadModel())

    def _on_model_loaded(self, event: ev.ModelLoaded) -> None:
        self._move_life(LifeSignal.LOADED)
        if self.lifecycle is Lifecycle.VALIDATING_MEMORY:
            self._validate(event.required_bytes, event.available_bytes, event.message, cmd.WarmUp())
        if self.lifecycle is Lifecycle.WARMING:
            if event.pages < pages_for(self.settings.max_context_tokens):
                # A request that passed the context check could wait for pages that do not exist.
                raise IllegalTransition(f"{event.pages} pages hold less than one sequence of the longest context")
            self.holdings.open(event.pages, event.folds_late, event.appends)
            self._sharing.open(event.chunk_parts)

    def _validate(self, required: int, available: int, message: str, go_on: cmd.Command) -> None:
        if required <= available:
            self._move_life(LifeSignal.FITS)
            self._out.append(go_on)
        else:
            self._move_life(LifeSignal.BROKEN)
            self._out.append(cmd.Exit(1, message))

    def _on_start_failed(self, event: ev.StartFailed) -> None:
        self._move_life(LifeSignal.BROKEN)
        if self.lifecycle is Lifecycle.FAILED:
            self._out.append(cmd.Exit(1, event.message))

    def _on_warmed_up(self, _event: ev.WarmedUp) -> None:
        self._move_life(LifeSignal.WARMED)
        if self.lifecycle is Lifecycle.SERVING:
            self._out.append(cmd.AnnounceReady())

    def _on_stop_requested(self, _event: ev.StopRequested) -> None:
        before = self.lifecycle
        self._move_life(LifeSignal.STOP)
        if self.lifecycle is Lifecycle.STOPPED and before is not Lifecycle.STOPPED:
            self._give_up_at = None
            self._out.append(cmd.Exit(0, ""))
        elif self.lifecycle is Lifecycle.DRAINING and before is Lifecycle.SERVING:
            self._give_up_at = self._now + self.settings.drain_s
            self._fail_all(lambda request: request.state not in WITH_LANE, "service_unavailable")

    def _on_tick(self, _event: ev.Tick) -> None:
        self._wake_at = None  # deadlines are looked at after every event

    def _move_life(self, signal: LifeSignal) -> None:
        self.lifecycle = after(LIFECYCLE, self.lifecycle, signal)

    # --- life of a request -----------------------------------------------------------------------------------------

    def _on_arrived(self, event: ev.Arrived) -> None:
        if self.lifecycle is not Lifecycle.SERVING:
            self._out.append(cmd.Refuse(event.ticket, "service_unavailable"))
        elif len(self.requests) >= self.settings.lanes + self.settings.max_pending:
            self._totals.refused_overloaded += 1
            self._out.append(cmd.Refuse(event.ticket, "server_overloaded"))
        else:
            request = Request(self._next_request, self._now, self._now + self.settings.pending_timeout_s)
            self._next_request += 1
            self.requests[request.id] = request
            self._out.append(cmd.Accept(event.ticket, request.id, request.deadline))

    def _on_prepared(self, event: ev.Prepared) -> None:
        request = self._known(event.request_id)
        if request is None:
            return
        if event.prompt_tokens < 1 or event.prompt_tokens > self.settings.max_context_tokens:
            raise IllegalTransition(f"request {request.id} was prepared with {event.prompt_tokens} tokens")
        self._move(request, RequestSignal.PREPARED)
        if request.state is RequestState.WAITING:
            room = self.settings.max_context_tokens - event.prompt_tokens
            request.prompt = event.prompt_tokens
            request.limit = min(event.max_tokens, room)
            if room < event.max_tokens:
                request.limit_reason = FinishReason.CONTEXT_CAPACITY
            request.blocks, request.marks, request.priority = list(event.blocks), event.marks, event.priority
            request.masked, request.follows = event.masked, dict(event.follows)
            self._queue.append(request)
            self._may_admit = True

    def _on_preparation_failed(self, event: ev.PreparationFailed) -> None:
        request = self._known(event.request_id)
        if request is not None:
            self._move(request, RequestSignal.ENDED)

    def _on_mask_ready(self, event: ev.MaskReady) -> None:
        request = self._known(event.request_id)
        if request is not None:
            self._move(request, RequestSignal.MASKED)
            request.free, request.masked = event.free, event.masked
            self._windows.masked(request, event)

    def _on_mask_failed(self, event: ev.MaskFailed) -> None:
        request = self._known(event.request_id)
        if request is not None:
            self._end(request, cmd.Fail(request.id, self._told_lane(request), event.code))

    def _on_stop_string_found(self, event: ev.StopStringFound) -> None:
        request = self._known(event.request_id)
        if request is not None and request.state not in ENDED:
            if not 1 <= event.drawn <= request.drawn:
                raise IllegalTransition(f"request {request.id} stopped at token {event.drawn} of {request.drawn}")
            request.drawn = event.drawn
            self._finish(request, FinishReason.STOP_STRING)
            self._count_completed()

    def _on_released(self, event: ev.Released) -> None:
        request = self._known(event.request_id)
        if request is None:
            return
        self._finish(request, FinishReason.CANCELLED)
        self._move(request, RequestSignal.RELEASED)
        self._forget(request)

    def _known(self, request_id: int) -> Request | None:
        """The request, or None if it is gone: news about it may still be on its way. An id never given is a bug."""
        if not 0 < request_id < self._next_request:
            raise IllegalTransition(f"no request {request_id} was ever accepted")
        return self.requests.get(request_id)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a request before its step says so, unless it has ended already."""
        self._end(request, self._last_word(request, reason))

    def _last_word(self, request: Request, reason: FinishReason) -> cmd.Finish:
        """It says how much of the session the lane will keep, and what lands later does not count any more."""
        if request.state not in ENDED and request.started and self.settings.prefix_reuse and self.holdings.trusted:
            request.retained = request.ledger
        return cmd.Finish(request.id, self._told_lane(request), reason.value, request.retained)

    @staticmethod
    def _told_lane(request: Request) -> int | None:
        """The lane that knows of the request: before its first chunk only the scheduler knows which one it has."""
        return request.lane if request.started else None

    def _say(self, command: cmd.Command) -> None:
        self._out.append(command)

    def _fail_all(self, which: Callable[[Request], bool], code: str) -> None:
        for request in [request for request in self.requests.values() if which(request)]:
            self._end(request, cmd.Fail(request.id, self._told_lane(request), code))

    def _end(self, request: Request, last_word: cmd.Command) -> None:
        had_ended = request.state in ENDED
        self._move(request, RequestSignal.ENDED)
        if had_ended:
            return
        self._out.append(last_word)
        if request in self._queue:
            self._queue.remove(request)
        if request.lane is None:
            return
        if request.state in VACATING:
            self._move_lane(request.lane, LaneSignal.VACATED_IN_STEP)
        else:
            self._give_back_lane(request)

    def _move(self, request: Request, signal: RequestSignal) -> None:
        request.state = after(REQUEST, request.state, signal)

    def _move_lane(self, lane: int, signal: LaneSignal) -> None:
        self.lanes[lane] = after(LANE, self.lanes[lane], signal)

    def _give_back_lane(self, request: Request) -> None:
        assert request.lane is not None
        kept = self.holdings.retire(request)
        self._move_lane(request.lane, LaneSignal.KEPT if kept else LaneSignal.FREED)
        if request.retained and not kept:  # a fault since it was promised
            self._out.append(cmd.Forget(request.lane))
        request.lane = None
        self._drop_lost()
        self._ask_slots_again()

    def _drop_lost(self) -> None:
        """Lanes whose session has lost its blocks retain nothing."""
        taken = [request.lane for request in self.requests.values() if request.lane is not None]
        self._forget_sessions(self.holdings.lost(taken))

    def _forget_sessions(self, lanes: Sequence[int]) -> None:
        for lane in lanes:
            if self.lanes[lane] is LaneState.RETAINED:
                self._move_lane(lane, LaneSignal.DROPPED)
            self._out.append(cmd.Forget(lane))

    def _forget(self, request: Request) -> None:
        if request.state is RequestState.GONE:
            del self.requests[request.id]

    # --- the device ------------------------------------------------------------------------------------------------

    def _on_part_landed(self, event: ev.PartLanded) -> None:
        step = self.flight.land(event.step, DeviceSignal.CHUNK_LANDED)
        if not step.is_part:
            raise IllegalTransition(f"step {event.step} landed as a part, and is more than that")
        if self.device is DeviceState.RECOVERING:
            self._drop(step)
            return
        self._sharing.landed_part(event.device_s)
        self._totals.prefill_s += event.device_s

    def _on_chunk_landed(self, event: ev.ChunkLanded) -> None:
        step = self.flight.land(event.step, DeviceSignal.CHUNK_LANDED)
        if self.device is DeviceState.RECOVERING:
            self._drop(step)
            return
        if step.is_part:
            raise IllegalTransition(f"step {event.step} landed with its parts to come")
        (request,) = step.requests
        tokens = step.end - step.begin
        request.blocks.extend(event.blocks)
        self.holdings.landed(request, step.end, step.images)
        self._sharing.landed_chunk(step.begin, tokens, event.device_s)
        self._totals.prefill_tokens += tokens
        self._totals.prefill_s += event.device_s
        if step.end < request.prompt:
            self._land_request(request, RequestSignal.LANDED_MORE)
            return
        if request.state is RequestState.READING_IN_STEP and request.limit > 0 and not event.drawn:
            raise IllegalTransition(f"request {request.id} was read to its end and nothing was drawn")
        self._land_drawn(request, event.drawn, event.stopped, event.free)

    def _on_round_landed(self, event: ev.RoundLanded) -> None:
        step = self.flight.land(event.step, DeviceSignal.ROUND_LANDED)
        if [request.id for request in step.requests] != [row.request_id for row in event.rows]:
            raise IllegalTransition(f"round {event.step} landed with other rows than it was launched with")
        if self.device is DeviceState.RECOVERING:
            self._drop(step)
            return
        self._sharing.landed_round(event.device_s)
        self._totals.rounds += 1
        self._totals.row_rounds += len(step.requests)
        self._totals.decode_s += event.device_s
        self._windows.landed(step, event)
        for request, row in zip(step.requests, event.rows, strict=True):
            request.blocks.extend(row.blocks)
            request.executed += row.drawn - 1
            request.drew = row.drawn
            if request.state not in ENDED:
                self._totals.decode_tokens += row.drawn
                if self.settings.guesses:
                    self._totals.count_drafts(row.drafted, row.accepted, copied=row.copied)
            self._land_drawn(request, row.drawn, row.stopped, row.free)

    def _land_drawn(self, request: Request, drawn: int, stopped: bool, free: int) -> None:
        request.drawn += drawn
        request.free = free
        if not stopped and request.drawn < request.limit:
            self._land_request(request, RequestSignal.LANDED_UNMASKED if request.held else RequestSignal.LANDED_READY)
            return
        if request.state not in ENDED:
            reason = FinishReason.STOP_TOKEN if stopped else request.limit_reason
            self._out.append(self._last_word(request, reason))
            self._count_completed()
        self._land_request(request, RequestSignal.LANDED_LAST)

    def _count_completed(self) -> None:
        self._totals.completed += 1
        self._faults.end()

    def _land_request(self, request: Request, signal: RequestSignal) -> None:
        before = request.state
        self._move(request, RequestSignal.LANDED_VOID if before in ENDED else signal)
        if request.state not in WITH_LANE:
            self._give_back_lane(request)
            self._forget(request)
            return
        assert request.lane is not None
        if request.state in VACATING and before not in VACATING:
            self._move_lane(request.lane, LaneSignal.VACATED_IN_STEP)
        elif (
            request.state in (RequestState.GENERATING, RequestState.MASKING) and before is RequestState.READING_IN_STEP
        ):
            self._move_lane(request.lane, LaneSignal.PROMPT_READ)

    def _on_step_failed(self, event: ev.StepFailed) -> None:
        was_void = self.device is DeviceState.VOIDING
        step = self.flight.land(event.step, DeviceSignal.FAULT)
        if not was_void:
            self._forget_sessions(self.holdings.distrust())
            self._fail_all(lambda request: request.state in WITH_LANE, "internal_error")
            self._faults.add(self._now, event.message)
        self._drop(step)

    def _drop(self, step: Step) -> None:
        """Land a step of which nothing counts, after a fault; with the last one in flight the engine is reset."""
        self._sharing.dropped_chunk()
        for request in (*step.requests, *self.flight.drop_chunk()):
            self._land_request(request, RequestSignal.LANDED_VOID)
        if self.device is DeviceState.VOIDING:
            return
        self.holdings.clear()
        if self._faults.too_long:
            self._latch(f"the engine failed {FAULTS_TO_LATCH} times in a row: {self._faults.message}")
        else:
            self._out.append(cmd.ResetEngine())

    def _on_engine_reset(self, _event: ev.EngineReset) -> None:
        self.flight.move(DeviceSignal.RESET)
        self.holdings.trust()
        self._totals.engine_recoveries += 1

    def _on_engine_lost(self, event: ev.EngineLost) -> None:
        self._latch(event.message)

    def _latch(self, message: str) -> None:
        self.flight.move(DeviceSignal.LOSS)
        # Whoever asked for a stop gets it, also from an engine that may otherwise stay latched for inspection.
        ends = self.settings.exit_on_failure or self.lifecycle is Lifecycle.DRAINING
        self._move_life(LifeSignal.BROKEN)
        self._fail_all(lambda request: True, "service_unavailable")
        self._latch_message = message
        self._give_up_at = self._now + LATCHED_EXIT_S if ends else None

    # --- slots -----------------------------------------------------------------------------------------------------

    def _on_slot_asked(self, event: ev.SlotAsked) -> None:
        self.slots.ask(event, serving=self.lifecycle is Lifecycle.SERVING and self.holdings.trusted)
        self._drop_lost()
        self._may_admit = True

    def _on_slot_written(self, event: ev.SlotWritten) -> None:
        self.slots.written(event)
        self._ask_slots_again()

    def _ask_slots_again(self) -> None:
        for event in self.slots.deferred():
            self._on_slot_asked(event)
        self._may_admit = True

    def _on_slot_done(self, event: ev.SlotDone) -> None:
        self.slots.done(event)
        self._drop_lost()
        self._ask_slots_again()

    # --- disk cache ------------------------------------------------------------------------------------------------

    def _on_disk_found(self, event: ev.DiskFound) -> None:
        for file in self.holdings.disk.add(Entry(event.file, event.blocks, event.states, event.bytes)):
            self._out.append(cmd.DropFile(file))

    def _on_disk_read(self, event: ev.DiskRead) -> None:
        self.fetches.read(event)
        self._drop_lost()
        self._may_admit = True

    def _on_disk_done(self, event: ev.DiskDone) -> None:
        self.fetches.done(event)
        self._may_admit = True

    def _waits(self, request: Request) -> bool:
        return request in self._queue and self.lifecycle is Lifecycle.SERVING

    # --- what comes next -------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        self._expire()
        if self.lifecycle is Lifecycle.SERVING:
            self._admit()
        if self.lifecycle in (Lifecycle.SERVING, Lifecycle.DRAINING):
            while self.device in self._has_room and self._launch():
                pass
        if self.lifecycle is Lifecycle.DRAINING and not self.requests:
            self._stop()
        self._ask_to_be_woken()

    def _expire(self) -> None:
        early = (RequestState.PREPARING, RequestState.WAITING)
        for request in [r for r in self.requests.values() if r.state in early and r.deadline <= self._now]:
            self._totals.refused_timeout += 1
            self._end(request, cmd.Fail(request.id, None, "request_queue_timeout"))
        if self._give_up_at is None or self._now < self._give_up_at:
            return
        self._give_up_at = None
        if self.lifecycle is Lifecycle.FAILED:
            self._out.append(cmd.Exit(LATCHED_EXIT_STATUS, self._latch_message))
        elif all(request.state in ENDED for request in self.requests.values()):
            self._stop()
        else:
            self._fail_all(lambda request: request.state not in ENDED, "service_unavailable")
            self._give_up_at = self._now + LAST_WORDS_S

    def _stop(self) -> None:
        self._give_up_at = None
        self._move_life(LifeSignal.DRAINED)
        self._out.append(cmd.Exit(0, ""))

    def _admit(self) -> None:
        while self._queue and self._may_admit:
            idle = [lane for lane, state in enumerate(self.lanes) if state in (LaneState.EMPTY, LaneState.RETAINED)]
            self._may_admit = bool(idle) and self._admit_one(idle)

    def _comes_back(self, request: Request) -> bool:
        """Whether a lane that is about to be idle holds the beginning of its prompt: it waits the step that this takes.

        A client's next turn often arrives while a row behind the last token of its answer is still in flight.
        """
        if not self.settings.prefix_reuse or not self.holdings.trusted:
            return False
        leaving = (other for other in self.requests.values() if other.state in VACATING)
        return any(other.id in request.follows or other.blocks[:1] == request.blocks[:1] != [] for other in leaving)

    def _saves_first(self, request: Request, idle: list[int]) -> bool:
        """Whether a session has to be read for its file before the request may displace it."""
        taken = [lane for lane, state in enumerate(self.lanes) if state is LaneState.PREFILLING]
        while (lane := self.holdings.unsaved(request, idle, taken)) is not None:
            # Whoever has a taken lane will begin with its session, or leave it there.
            if lane in taken or self.slots.save_first(lane):
                return True
        return False

    def _admit_one(self, idle: list[int]) -> bool:
        head, *others = candidates(self._queue, self._now)
        if self._comes_back(head) or self.slots.holds_up:
            return False
        if self._saves and self._saves_first(head, idle):
            return False
        order = [head, *others]
        if self.fetches.holds_up(head, idle):
            order = others if len(idle) > 1 else []  # there is a lane for it when its beginning is there
        for request in order:
            lane = self.holdings.admit(request, idle, head=request is head)
            if lane is not None:
                break
        else:
            return False
        head.passed += request is not head
        self._move(request, RequestSignal.ADMITTED)
        self._queue.remove(request)
        self._move_lane(lane, LaneSignal.TAKEN)
        request.lane = lane
        self._totals.admitted += 1
        self._totals.queue_s += self._now - request.arrived
        return True

    def _launch(self) -> bool:
        """Give the device one more step; False if there is none to give now."""
        requests = [request for request in self.requests.values() if request.lane is not None]
        chunk, ready = self.flight.chunk, rows(requests)
        reading = next_to_read(requests, self.holdings, self._now) if chunk is None else chunk.request
        if self.holdings.room.to_promise() < 0:  # pages that were promised are being read for a file
            ready = with_pages(ready, self.holdings, self.settings.guesses)
            most = self.settings.prefill_chunk_tokens
            if chunk is None and reading is not None and not may_read(reading, self.holdings, most):
                reading = None
        # Who joins when the chunk in flight has landed waits for the device too: no other chunk goes before its row.
        someone_waits = bool(ready) or (chunk is None and first_draw_in_flight(requests))
        turn = self._sharing.turn(reading is not None, someone_waits, ahead=bool(self.flight.steps))
        if turn is Turn.PREFILL:
            if chunk is not None:
                self._launch_part(chunk)
            else:
                assert reading is not None
                self._launch_chunk(reading, someone_waits or masks_in_work(requests))
        elif turn is Turn.DECODE and ready:
            self._launch_round(ready)
        else:
            return False
        self._sharing.launched(turn)
        return True

    def _launch_chunk(self, request: Request, someone_waits: bool) -> None:
        assert request.lane is not None
        first = not request.started
        if first:
            self._begin(request)
        begin = request.read
        block = begin - begin % PAGE_TOKENS  # units are counted from block starts
        end = block + self._sharing.chunk_tokens(block, request.prompt - block, someone_waits)
        end = self.holdings.cut(request, end)
        mapping = self._extend(request, end)
        before = self.holdings.transfers()
        after, images = self.holdings.capture(request, end)
        parts = self._sharing.parts(begin, end - begin, someone_waits)
        number = self.flight.launch_chunk(request, begin, end, images, parts)
        self._move(request, RequestSignal.LAUNCHED)
        request.read = request.executed = end
        sample = end == request.prompt and request.limit > 0
        window = self._windows.first(request) if sample else Window()
        self._out.append(
            cmd.StartChunk(
                number,
                request.id,
                request.lane,
                begin,
                end,
                mapping,
                sample,
                before,
                after,
                first,
                parts,
                window.foresee,
                window.recall,
            )
        )

    def _extend(self, request: Request, tokens: int) -> PageMapping:
        """Pages for a step; for them blocks may go, and sessions with their blocks."""
        mapping = self.holdings.extend(request, tokens)
        if mapping.pages:
            self._drop_lost()
        return mapping

    def _launch_part(self, chunk: OpenChunk) -> None:
        request, behind = chunk.request, chunk.newest
        assert request.lane is not None
        number = self.flight.launch_part(chunk)
        self._out.append(cmd.ContinueChunk(number, request.id, request.lane, behind, last=not chunk.left))

    def _begin(self, request: Request) -> None:
        """What the request reuses is certain from here on."""
        assert request.lane is not None
        begun = self.holdings.begin(request)
        self._drop_lost()
        self._may_admit = True  # it may have been promised more than it needs now
        request.started = True
        request.cached = begun.cached_tokens
        way = FROM_DISK if 0 < request.fetched <= begun.cached_tokens else begun.way
        self._totals.count_reuse(way, begun.cached_tokens, host_restored=begun.host_restored)
        self._out.append(cmd.Admit(request.id, request.lane, begun.cached_tokens, way, begun.host_restored))

    def _launch_round(self, ready: list[Request]) -> None:
        windows = self._windows.choose(ready)
        number = self.flight.launch_round(ready, windows)
        starts = []
        for request, window in zip(ready, windows, strict=True):
            assert request.lane is not None
            position = request.position
            self._move(request, RequestSignal.LAUNCHED)
            mapping = self._extend(request, position + 1 + max(window.own, window.copies))
            request.executed, request.drew = position + 1, 1
            starts.append(
                cmd.RowStart(
                    request.id,
                    request.lane,
                    position,
                    mapping,
                    window.own,
                    window.copies,
                    window.foresee,
                    window.recall,
                )
            )
        self._out.append(cmd.StartRound(number, tuple(starts), self.holdings.transfers()))

    def _ask_to_be_woken(self) -> None:
        early = (RequestState.PREPARING, RequestState.WAITING)
        times = [request.deadline for request in self.requests.values() if request.state in early]
        if self._give_up_at is not None:
            times.append(self._give_up_at)
        earliest = min(times, default=None)
        # A wake-up that comes too early is harmless, so only an earlier one than is pending has to be asked for.
        if earliest is not None and (self._wake_at is None or earliest < self._wake_at):
            self._wake_at = earliest
            self._out.append(cmd.WakeAt(earliest))

    def _lane_view(self, lane: int) -> LaneView:
        request = next((r for r in self.requests.values() if r.lane == lane), None)
        state = self.lanes[lane].name
        if request is not None:
            return LaneView(lane, state, request.id, request.prompt, request.cached)
        session = self.holdings.sessions[lane]
        tokens = session.tokens if session is not None else 0
        return LaneView(lane, state, None, tokens, tokens, self.holdings.checkpoints(lane))

    def audit(self) -> None:
        """Raise unless every lane, page, step and unit of capacity is accounted for; for tests and after faults."""
        self.holdings.audit(self.slots.being_read)
        audit(self.requests, self.lanes, self.pages, self.flight, self.slots.owners() | self.fetches.owners())


HANDLERS: dict[type[Any], Callable[[Scheduler, Any], None]] = {
    ev.PlanMade: Scheduler._on_plan_made,
    ev.ModelLoaded: Scheduler._on_model_loaded,
    ev.StartFailed: Scheduler._on_start_failed,
    ev.WarmedUp: Scheduler._on_warmed_up,
    ev.StopRequested: Scheduler._on_stop_requested,
    ev.Tick: Scheduler._on_tick,
    ev.Arrived: Scheduler._on_arrived,
    ev.Prepared: Scheduler._on_prepared,
    ev.PreparationFailed: Scheduler._on_preparation_failed,
    ev.MaskReady: Scheduler._on_mask_ready,
    ev.MaskFailed: Scheduler._on_mask_failed,
    ev.StopStringFound: Scheduler._on_stop_string_found,
    ev.Released: Scheduler._on_released,
    ev.PartLanded: Scheduler._on_part_landed,
    ev.ChunkLanded: Scheduler._on_chunk_landed,
    ev.RoundLanded: Scheduler._on_round_landed,
    ev.StepFailed: Scheduler._on_step_failed,
    ev.EngineReset: Scheduler._on_engine_reset,
    ev.EngineLost: Scheduler._on_engine_lost,
    ev.SlotAsked: Scheduler._on_slot_asked,
    ev.SlotDone: Scheduler._on_slot_done,
    ev.SlotWritten: Scheduler._on_slot_written,
    ev.DiskFound: Scheduler._on_disk_found,
    ev.DiskRead: Scheduler._on_disk_read,
    ev.DiskDone: Scheduler._on_disk_done,
}
