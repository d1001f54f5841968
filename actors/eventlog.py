"""The scheduler's own record: every event it takes and every command it gives, one JSON line each.

Lines carry a sequence number without gaps. The first says what a replay needs to build the same machine, and the same
engine. Token ids are in it only as `content` lines, which a replay of decisions ignores and which are written only if
asked for (serving spec, 18.6).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import orjson
import structlog

from ninfer.config import SchedulerSettings
from ninfer.errors import StartupError
from ninfer.scheduler.commands import Command
from ninfer.scheduler.events import Event
from ninfer.scheduler.records import FORMAT, FORMAT_VERSION, EngineRecord, fields_of, to_record
from ninfer.types import Sampling
from ninfer.version import VERSION

log = structlog.get_logger(__name__)


def _packed(mask: bytes) -> str:
    return base64.b64encode(zlib.compress(mask)).decode()


class EventLog:
    """Writes records through structlog and orjson; a log that was not asked for (`file` None) costs one test.

    Lines are flushed with the record that ends a decision, so that a log of a killed process ends at one. A write
    failure disables the log with one error line: what is there can be replayed, and no request fails for it.

    engine   what runs behind the scheduler; None for one that cannot be had again from a model
    """

    def __init__(self, file: BinaryIO | None, content: bool = False, engine: EngineRecord | None = None) -> None:
        self._file = file
        self._engine = engine
        self._content = content and file is not None
        self._sequence = 0
        self._logger: Any = None
        if file is not None:
            # A record is written whatever level the console has: the default class is the one that the console sets up.
            self._logger = structlog.wrap_logger(
                structlog.BytesLogger(file),
                processors=[structlog.processors.JSONRenderer(serializer=_dumps)],
                wrapper_class=structlog.BoundLogger,
            )

    @classmethod
    def open(cls, path: Path | None, content: bool = False, engine: EngineRecord | None = None) -> EventLog:
        """A log at this path, which must not exist yet: a replay needs a file of one run."""
        if path is None:
            return cls(None)
        try:
            return cls(path.open("xb"), content, engine)
        except FileExistsError:
            raise StartupError(f"--event-log {path} exists already; name a new file") from None
        except OSError as error:
            raise StartupError(f"--event-log {path} cannot be written: {error.strerror}") from None

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as failure:
                self._disable(failure)

    def start(self, settings: SchedulerSettings) -> None:
        """The first line."""
        engine = fields_of(self._engine) if self._engine is not None else None
        self._write("start", 0.0, {"format": FORMAT, "format_version": FORMAT_VERSION, "version": VERSION,
                                   "settings": fields_of(settings), "engine": engine})  # fmt: skip
        self._flush()

    def decision(self, now: float, event: Event, commands: Iterable[Command]) -> None:
        """One event and the commands that answered it."""
        if self._file is None:
            return
        self._write("event", now, to_record(event))
        for command in commands:
            self._write("command", now, to_record(command))
        self._flush()

    def prompt(
        self, now: float, request_id: int, token_ids: Iterable[int], sampling: Sampling, stop_ids: Iterable[int]
    ) -> None:
        """The prompt of a request and the law by which tokens are drawn behind it, if content is logged."""
        if self._content:
            self._write("content", now, {"type": "Prompt", "request_id": request_id, "token_ids": list(token_ids),
                                         "sampling": fields_of(sampling), "stop_ids": list(stop_ids)})  # fmt: skip

    def drawn(self, now: float, request_id: int, token_ids: Iterable[int]) -> None:
        """Tokens drawn for a request, if content is logged."""
        if self._content:
            self._write("content", now, {"type": "Drawn", "request_id": request_id, "token_ids": list(token_ids)})

    def mask(self, now: float, request_id: int, mask: bytes | None, ahead: Iterable[bytes] = ()) -> None:
        """What the next draw of a constrained request may give, if content is logged; None for everything.

        ahead   the same behind tokens that are likely to be drawn first
        """
        if self._content:
            packed = _packed(mask) if mask is not None else None
            self._write("content", now, {"type": "Mask", "request_id": request_id, "mask": packed,
                                         "ahead": [_packed(each) for each in ahead]})  # fmt: skip

    def _write(self, kind: str, now: float, fields: dict[str, Any]) -> None:
        if self._logger is None:
            return
        try:
            self._logger.info(kind, seq=self._sequence, t=now, **fields)
        except OSError as error:
            self._disable(error)
        self._sequence += 1

    def _flush(self) -> None:
        if self._file is None:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._disable(error)

    def _disable(self, error: OSError) -> None:
        log.error(f"the event log is disabled: {error.strerror}")
        file, self._file, self._logger, self._content = self._file, None, None, False
        if file is not None and not file.closed:
            try:
                file.close()
            except OSError:
                return  # what it still held is lost with the disk that refused it, as the line above says


def _dumps(record: dict[str, Any], **_options: object) -> bytes:
    return orjson.dumps(record)
