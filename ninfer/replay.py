"""`ninfer-replay LOG`: feed the events of a log to a fresh scheduler and fail at the first command that differs.

Exit status 0: every decision was made again. 1: one was not, or the log is damaged. 2: usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition, NinferError
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.records import FORMAT, FORMAT_VERSION, BadRecord, build, from_record, to_record


class ReplayDiffers(NinferError):
    """The log does not follow from its own events."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay went through."""

    events: int
    commands: int
    requests: int
    cut_short: bool


def read_records(lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Numbered records; None for a last line that was cut off when the process died."""
    pending: tuple[int, bytes] | None = None
    for number, line in enumerate(lines, 1):
        if pending is not None:
            yield pending[0], _parse(*pending)
        pending = (number, line)
    if pending is not None:
        yield pending[0], _parse(*pending) if pending[1].endswith(b"\n") else None


def _parse(number: int, line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ReplayDiffers(f"line {number} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ReplayDiffers(f"line {number} is not an object")
    return record


def replay(lines: Iterable[bytes], until: int | None = None) -> Replayed:
    """Run a log again, up to sequence number `until` if given; the first difference raises :class:`ReplayDiffers`."""
    records = read_records(lines)
    scheduler = Scheduler(_settings(records))
    expected: list[dict[str, Any]] = []
    events = commands = 0
    cut_short = False
    for sequence, (number, record) in enumerate(records, 1):
        if record is None:
            cut_short = True
            break
        if record.pop("seq", None) != sequence:
            raise ReplayDiffers(f"line {number}: a record is missing before this one")
        if until is not None and sequence > until:
            cut_short = True
            break
        kind, now = record.pop("event", None), record.pop("t", None)
        if kind == "event":
            if expected:
                raise ReplayDiffers(f"line {number}: the log lacks the command {expected[0]}")
            expected = _decide(scheduler, record, now, number)
            events += 1
        elif kind == "command":
            if not expected or expected[0] != record:
                wanted = expected[0] if expected else "no further command"
                raise ReplayDiffers(f"line {number}: the log has {record}, the replay gives {wanted}")
            expected.pop(0)
            commands += 1
        elif kind != "content":
            raise ReplayDiffers(f"line {number}: unknown kind of record {kind!r}")
    if expected and not cut_short:
        raise ReplayDiffers(f"the log ends before the command {expected[0]}")
    return Replayed(events, commands, scheduler.statistics().totals.admitted, cut_short)


def _settings(records: Iterator[tuple[int, dict[str, Any] | None]]) -> SchedulerSettings:
    _number, first = next(records, (0, None))
    if first is None or first.get("format") != FORMAT:
        raise ReplayDiffers("this is not an event log (write one with ninfer-serve --event-log FILE)")
    if first.get("format_version") != FORMAT_VERSION:
        raise ReplayDiffers(f"event log format {first.get('format_version')} is not {FORMAT_VERSION}")
    try:
        settings = build(SchedulerSettings, first.get("settings", {}))
    except (BadRecord, TypeError) as error:
        raise ReplayDiffers(f"the settings of this log are not those of this version: {error}") from None
    assert isinstance(settings, SchedulerSettings)
    return settings


def _decide(scheduler: Scheduler, record: dict[str, Any], now: Any, number: int) -> list[dict[str, Any]]:
    try:
        event = from_record(record)
        commands = scheduler.handle(event, float(now))
    except (BadRecord, KeyError, TypeError, ValueError) as error:
        raise ReplayDiffers(f"line {number}: not an event of this version: {error}") from None
    except IllegalTransition as error:
        raise ReplayDiffers(f"line {number}: {error}") from None
    return [to_record(command) for command in commands]


def main(argv: list[str] | None = None) -> int:
    """The console script."""
    parser = argparse.ArgumentParser(prog="ninfer-replay", description=__doc__)
    parser.add_argument("log", type=Path, metavar="LOG", help="a file written with ninfer-serve --event-log")
    parser.add_argument("--until", type=int, metavar="SEQ", help="stop after this sequence number")
    options = parser.parse_args(argv)
    try:
        with options.log.open("rb") as lines:
            result = replay(lines, options.until)
    except OSError as error:
        print(f"error: {options.log}: {error.strerror}", file=sys.stderr)
        return 1
    except ReplayDiffers as error:
        print(f"error: {options.log}: {error}", file=sys.stderr)
        return 1
    ending = " (the log was cut short)" if result.cut_short else ""
    print(f"replayed {result.events} events and {result.commands} commands of {result.requests} requests: same{ending}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
