"""`ninfer-replay LOG`: feed the events of a log to a fresh scheduler and fail at the first command that differs.

With --explain REQUEST it tells what the scheduler chose between for one request, by making its choices again. With
--execute MODEL the engine runs again too, and fails at the first token that differs.

Exit status 0: every decision was made again. 1: one was not, or the log is damaged. 2: usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from ninfer.config import SchedulerSettings
from ninfer.errors import ArtifactError, IllegalTransition, NinferError, StartupError
from ninfer.scheduler.commands import Command
from ninfer.scheduler.events import Event
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


class Onlooker:
    """Sees a run while it is replayed; by itself it only looks."""

    def scheduler(self, settings: SchedulerSettings) -> Scheduler:
        """The machine that the events are fed to."""
        return Scheduler(settings)

    def opened(self, header: Mapping[str, Any]) -> None:
        """The first line of the log."""

    def content(self, number: int, record: Mapping[str, Any]) -> None:
        """A line with token ids."""

    def decided(self, number: int, now: float, event: Event, commands: Sequence[Command]) -> None:
        """The machine has taken an event, line `number` of the log, and gives these commands."""

    @property
    def has_seen_all(self) -> bool:
        """Whether the rest of the log is of no interest."""
        return False


def replay(lines: Iterable[bytes], until: int | None = None, onlooker: Onlooker | None = None) -> Replayed:
    """Run a log again, up to sequence number `until` if given; the first difference raises :class:`ReplayDiffers`."""
    watching = onlooker if onlooker is not None else Onlooker()
    records = read_records(lines)
    header, settings = _opening(records)
    watching.opened(header)
    scheduler = watching.scheduler(settings)
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
            if watching.has_seen_all:
                cut_short = True
                break
            expected = [to_record(command) for command in _decide(scheduler, record, now, number, watching)]
            events += 1
        elif kind == "command":
            if not expected or expected[0] != record:
                wanted = expected[0] if expected else "no further command"
                raise ReplayDiffers(f"line {number}: the log has {record}, the replay gives {wanted}")
            expected.pop(0)
            commands += 1
        elif kind == "content":
            watching.content(number, record)
        else:
            raise ReplayDiffers(f"line {number}: unknown kind of record {kind!r}")
    if expected and not cut_short:
        raise ReplayDiffers(f"the log ends before the command {expected[0]}")
    return Replayed(events, commands, scheduler.statistics().totals.admitted, cut_short)


def _opening(records: Iterator[tuple[int, dict[str, Any] | None]]) -> tuple[dict[str, Any], SchedulerSettings]:
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
    return first, settings


def _decide(scheduler: Scheduler, record: dict[str, Any], now: Any, number: int, watching: Onlooker) -> list[Command]:
    try:
        event, at = from_record(record), float(now)
        commands = scheduler.handle(event, at)
    except (BadRecord, KeyError, TypeError, ValueError) as error:
        raise ReplayDiffers(f"line {number}: not an event of this version: {error}") from None
    except IllegalTransition as error:
        raise ReplayDiffers(f"line {number}: {error}") from None
    watching.decided(number, at, event, commands)
    return commands


def main(argv: list[str] | None = None) -> int:
    """The console script."""
    parser = argparse.ArgumentParser(prog="ninfer-replay", description=__doc__)
    parser.add_argument("log", type=Path, metavar="LOG", help="a file written with ninfer-serve --event-log")
    parser.add_argument("--until", type=int, metavar="SEQ", help="stop after this sequence number")
    parser.add_argument("--explain", metavar="REQUEST", help="tell why a request went as it did: its number or id")
    parser.add_argument("--json", action="store_true", help="the explanation for machines")
    parser.add_argument("--execute", type=Path, metavar="MODEL", help="run the engine again, and compare token ids")
    parser.add_argument("--device", type=_device, metavar="N|cpu|auto", help="to execute on (as in the log)")
    options = parser.parse_args(argv)
    if options.json and options.explain is None:
        parser.error("--json needs --explain")
    if options.explain is not None and options.execute is not None:
        parser.error("--explain and --execute are two things")
    if options.device is not None and options.execute is None:
        parser.error("--device needs --execute")
    do = _explain if options.explain is not None else _execute if options.execute is not None else _replay
    try:
        with options.log.open("rb") as lines:
            told = do(lines, options)
    except OSError as error:
        print(f"error: {error.filename or options.log}: {error.strerror}", file=sys.stderr)
        return 1
    except ReplayDiffers as error:
        print(f"error: {options.log}: {error}", file=sys.stderr)
        return 1
    except (ArtifactError, StartupError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(told)
    return 0


def _replay(lines: Iterable[bytes], options: argparse.Namespace) -> str:
    result = replay(lines, options.until)
    ending = " (the log was cut short)" if result.cut_short else ""
    return f"replayed {result.events} events and {result.commands} commands of {result.requests} requests: same{ending}"


def _explain(lines: Iterable[bytes], options: argparse.Namespace) -> str:
    from ninfer.explain.explainer import Explainer
    from ninfer.explain.text import lines_of

    explainer = Explainer(options.explain)
    replay(lines, options.until, explainer)
    if explainer.account is None:
        raise ReplayDiffers(f"there is no request {options.explain} in it")
    if options.json:
        return orjson.dumps(explainer.account, option=orjson.OPT_INDENT_2).decode()
    return "\n".join(lines_of(explainer.account))


def _execute(lines: Iterable[bytes], options: argparse.Namespace) -> str:
    # The numeric libraries take seconds to import: whoever only replays has no need of them.
    from ninfer.artifact.container import Artifact
    from ninfer.execute import Executor, Model

    with Artifact.open(options.execute) as artifact:
        executor = Executor(Model(artifact, options.execute, options.device))
        result = replay(lines, options.until, executor)
    on = f" on {executor.loaded.device}" if executor.loaded is not None else ""
    told = f"executed {executor.steps} steps{on} and compared {executor.tokens} tokens: same"
    if executor.stopped_at is not None:
        line, why = executor.stopped_at
        return f"{told} up to line {line}: {why}"
    return told + (" (the log was cut short)" if result.cut_short else "")


def _device(text: str) -> str:
    if text in ("cpu", "auto"):
        return text
    if text.isdecimal() and text.isascii():
        return f"cuda:{int(text)}"
    raise argparse.ArgumentTypeError("must be a number, cpu or auto")


if __name__ == "__main__":
    sys.exit(main())
