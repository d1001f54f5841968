"""The scheduler itself: ``handle(event, now) -> commands``.

Reading guide: `handle` looks up one method per event type. Each method moves the machines of `transitions` and notes
commands; then `_advance` admits from the queue, gives the device its next step and asks to be woken for the next
deadline. A transition is looked up before anything it owns is moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.pages import PagePool
from ninfer.scheduler.policy import Sharing, Turn
from ninfer.scheduler.requests import ENDED, IN_STEP, WITH_LANE, Request
from ninfer.scheduler.statistics import LaneView, SchedulerStatistics, Totals
from ninfer.scheduler.transitions import (
    DEVICE,
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
from ninfer.step import pages_for
from ninfer.types import FinishReason

# A later request may pass the head of the queue this often (serving spec, 13.2).
PASSES_PER_HEAD = 8
# Three faults in a row, each this close to the one before, with nothing completed between (serving spec, 1).
FAULTS_TO_LATCH = 3
FAULT_WINDOW_S = 30.0
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
        self.device = DeviceState.IDLE
        self.lanes = [LaneState.EMPTY] * settings.lanes
        self.pages = PagePool(0)  # the memory plan says how many, once the model is loaded
        self.requests: dict[int, Request] = {}
        self._queue: list[Request] = []
        self._sharing = Sharing(settings)
        self._totals = Totals()
        self._next_request = 1
        self._step = 0
        self._in_flight: list[Request] = []
        self._chunk_tokens = 0
        self._faults: list[float] = []
        self._latch_message = ""
        self._give_up_at: float | None = None
        self._wake_at: float | None = None
        self._now = 0.0
        self._out: list[cmd.Command] = []

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
            pages_available=self.pages.available,
            lanes=tuple(self._lane_view(lane) for lane in range(len(self.lanes))),
            totals=self._totals.frozen(),
        )

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
            self.pages = PagePool(event.pages)

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
            self._queue.append(request)

    def _on_preparation_failed(self, event: ev.PreparationFailed) -> None:
        request = self._known(event.request_id)
        if request is not None:
            self._move(request, RequestSignal.ENDED)

    def _on_stop_string_found(self, event: ev.StopStringFound) -> None:
        request = self._known(event.request_id)
        if request is not None and request.state not in ENDED:
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
        self._end(request, cmd.Finish(request.id, request.lane, reason.value))

    def _fail_all(self, which: Callable[[Request], bool], code: str) -> None:
        for request in [request for request in self.requests.values() if which(request)]:
            self._end(request, cmd.Fail(request.id, request.lane, code))

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
        if request.state is RequestState.LEAVING:
            self._move_lane(request.lane, LaneSignal.VACATED_IN_STEP)
        else:
            self._give_back_lane(request)

    def _move(self, request: Request, signal: RequestSignal) -> None:
        request.state = after(REQUEST, request.state, signal)

    def _move_lane(self, lane: int, signal: LaneSignal) -> None:
        self.lanes[lane] = after(LANE, self.lanes[lane], signal)

    def _give_back_lane(self, request: Request) -> None:
        assert request.lane is not None
        self._move_lane(request.lane, LaneSignal.FREED)
        self.pages.release(request.id)
        request.lane = None

    def _forget(self, request: Request) -> None:
        if request.state is RequestState.GONE:
            del self.requests[request.id]

    # --- the device ------------------------------------------------------------------------------------------------

    def _on_chunk_landed(self, event: ev.ChunkLanded) -> None:
        (request,) = self._land(event.step, DeviceSignal.LANDED)
        begin, tokens = request.read, self._chunk_tokens
        self._sharing.landed_chunk(begin, tokens, event.device_s)
        self._totals.prefill_tokens += tokens
        self._totals.prefill_s += event.device_s
        request.read = begin + tokens
        if request.read < request.prompt:
            self._land_request(request, RequestSignal.LANDED_MORE)
            return
        if request.state is RequestState.READING_IN_STEP and request.limit > 0 and not event.drawn:
            raise IllegalTransition(f"request {request.id} was read to its end and nothing was drawn")
        self._land_drawn(request, event.drawn, event.stopped)

    def _on_round_landed(self, event: ev.RoundLanded) -> None:
        requests = self._land(event.step, DeviceSignal.LANDED)
        if [request.id for request in requests] != [row.request_id for row in event.rows]:
            raise IllegalTransition(f"round {event.step} landed with other rows than it was launched with")
        self._sharing.landed_round(event.device_s)
        self._totals.rounds += 1
        self._totals.row_rounds += len(requests)
        self._totals.decode_s += event.device_s
        for request, row in zip(requests, event.rows, strict=True):
            self._totals.decode_tokens += row.drawn
            self._land_drawn(request, row.drawn, row.stopped)

    def _land(self, step: int, signal: DeviceSignal) -> list[Request]:
        if step != self._step:
            raise IllegalTransition(f"step {step} landed, step {self._step} is in flight")
        self.device = after(DEVICE, self.device, signal)
        landed, self._in_flight = self._in_flight, []
        return landed

    def _land_drawn(self, request: Request, drawn: int, stopped: bool) -> None:
        request.drawn += drawn
        if not stopped and request.drawn < request.limit:
            self._land_request(request, RequestSignal.LANDED_READY)
            return
        if request.state not in ENDED:
            reason = FinishReason.STOP_TOKEN if stopped else request.limit_reason
            self._out.append(cmd.Finish(request.id, request.lane, reason.value))
            self._count_completed()
        self._land_request(request, RequestSignal.LANDED_LAST)

    def _count_completed(self) -> None:
        self._totals.completed += 1
        self._faults.clear()

    def _land_request(self, request: Request, signal: RequestSignal) -> None:
        was_reading = request.state is RequestState.READING_IN_STEP
        self._move(request, signal)
        if request.state not in WITH_LANE:
            self._give_back_lane(request)
            self._forget(request)
        elif was_reading and request.state is RequestState.GENERATING:
            assert request.lane is not None
            self._move_lane(request.lane, LaneSignal.PROMPT_READ)

    def _on_step_failed(self, event: ev.StepFailed) -> None:
        interrupted = self._land(event.step, DeviceSignal.FAULT)
        self._fail_all(lambda request: request.state in WITH_LANE, "internal_error")
        for request in interrupted:
            self._land_request(request, RequestSignal.LANDED_LAST)
        close = bool(self._faults) and self._now - self._faults[-1] < FAULT_WINDOW_S
        self._faults = [*self._faults, self._now] if close else [self._now]
        if len(self._faults) >= FAULTS_TO_LATCH:
            self._latch(f"the engine failed {FAULTS_TO_LATCH} times in a row: {event.message}")
        else:
            self._out.append(cmd.ResetEngine())

    def _on_engine_reset(self, _event: ev.EngineReset) -> None:
        self.device = after(DEVICE, self.device, DeviceSignal.RESET)
        self._totals.engine_recoveries += 1

    def _on_engine_lost(self, event: ev.EngineLost) -> None:
        self._latch(event.message)

    def _latch(self, message: str) -> None:
        self.device = after(DEVICE, self.device, DeviceSignal.LOSS)
        # Whoever asked for a stop gets it, also from an engine that may otherwise stay latched for inspection.
        ends = self.settings.exit_on_failure or self.lifecycle is Lifecycle.DRAINING
        self._move_life(LifeSignal.BROKEN)
        self._fail_all(lambda request: True, "service_unavailable")
        self._latch_message = message
        self._give_up_at = self._now + LATCHED_EXIT_S if ends else None

    # --- what comes next -------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        self._expire()
        if self.lifecycle is Lifecycle.SERVING:
            self._admit()
        if self.lifecycle in (Lifecycle.SERVING, Lifecycle.DRAINING) and self.device is DeviceState.IDLE:
            self._launch()
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
        while self._queue:
            chosen = self._choose_admission()
            if chosen is None:
                return
            head = self._queue[0]
            if chosen is not head:
                head.passed += 1
            self._move(chosen, RequestSignal.ADMITTED)
            self._queue.remove(chosen)
            lane = self.lanes.index(LaneState.EMPTY)
            self._move_lane(lane, LaneSignal.TAKEN)
            self.pages.reserve(chosen.id, chosen.pages)
            chosen.lane = lane
            self._totals.admitted += 1
            self._totals.queue_s += self._now - chosen.arrived
            self._out.append(cmd.Admit(chosen.id, lane, 0))

    def _choose_admission(self) -> Request | None:
        if LaneState.EMPTY not in self.lanes:
            return None
        head = self._queue[0]
        may_pass = head.passed < PASSES_PER_HEAD
        candidates = self._queue if may_pass else [head]
        return next((request for request in candidates if request.pages <= self.pages.available), None)

    def _launch(self) -> None:
        # Prefill is serialised: the request admitted first is read to its end before the next one begins.
        reading = next((r for r in self.requests.values() if r.state is RequestState.READING and r.read > 0), None)
        if reading is None:
            candidates = [r for r in self.requests.values() if r.state is RequestState.READING]
            reading = min(candidates, key=lambda r: r.id) if candidates else None
        ready = [r for r in self.requests.values() if r.state is RequestState.GENERATING]
        turn = self._sharing.turn(reading is not None, bool(ready))
        self._sharing.launched(turn)
        if turn is Turn.PREFILL:
            assert reading is not None
            self._launch_chunk(reading, bool(ready))
        elif turn is Turn.DECODE:
            self._launch_round(ready)

    def _launch_chunk(self, request: Request, someone_waits: bool) -> None:
        assert request.lane is not None
        begin = request.read
        tokens = self._sharing.chunk_tokens(begin, request.prompt - begin, someone_waits)
        end = begin + tokens
        self._begin_step(DeviceSignal.CHUNK, [request])
        self._chunk_tokens = tokens
        mapping = self.pages.map(request.id, pages_for(end))
        sample = end == request.prompt and request.limit > 0
        self._out.append(cmd.StartChunk(self._step, request.id, request.lane, begin, end, mapping, sample))

    def _launch_round(self, ready: list[Request]) -> None:
        ready.sort(key=lambda request: (request.lane is None, request.lane))
        self._begin_step(DeviceSignal.ROUND, ready)
        rows = []
        for request in ready:
            assert request.lane is not None
            mapping = self.pages.map(request.id, pages_for(request.position + 1))
            rows.append(cmd.RowStart(request.id, request.lane, request.position, mapping))
        self._out.append(cmd.StartRound(self._step, tuple(rows)))

    def _begin_step(self, signal: DeviceSignal, requests: list[Request]) -> None:
        self.device = after(DEVICE, self.device, signal)
        for request in requests:
            self._move(request, RequestSignal.LAUNCHED)
        self._step += 1
        self._in_flight = requests

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
        return LaneView(lane, state, None, 0) if request is None else LaneView(lane, state, request.id, request.prompt)

    def audit(self) -> None:
        """Raise unless every lane, page and unit of capacity is accounted for; for tests and after faults."""
        self.pages.audit()
        with_lane = sorted(r.lane for r in self.requests.values() if r.lane is not None)
        busy = [lane for lane, state in enumerate(self.lanes) if state is not LaneState.EMPTY]
        owners = sorted(self.pages.owners())
        if with_lane != busy or owners != sorted(r.id for r in self.requests.values() if r.lane is not None):
            raise IllegalTransition("a lane or a page belongs to nobody, or to two")
        for request in self.requests.values():
            if (request.state in WITH_LANE) != (request.lane is not None):
                raise IllegalTransition(f"request {request.id} is {request.state.name} with lane {request.lane}")
            if (request.state in IN_STEP) != (request in self._in_flight):
                raise IllegalTransition(f"request {request.id} is {request.state.name} and its step is not")


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
    ev.StopStringFound: Scheduler._on_stop_string_found,
    ev.Released: Scheduler._on_released,
    ev.ChunkLanded: Scheduler._on_chunk_landed,
    ev.RoundLanded: Scheduler._on_round_landed,
    ev.StepFailed: Scheduler._on_step_failed,
    ev.EngineReset: Scheduler._on_engine_reset,
    ev.EngineLost: Scheduler._on_engine_lost,
}
