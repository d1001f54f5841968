"""All actors of one server, and what the scheduler orders outside of any request: load, warm up, reset, exit."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from ninfer.actors.checkpoints import CheckpointRingActor
from ninfer.actors.decode import DecodeActor
from ninfer.actors.device import DeviceGateway
from ninfer.actors.disk import DiskCache
from ninfer.actors.engine import EngineBuilder, EngineLike
from ninfer.actors.eventlog import EventLog
from ninfer.actors.gateway import Gateway, SchedulerMessage
from ninfer.actors.lane import LaneActor
from ninfer.actors.ledgers import Ledgers
from ninfer.actors.masks import Masks
from ninfer.actors.messages import Kept
from ninfer.actors.prefill import PrefillActor
from ninfer.actors.runtime.clock import Clock, LoopClock
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.actors.runtime.question import Question
from ninfer.actors.scheduler import DiskOrder, SchedulerActor
from ninfer.actors.slots import SlotFolder, SlotPersistenceActor
from ninfer.actors.warmup import warm_up
from ninfer.config import SchedulerSettings
from ninfer.errors import ActorStopped, NinferError
from ninfer.ledger import BlockNames, Ledger
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.statistics import SchedulerStatistics
from ninfer.scheduler.transitions import LaneState
from ninfer.speculation.copying import DEFAULT_MIN_MATCH, CopyRules
from ninfer.text.tokenizer import Tokenizer

# The status of a process that ends because one of the scheduler's own rules was broken.
BROKEN_STATUS = 3

log = structlog.get_logger(__name__)


class System:
    """Builds the actors and runs them. `gateway` is all that the HTTP side sees."""

    def __init__(
        self,
        settings: SchedulerSettings,
        builder: EngineBuilder,
        tokenizer: Tokenizer,
        event_log: EventLog,
        unix_time: Callable[[], float],
        clock: Clock | None = None,
        names: BlockNames | None = None,
        slots: SlotFolder | None = None,
        disk: SlotFolder | None = None,
        copy_min_match: int = DEFAULT_MIN_MATCH,
    ) -> None:
        self._clock = clock if clock is not None else LoopClock()
        self._builder = builder
        self._unix_time = unix_time
        self._device = DeviceGateway()
        # Unlimited, because its writers are limited: the gateway bounds arrivals, and everything else is news of a
        # request or step that the scheduler itself has let in.
        self._mailbox: Mailbox[SchedulerMessage] = Mailbox("scheduler", math.inf)
        self.machine = Scheduler(settings)
        self._masks = Masks(
            self._tell,
            lambda request_id, mask, ahead: event_log.mask(self._clock.now(), request_id, mask, ahead),
            most=settings.guesses,
        )
        self.lanes = [
            LaneActor(lane, tokenizer, self._masks, self._tell, speculates=settings.guesses > 0)
            for lane in range(settings.lanes)
        ]
        barriers = frozenset(tokenizer.control_ids.values())
        copying = CopyRules(copy_min_match, barriers) if settings.copied_tokens else None
        names = names if names is not None else BlockNames(secrets.token_bytes(32))
        ledgers = Ledgers(settings.lanes, names, copying)
        steps = (self._device, self.lanes, ledgers, self._masks, event_log, self._clock, self._tell)
        self._prefill, self._decode = PrefillActor(*steps), DecodeActor(*steps)
        self._scheduler = SchedulerActor(
            self.machine,
            self._mailbox,
            self.lanes,
            self._prefill,
            self._decode,
            ledgers,
            self._masks,
            self,
            event_log,
            self._clock,
        )
        self.ring = CheckpointRingActor(lambda: self.machine.statistics().lanes, ledgers)
        self.slots = SlotPersistenceActor(
            slots,
            disk,
            self._device,
            ledgers,
            self._tell,
            self._clock.now,
            lambda lane: self._is_busy(lane),
            lambda: self.machine.holdings.faults,
        )
        self._disk = DiskCache(disk, self._device, names, self._tell)
        self.gateway = Gateway(
            self._mailbox,
            lambda: self.machine.lifecycle,
            self._statistics,
            self.slots.mailbox,
            self.ring.mailbox,
            self._scheduler.timeline,
            self._kept,
        )
        self._on_listen: Callable[[], None] = lambda: None
        self._on_ready: Callable[[], None] = lambda: None
        self._tasks: TaskGroup | None = None
        self._timer: anyio.CancelScope | None = None
        self._engine: EngineLike | None = None
        self._status = BROKEN_STATUS
        self.last_words = ""
        self._over = anyio.Event()

    def stop(self) -> None:
        """Ask for the drain; the process ends when it is through."""
        self._tell(ev.StopRequested())

    async def run(self, on_listen: Callable[[], None], on_ready: Callable[[], None] = lambda: None) -> int:
        """Plan, load, serve, drain; returns the exit status. If it is not 0, `last_words` say why.

        on_listen   called when the early memory plan fits, before anything is loaded
        on_ready    called when requests are served from now on
        """
        self._on_listen, self._on_ready = on_listen, on_ready
        try:
            async with self._device, anyio.create_task_group() as tasks:
                self._tasks = tasks
                for run in (
                    self._device.deliver,
                    self._prefill.run,
                    self._decode.run,
                    self._masks.run,
                    self.ring.run,
                    self.slots.run,
                ):
                    tasks.start_soon(run)
                for lane in self.lanes:
                    tasks.start_soon(lane.run)
                tasks.start_soon(self._run_scheduler)
                tasks.start_soon(self._plan)
                await self._over.wait()
                self._answer_everybody()
                tasks.cancel_scope.cancel()
        finally:
            self._answer_everybody()
        return self._status

    async def _run_scheduler(self) -> None:
        try:
            await self._scheduler.run()
        except NinferError as error:
            # A rule was broken: nothing the machine says can be trusted any more. Everybody gets an answer and the
            # process ends; whoever supervises it starts a clean one.
            log.critical("the scheduler broke one of its rules", error=str(error))
            self.exit(BROKEN_STATUS, str(error))

    def _answer_everybody(self) -> None:
        self._scheduler.stop()
        self._prefill.mailbox.drain()
        self._decode.mailbox.drain()
        self._masks.mailbox.drain()
        for lane in self.lanes:
            lane.stop()
        self.ring.stop()
        self.slots.stop()

    def _kept(self) -> Kept:
        engine = self._engine
        return Kept(engine.page_bytes, engine.image_bytes, *engine.host_seconds) if engine is not None else Kept()

    def _is_busy(self, lane: int) -> bool:
        return self.machine.lanes[lane] not in (LaneState.EMPTY, LaneState.RETAINED, LaneState.VACATING)

    def _tell(self, message: SchedulerMessage) -> None:
        try:
            self._mailbox.put_nowait(message)
        except ActorStopped:
            log.debug("news for a scheduler that has stopped", kind=type(message).__name__)
            if isinstance(message, Question):
                message.refuse(ActorStopped("the server has stopped"))

    async def _plan(self) -> None:
        try:
            check = await self._device.run(self._builder.plan)
        except NinferError as error:
            self._tell(ev.StartFailed(str(error)))
        else:
            self._tell(ev.PlanMade(check.required_bytes, check.available_bytes, check.message))

    # --- orders of the scheduler -----------------------------------------------------------------------------------

    def load_model(self) -> None:
        """Listen and load."""
        self._on_listen()
        self._start(self._load)

    def warm_up(self) -> None:
        """Run the warm-up generation."""
        self._start(self._warm_up)

    def announce_ready(self) -> None:
        """Say that the server serves."""
        self.gateway.ready_at = self._unix_time()
        self._on_ready()

    def reset_engine(self) -> None:
        """Bring the engine back to its empty state."""
        self._start(self._reset)

    def exit(self, status: int, message: str) -> None:
        """End the process; whoever asks first says how."""
        if self._over.is_set():
            return
        self._status, self.last_words = status, message
        self._over.set()

    def save_evicted(self, order: cmd.SaveEvicted, ledger: Ledger) -> None:
        """Write a session that is about to be displaced to a file."""
        self._start(self.slots.save_evicted, order, ledger)

    def use_disk(self, order: DiskOrder) -> None:
        """Read, use or remove a file of the disk cache."""
        match order:
            case cmd.ReadDisk():
                self._start(self._disk.read, order)
            case cmd.WriteDisk():
                self._start(self._disk.write, order)
            case cmd.DropRead():
                self._disk.drop_read(order)
            case cmd.DropFile():
                self._start(self._disk.remove, order.file)

    def wake_at(self, at: float) -> None:
        """Send a tick at this time, instead of the one asked for before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = anyio.CancelScope()
        self._start(self._tick, at, self._timer)

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        assert self._tasks is not None, "orders come from the scheduler, which runs in the task group"
        self._tasks.start_soon(work, *args)

    async def _load(self) -> None:
        try:
            engine, check = await self._device.run(self._builder.load)
        except NinferError as error:
            self._tell(ev.StartFailed(str(error)))
            return
        self._engine = self._prefill.engine = self._decode.engine = self.slots.engine = self._disk.engine = engine
        self._tell(
            ev.ModelLoaded(
                check.required_bytes,
                check.available_bytes,
                check.pages,
                check.message,
                engine.folds_late,
                engine.chunk_parts,
                engine.appends,
            )
        )
        await self._disk.find()

    def _statistics(self) -> SchedulerStatistics:
        """What the scheduler tells, with the tokens that answers have: of a round in which a stop string ends one, the
        scheduler does not know how many those are.
        """
        told = self.machine.statistics()
        decoded = sum(lane.decoded_tokens for lane in self.lanes)
        return replace(told, totals=replace(told.totals, decode_tokens=decoded))

    async def _warm_up(self) -> None:
        engine = self._engine
        assert engine is not None
        try:
            settings = self.machine.settings
            await self._device.run(lambda: warm_up(engine, settings.max_context_tokens, settings.draft_tokens))
        except Exception as error:
            log.warning("the warm-up generation failed", error=f"{type(error).__name__}: {error}")
        self._tell(ev.WarmedUp())

    async def _reset(self) -> None:
        engine = self._engine
        assert engine is not None
        try:
            await self._device.run(lambda: self._device.reset(engine.reset))
        except Exception as error:
            self._tell(ev.EngineLost(f"the engine could not be reset: {type(error).__name__}: {error}"))
        else:
            self._tell(ev.EngineReset())

    async def _tick(self, at: float, scope: anyio.CancelScope) -> None:
        with scope:
            await self._clock.wait_until(at)
            self._tell(ev.Tick())
