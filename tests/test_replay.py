"""The replay tool: the same run again, and what it says of logs that do not follow from their events."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
import pytest

from ninfer.actors.eventlog import EventLog
from ninfer.errors import StartupError
from ninfer.replay import ReplayDiffers, main, replay
from ninfer.scheduler.events import Tick
from tests.support.direct import GREEDY
from tests.support.storm import Storm


@pytest.fixture(scope="module")
def log() -> list[bytes]:
    storm = Storm(7)
    storm.start()
    storm.blow(60)
    storm.calm()
    file = io.BytesIO()
    writer = EventLog(file, content=True)
    writer.start(storm.settings)
    for now, event, commands in storm.decisions:
        writer.decision(now, event, commands)
        writer.drawn(now, 1, (1, 2))
        writer.prompt(now, 1, (3,), GREEDY, (4,))
    return file.getvalue().splitlines(keepends=True)


def edited(log: list[bytes], line: int, **changes: object) -> list[bytes]:
    record = {**orjson.loads(log[line]), **changes}
    return [*log[:line], orjson.dumps(record) + b"\n", *log[line + 1 :]]


def first(log: list[bytes], kind: str) -> int:
    return next(n for n, line in enumerate(log) if orjson.loads(line)["event"] == kind)


def test_a_log_replays_whole_up_to_a_number_and_cut_off(log: list[bytes]) -> None:
    whole = replay(log)
    assert not whole.cut_short
    part = replay(log, until=20)
    assert part.cut_short
    assert 0 < part.events < whole.events
    torn = replay([*log[:-1], log[-1][:5]])
    assert torn.cut_short


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: [], "not an event log"),
        (lambda log: log[1:], "not an event log"),
        (lambda log: edited(log, 0, format_version=9), "format 9"),
        (lambda log: edited(log, 0, settings={}), "not those of this version"),
        (lambda log: log[:3] + log[4:], "record is missing"),
        (lambda log: [*log[:3], b"nonsense\n", *log[3:]], "not JSON"),
        (lambda log: [*log[:3], b"[]\n", *log[3:]], "not an object"),
        (lambda log: edited(log, first(log, "event"), type="Nothing"), "not an event of this version"),
        (lambda log: edited(log, first(log, "event"), type="Tick"), "not an event of this version"),
        (lambda log: edited(log, first(log, "command"), type="WarmUp"), "the replay gives"),
        (lambda log: edited(log, first(log, "command"), event="event"), "the log lacks the command"),
        (lambda log: edited(log, first(log, "content"), event="rumour"), "unknown kind"),
        (lambda log: edited(log, first(log, "content"), event="command"), "no further command"),
        (lambda log: log[: first(log, "command")], "the log ends before"),
    ],
)
def test_a_log_that_does_not_follow_from_its_events_is_refused(log, change, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ReplayDiffers, match=message):
        replay(change(log))


def test_an_event_that_breaks_a_rule_is_named_with_its_line(log: list[bytes]) -> None:
    line = first(log, "event")
    with pytest.raises(ReplayDiffers, match=f"line {line + 1}: Lifecycle"):
        replay(broken(log, line))


def broken(log: list[bytes], line: int) -> list[bytes]:
    record = orjson.loads(log[line])
    rule_breaker = {"seq": record["seq"], "t": record["t"], "type": "WarmedUp", "event": "event"}
    return [*log[:line], orjson.dumps(rule_breaker) + b"\n", *log[line + 1 :]]


def test_the_console_script(log: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    assert main([str(path)]) == 1
    assert "No such file" in capsys.readouterr().err
    path.write_bytes(b"".join(log))
    assert main([str(path)]) == 0
    assert "same" in capsys.readouterr().out
    assert main([str(path), "--until", "10"]) == 0
    assert "cut short" in capsys.readouterr().out
    path.write_bytes(b"".join(log[1:]))
    assert main([str(path)]) == 1
    assert "not an event log" in capsys.readouterr().err


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    with EventLog.open(path) as log:
        log.start(Storm(1).settings)
    assert path.read_bytes().endswith(b"\n")
    with pytest.raises(StartupError, match="exists already"):
        EventLog.open(path)
    with pytest.raises(StartupError, match="cannot be written"):
        EventLog.open(tmp_path / "missing" / "events.log")
    with EventLog.open(None) as nothing:
        nothing.start(Storm(1).settings)


def test_a_disk_that_refuses_a_record_ends_the_log_and_nothing_else() -> None:
    class Full(io.BytesIO):
        def flush(self) -> None:
            if self.tell() > 2000:
                raise OSError(28, "No space left on device")

    file = Full()
    log = EventLog(file, content=True)
    storm = Storm(3)
    log.start(storm.settings)
    for n in range(40):
        log.decision(float(n), Tick(), ())
        log.prompt(float(n), 1, [1, 2], GREEDY, [])
    log.__exit__(None, None, None)
    assert file.closed


@pytest.mark.parametrize("settings", [None, 1, True, [[]]])
def test_settings_that_are_none(log: list[bytes], settings: object) -> None:
    first = orjson.loads(log[0]) | {"settings": settings}
    with pytest.raises(ReplayDiffers, match="settings"):
        replay([orjson.dumps(first) + b"\n", *log[1:]])
