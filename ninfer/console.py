"""The console log: ``[YYYY-MM-DD HH:MM:SS.mmm] [level] text`` on standard error, local time (serving spec, 17)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import datetime
from typing import Any, TextIO

import structlog

LEVELS = {"trace": 0, "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50, "off": 60}


def configure_console(level: str, stream: TextIO | None = None, now: Callable[[], datetime] = datetime.now) -> None:
    """Send structlog records, and those that libraries give to :mod:`logging`, to the console.

    level    a key of `LEVELS`
    stream   standard error if None
    """
    target = stream if stream is not None else sys.stderr
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            lambda _logger, _method, record: render(record, now()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(min(LEVELS[level], logging.CRITICAL)),
        logger_factory=structlog.ReturnLoggerFactory() if level == "off" else structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(_LibraryFormatter(now))
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries speak up only when something is wrong with them.
    root.setLevel(max(LEVELS[level], logging.WARNING))


def render(record: MutableMapping[str, Any], now: datetime) -> str:
    """One record as text; members beside the event follow it as ``name=value``."""
    level = record.pop("level", "info")
    trace = record.pop("exception", None)
    event = record.pop("event", "")
    members = "".join(f" {name}={value}" for name, value in record.items())
    line = f"{_head(now, level)} {_on_one_line(f'{event}{members}')}"
    return f"{line}\n{trace}" if trace else line


def _on_one_line(text: str) -> str:
    """The text with what is not printable escaped: words of a client must not forge a line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _head(now: datetime, level: str) -> str:
    return f"[{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d}] [{level}]"


class _LibraryFormatter(logging.Formatter):
    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__("%(name)s: %(message)s")
        self._now = now

    def format(self, record: logging.LogRecord) -> str:
        return f"{_head(self._now(), record.levelname.lower())} {super().format(record)}"
