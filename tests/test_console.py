"""The console log's one format, for our records and for those of libraries."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest
import structlog

from ninfer.actors.eventlog import EventLog
from ninfer.config import SchedulerSettings
from ninfer.console import LEVELS, configure_console
from ninfer.scheduler.events import Tick

NOW = datetime(2026, 3, 4, 5, 6, 7, 89_000)


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, configuration = root.handlers, root.level, structlog.get_config()
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.configure(**configuration)


@pytest.mark.usefixtures("restored")
def test_records_of_both_kinds_look_alike() -> None:
    stream = io.StringIO()
    configure_console("info", stream, lambda: NOW)
    log = structlog.get_logger("any")
    log.info("req#1 submitted", prompt=3)
    log.debug("not shown")
    logging.getLogger("library").warning("%s is odd", "this")
    logging.getLogger("library").info("not shown")
    assert stream.getvalue() == (
        "[2026-03-04 05:06:07.089] [info] req#1 submitted prompt=3\n"
        "[2026-03-04 05:06:07.089] [warning] library: this is odd\n"
    )


@pytest.mark.usefixtures("restored")
def test_an_exception_brings_its_trace() -> None:
    stream = io.StringIO()
    configure_console("trace", stream, lambda: NOW)
    try:
        raise ValueError("inside")
    except ValueError:
        structlog.get_logger().exception("it failed")
    assert stream.getvalue().startswith("[2026-03-04 05:06:07.089] [error] it failed\nTraceback")
    assert "ValueError: inside" in stream.getvalue()


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("level", LEVELS)
def test_levels(level: str) -> None:
    stream = io.StringIO()
    configure_console(level, stream, lambda: NOW)
    structlog.get_logger().critical("worst")
    assert bool(stream.getvalue()) == (level != "off")


@pytest.mark.usefixtures("restored")
def test_words_of_a_client_stay_on_their_line() -> None:
    stream = io.StringIO()
    configure_console("info", stream, lambda: NOW)
    structlog.get_logger("any").info("rejected a\nb", type="x\n[2026] [info] forged \x1b[2J é")
    assert stream.getvalue() == (
        "[2026-03-04 05:06:07.089] [info] rejected a\\nb type=x\\n[2026] [info] forged \\x1b[2J é\n"
    )


def test_the_level_of_the_console_is_not_that_of_the_event_log() -> None:
    configure_console("off", io.StringIO(), lambda: NOW)
    file = io.BytesIO()
    log = EventLog(file)
    log.start(SchedulerSettings())
    log.decision(1.0, Tick(), ())
    assert len(file.getvalue().splitlines()) == 2
