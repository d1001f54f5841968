"""The disk cache: what was read for it comes back here, when the scheduler says so.

Its files are slot files with names of their own. They are written by the slot-persistence actor, which reads sessions
from the device; here they are found again at the start, read for a request that needs them, and removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from ninfer.actors.device import DeviceGateway
from ninfer.actors.engine import EngineLike
from ninfer.actors.pieces import write_session
from ninfer.actors.slots import SlotFolder, images_of
from ninfer.errors import NinferError, SlotRestoreFailed
from ninfer.ledger import BlockNames
from ninfer.scheduler import commands as cmd
from ninfer.scheduler.events import DiskDone, DiskFound, DiskRead
from ninfer.snapshots.folder import opened_folder
from ninfer.snapshots.reader import peek_snapshot, read_snapshot
from ninfer.step import PAGE_TOKENS

if TYPE_CHECKING:
    from ninfer.actors.gateway import SchedulerMessage

log = structlog.get_logger(__name__)

# Names of files of any process; those of one begin with its own number.
NAME = re.compile(r"kv-[0-9a-f]{8}-[0-9]+")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was read: `depth` blocks in `pages`, and the state behind them."""

    depth: int
    pages: memoryview
    state: memoryview


class DiskCache:
    """`files` is None without a disk cache; then nothing is asked of it."""

    def __init__(
        self,
        files: SlotFolder | None,
        device: DeviceGateway,
        names: BlockNames,
        tell: Callable[[SchedulerMessage], None],
    ) -> None:
        self.engine: EngineLike | None = None
        self._files = files
        self._device = device
        self._names = names
        self._tell = tell
        self._read: dict[int, _Wanted] = {}

    async def find(self) -> None:
        """Tell of the files that earlier processes have left and that suit this one, the one used longest ago first.

        Others of the same kind are removed; files with other names are left alone.
        """
        if self._files is None:
            return
        for name in await anyio.to_thread.run_sync(self._left):
            found = await anyio.to_thread.run_sync(self._look, name)
            if found is not None:
                self._tell(found)
            else:
                await self.remove(name)

    def _left(self) -> list[str]:
        assert self._files is not None
        found: list[tuple[int, str]] = []
        try:
            with os.scandir(self._files.folder) as entries:
                for entry in entries:
                    if NAME.fullmatch(entry.name) is not None:
                        with suppress(FileNotFoundError):
                            found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        except OSError as error:
            log.error("the disk cache cannot be searched", reason=error.strerror)
        return [name for _time, name in sorted(found)]

    def _look(self, name: str) -> DiskFound | None:
        files, engine = self._files, self.engine
        assert files is not None
        assert engine is not None, "files are looked at once there is an engine"
        try:
            seen = peek_snapshot(files.folder, name, files.config(engine), files.limits)
        except NinferError as error:
            log.info("a file of the disk cache does not suit this server", file=name, reason=str(error))
            return None
        if not seen.frontiers[-1]:
            return None
        blocks = self._names.names(seen.ledger[: seen.frontiers[-1]])
        return DiskFound(name, seen.file_bytes, blocks, tuple(at // PAGE_TOKENS for at in seen.frontiers))

    async def read(self, order: cmd.ReadDisk) -> None:
        """Read and check a file."""

        def load() -> _Wanted:
            files, engine = self._files, self.engine
            assert files is not None
            assert engine is not None
            snapshot = read_snapshot(files.folder, order.file, files.config(engine), files.limits)
            tokens = order.depth * PAGE_TOKENS
            state = images_of(snapshot).get(tokens)
            if state is None or self._names.names(snapshot.ledger[:tokens])[-1:] != (order.block,):
                raise SlotRestoreFailed("It holds another session.")
            return _Wanted(order.depth, snapshot.pages[: order.depth * engine.page_bytes], state)

        try:
            self._read[order.ticket] = await anyio.to_thread.run_sync(load)
        except NinferError as error:
            log.warning("a file of the disk cache cannot be used", file=order.file, reason=str(error))
        self._tell(DiskRead(order.ticket, order.ticket in self._read))

    async def write(self, order: cmd.WriteDisk) -> None:
        """What was read goes to the device."""
        engine, wanted = self.engine, self._read.pop(order.ticket)
        assert engine is not None

        ok = False
        try:
            await write_session(engine, order, wanted.pages, [(order.image, wanted.state)], self._device.run)
            ok = True
        except Exception as error:
            log.error("what was read from disk cannot be used", reason=f"{type(error).__name__}: {error}")
        finally:
            self._tell(DiskDone(order.ticket, ok))

    def drop_read(self, order: cmd.DropRead) -> None:
        """What was read is not wanted any more."""
        del self._read[order.ticket]

    async def remove(self, name: str) -> None:
        """Remove a file, if it is still there."""
        files = self._files
        assert files is not None

        def unlink() -> None:
            with opened_folder(files.folder) as directory, suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)

        try:
            await anyio.to_thread.run_sync(unlink)
        except OSError as error:
            log.error("a file of the disk cache cannot be removed", file=name, reason=error.strerror)
