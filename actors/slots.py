"""The slot-persistence actor: sessions of lanes to files and back (serving spec, 15).

It asks the scheduler, which says what is to be read or written; then the device thread moves the bytes, a worker thread
has the file, and the scheduler hears that it is done. Whoever asked is answered last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
import structlog

from ninfer.actors.device import DeviceGateway
from ninfer.actors.engine import EngineLike
from ninfer.actors.ledgers import Ledgers
from ninfer.actors.messages import EraseSlot, RestoreSlot, SaveSlot, SlotMessage, SlotOutcome
from ninfer.actors.pieces import read_session, write_session
from ninfer.actors.runtime.mailbox import Mailbox
from ninfer.actors.runtime.question import Question
from ninfer.errors import (
    ActorStopped,
    NinferError,
    SlotBusy,
    SlotFileError,
    SlotRestoreFailed,
    SlotSaveFailed,
    SlotSessionMismatch,
    Unavailable,
    Unsupported,
)
from ninfer.ledger import Ledger, PromptIdentity
from ninfer.scheduler import commands as cmd
from ninfer.scheduler.events import SlotDone, SlotWritten
from ninfer.snapshots.format import Session, Snapshot, SnapshotConfig, StoredImage
from ninfer.snapshots.reader import Limits, read_snapshot
from ninfer.snapshots.writer import write_snapshot
from ninfer.step import PAGE_TOKENS

if TYPE_CHECKING:
    from ninfer.actors.gateway import SchedulerMessage

T = TypeVar("T")

log = structlog.get_logger(__name__)

# One action per lane can be under way; the rest waits here.
CAPACITY = 64


@dataclass(frozen=True, slots=True)
class SlotFolder:
    """Where slot files are, and what a file has to have in common with this server once its engine is there."""

    folder: Path
    config: Callable[[EngineLike], SnapshotConfig]
    limits: Limits


@dataclass(frozen=True, slots=True)
class SlotQuery:
    """To the scheduler's shell: an action whose lane may have to hold a certain session.

    tokens, blocks, checkpoints   of a file, for a restore
    """

    lane: int
    action: str
    if_digest: str | None = None
    tokens: int = 0
    blocks: tuple[str, ...] = ()
    checkpoints: tuple[int, ...] = ()
    file: str = ""


# State, pages, and turn checkpoints of a session.
_Read = tuple[memoryview, memoryview, list[StoredImage]]

SlotOrder = cmd.Erased | cmd.ReadSession | cmd.WriteSession


class SlotPersistenceActor:
    """Serves any number of actions side by side; the scheduler sees to it that a lane has one.

    faults   how many the scheduler knows of
    engine   set once the model is loaded, before the first action
    """

    def __init__(
        self,
        files: SlotFolder | None,
        disk: SlotFolder | None,
        device: DeviceGateway,
        ledgers: Ledgers,
        tell: Callable[[SchedulerMessage], None],
        now: Callable[[], float],
        is_busy: Callable[[int], bool],
        faults: Callable[[], int],
    ) -> None:
        self.mailbox: Mailbox[Question[SlotMessage, SlotOutcome]] = Mailbox("slot persistence", CAPACITY)
        self.engine: EngineLike | None = None
        self._files = files
        self._disk = disk
        self._disk_fails = False  # said once, until it does not
        self._device = device
        self._ledgers = ledgers
        self._tell = tell
        self._now = now
        self._is_busy = is_busy
        self._faults = faults
        self._under_way: set[Question[SlotMessage, SlotOutcome]] = set()

    async def run(self) -> None:
        """Handle questions until the mailbox is closed."""
        async with anyio.create_task_group() as tasks:
            async for question in self.mailbox.messages():
                self._under_way.add(question)
                tasks.start_soon(self._serve, question)

    def stop(self) -> None:
        """Answer everybody who still waits."""
        for question in [*self._under_way, *self.mailbox.drain()]:
            question.refuse(ActorStopped(f"{self.mailbox.name} has stopped"))
        self._under_way.clear()

    async def _serve(self, question: Question[SlotMessage, SlotOutcome]) -> None:
        begun = self._now()
        try:
            if self._files is None:
                raise Unsupported("Slots are saved with --slot-save-path only.", code="slot_persistence_disabled")
            match question.message:
                case SaveSlot():
                    outcome = await self._save(self._files, question.message, begun)
                case RestoreSlot():
                    outcome = await self._restore(self._files, question.message, begun)
                case EraseSlot():
                    outcome = await self._erase(question.message, begun)
        except NinferError as error:
            question.refuse(error)
        else:
            question.answer(outcome)
        finally:
            self._under_way.discard(question)

    async def _ask(self, query: SlotQuery) -> SlotOrder:
        question: Question[SlotQuery, SlotOrder] = Question(query)
        self._tell(question)
        order = await question.wait_answer()
        assert order is not None, "an answer without an error is an order"
        return order

    async def _erase(self, message: EraseSlot, begun: float) -> SlotOutcome:
        order = await self._ask(SlotQuery(message.lane, "erase", message.if_digest))
        assert isinstance(order, cmd.Erased)
        return SlotOutcome(order.tokens, 0, "", self._now() - begun)

    # --- save ------------------------------------------------------------------------------------------------------

    async def _save(self, files: SlotFolder, message: SaveSlot, begun: float) -> SlotOutcome:
        order = await self._ask(SlotQuery(message.lane, "save", message.if_digest, file=message.filename))
        assert isinstance(order, cmd.ReadSession)
        ok = False
        try:
            ledger, engine = self._ledgers[message.lane], self.engine
            assert ledger is not None, "a lane with a session has its tokens"
            assert engine is not None, "sessions exist only with an engine"
            read = await self._read(engine, order)
            written, digest = await self._write(files, message.filename, order, ledger, read)
            ok = True
        finally:
            self._tell(SlotDone(order.ticket, message.lane, ok))
        return SlotOutcome(order.tokens, written, digest, self._now() - begun)

    async def save_evicted(self, saved: cmd.SaveEvicted, ledger: Ledger) -> None:
        """Write a session to a file that is displaced as soon as it has been read. A stop waits for it."""
        filename, order = saved.file, saved.read
        files, engine = self._disk if saved.to_disk else self._files, self.engine
        what = "disk cache save" if saved.to_disk else "slot auto-save"
        size = 0
        assert files is not None, "only a session that has a file is written back"
        assert engine is not None, "sessions exist only with an engine"
        was_read = written = False
        with anyio.CancelScope(shield=True):
            try:
                state, pages, checkpoints = await self._read(engine, order)
                # Images may be overwritten as soon as the session is displaced; pages are copies.
                copies = [(frontier, memoryview(bytes(image))) for frontier, image in checkpoints]
                read = memoryview(bytes(state)), pages, copies
                was_read = True
                self._tell(SlotDone(order.ticket, order.lane, True))
                size, _digest = await self._write(files, filename, order, ledger, read)
                written = True
                self._disk_fails &= not saved.to_disk
                log.info(what, file=filename, n_saved=order.tokens, bytes=size)
            except NinferError as error:
                say = log.debug if saved.to_disk and self._disk_fails else log.error
                say(f"{what} FAILED", file=filename, reason=str(error))
                self._disk_fails |= saved.to_disk
            finally:
                if not was_read:
                    self._tell(SlotDone(order.ticket, order.lane, False))
                self._tell(SlotWritten(order.ticket, written, size))

    async def _write(
        self, files: SlotFolder, filename: str, order: cmd.ReadSession, ledger: Ledger, read: _Read
    ) -> tuple[int, str]:
        """What was read to a file; returns its size and the session's digest."""
        assert self.engine is not None
        config, (state, pages, checkpoints) = files.config(self.engine), read

        def write() -> tuple[int, str]:
            snapshot = Snapshot(
                config=config,
                session=Session(order.tokens, order.executed, order.state, order.state),
                ledger=ledger.ids(order.tokens),
                state=state,
                checkpoint=checkpoints[-1] if checkpoints else None,
                pages=pages,
                ring=tuple(checkpoints[:-1]),
            )
            size = write_snapshot(files.folder, filename, snapshot, is_right=lambda: self._holds(order))
            return size, ledger.digest(order.tokens)

        return await anyio.to_thread.run_sync(write)

    async def _read(self, engine: EngineLike, order: cmd.ReadSession) -> _Read:
        """What the order names stays as it is until the scheduler hears that it was read."""

        def stand() -> None:
            engine.transfer(order.before)
            if order.capture:
                engine.capture(order.lane, order.image)

        def look() -> tuple[memoryview, list[StoredImage]]:
            state = engine.read_image(order.image) if order.state else memoryview(bytes(engine.image_bytes))
            return state, [(frontier, engine.read_image(image)) for frontier, image in order.checkpoints]

        await self._while_it_holds(order, stand)
        pages = await read_session(engine, order.pages, order.places, partial(self._while_it_holds, order))
        state, checkpoints = await self._while_it_holds(order, look)
        return state, pages, checkpoints

    def _holds(self, order: cmd.ReadSession) -> bool:
        """Whether no step has failed since the order was given, so that what it names was there to be read."""
        return self._faults() == order.faults

    async def _while_it_holds(self, order: cmd.ReadSession, work: Callable[[], T]) -> T:
        """What work on the device finds, if nothing has failed before."""

        def checked() -> T:
            # A step that failed before is known here, on the device thread, and so is a reset.
            if self._device.failed or not self._holds(order):
                raise SlotSaveFailed("The device has failed, and the session with it.")
            return work()

        return await self._on_device(SlotSaveFailed, checked)

    # --- restore ---------------------------------------------------------------------------------------------------

    async def _restore(self, files: SlotFolder, message: RestoreSlot, begun: float) -> SlotOutcome:
        if self._is_busy(message.lane):  # told before the file is looked at; the scheduler has the last word
            raise slot_refusal("slot_busy")
        engine, names = self.engine, self._ledgers.names
        assert engine is not None, "files are restored only once the server is ready"
        config = files.config(engine)

        def read() -> tuple[Snapshot, PromptIdentity]:
            snapshot = read_snapshot(files.folder, message.filename, config, files.limits)
            return snapshot, PromptIdentity.of(names, snapshot.ledger)

        snapshot, identity = await anyio.to_thread.run_sync(read)
        session = snapshot.session
        images = images_of(snapshot)
        blocks = identity.blocks[: session.state_frontier // PAGE_TOKENS]
        checkpoints = tuple(frontier for frontier in sorted(images) if 0 < frontier < session.state_frontier)
        query = SlotQuery(message.lane, "restore", None, session.tokens, blocks, checkpoints, message.filename)
        order = await self._ask(query)
        assert isinstance(order, cmd.WriteSession)
        ok = False
        try:
            stored = [(image, images[frontier]) for frontier, image in order.images]
            on_device = partial(self._on_device, SlotRestoreFailed)
            await write_session(engine, order, snapshot.pages, stored, on_device)
            self._ledgers.put(message.lane, Ledger(names, snapshot.ledger, identity))
            ok = True
        finally:
            self._tell(SlotDone(order.ticket, message.lane, ok))
        digest = identity.digest.value
        return SlotOutcome(session.tokens, snapshot.file_bytes, digest, self._now() - begun)

    async def _on_device(self, failed: type[SlotFileError], work: Callable[[], T]) -> T:
        try:
            return await self._device.run(work)
        except NinferError:
            raise
        except Exception as error:
            raise failed(f"the device failed: {type(error).__name__}: {error}") from error


def slot_refusal(code: str) -> NinferError:
    """The error that the scheduler's refusal of a slot action stands for."""
    return _REFUSALS[code]()


_REFUSALS: dict[str, Callable[[], NinferError]] = {
    "slot_busy": SlotBusy,
    "slot_session_mismatch": SlotSessionMismatch,
    "slot_save_failed": lambda: SlotSaveFailed("The slot holds no session, or none whose state could be read now."),
    "slot_restore_failed": lambda: SlotRestoreFailed("There is not enough free memory for the session now."),
    "service_unavailable": Unavailable,
}


def images_of(snapshot: Snapshot) -> dict[int, memoryview]:
    """Images of a file by frontier."""
    held: Sequence[StoredImage] = (snapshot.checkpoint,) if snapshot.checkpoint is not None else ()
    return {
        **dict(snapshot.ring),
        **dict(held),
        snapshot.session.state_frontier: snapshot.state,
    }
