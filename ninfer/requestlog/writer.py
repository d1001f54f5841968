"""The file of the request log: one JSON object per line, flushed per record, rotated by renaming (serving spec, 16)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import orjson
import structlog

from ninfer.errors import StartupError
from ninfer.requestlog.feed import Feed
from ninfer.requestlog.records import Record

SCHEMA_VERSION = 100

log = structlog.get_logger(__name__)


class RequestLog:
    """Appends records; a write failure disables it with one error line and never fails a request.

    feed        tells watchers of every record, whether there is a file or not
    instance_id of the process, in every record
    path        None for no log
    max_bytes   a write that reaches it rotates; 0 is never
    keep        rotated files to keep, ``.1`` the newest; 0 deletes instead
    raises StartupError when the file cannot be opened
    """

    def __init__(
        self,
        path: Path | None,
        *,
        instance_id: str,
        unix_time: Callable[[], float],
        max_bytes: int = 0,
        keep: int = 4,
    ) -> None:
        self._path = path
        self.instance_id = instance_id
        self._unix_time = unix_time
        self._max_bytes = max_bytes
        self._keep = keep
        self._start: Record | None = None
        self.feed = Feed()
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = path.open("ab")
            except OSError as error:
                raise StartupError(f"--request-log-jsonl {path} cannot be opened: {error.strerror}") from None

    @property
    def is_written(self) -> bool:
        """Whether there is a file, and it takes what is written."""
        return self._file is not None

    def write(self, event: str, record: Record) -> None:
        """Append one record; ``server_start`` is repeated as the first line after each rotation."""
        if event == "server_start":
            self._start = record
        whole = self._whole(event, record)
        self.feed.publish(whole)
        if self._file is None:
            return
        try:
            self._append(whole)
            if self._max_bytes and self._file.tell() >= self._max_bytes:
                self._rotate()
        except OSError as error:
            self._disable(error)

    def close(self) -> None:
        """Write nothing any more."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _whole(self, event: str, record: Record) -> Record:
        return {
            "artifact_type": "ninfer_serve_request_log",
            "schema_version": SCHEMA_VERSION,
            "event": event,
            "timestamp_unix_ms": int(self._unix_time() * 1000),
            "server_instance_id": self.instance_id,
            **record,
        }

    def _append(self, whole: Record) -> None:
        assert self._file is not None
        self._file.write(orjson.dumps(whole, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def _rotate(self) -> None:
        assert self._file is not None
        assert self._path is not None
        self._file.close()
        if self._keep:
            for n in range(self._keep - 1, 0, -1):
                older = _numbered(self._path, n)
                if older.exists():
                    os.replace(older, _numbered(self._path, n + 1))
            os.replace(self._path, _numbered(self._path, 1))
        else:
            self._path.unlink()
        self._file = self._path.open("ab")
        if self._start is not None:
            self._append(self._whole("server_start", self._start))

    def _disable(self, error: OSError) -> None:
        log.error(f"the request log is disabled: {self._path}: {error.strerror}")
        file, self._file = self._file, None
        if file is not None and not file.closed:
            try:
                file.close()
            except OSError:
                return  # what it still held is lost with the disk that refused it, as the line above says


def _numbered(path: Path, n: int) -> Path:
    return path.with_name(f"{path.name}.{n}")
