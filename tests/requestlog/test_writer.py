"""The file of the request log: no line lost or split by rotation, no request harmed by a bad disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from ninfer.errors import StartupError
from ninfer.requestlog.writer import RequestLog


def opened(path: Path | None, **options: Any) -> RequestLog:
    return RequestLog(path, instance_id="serve-1-2", unix_time=lambda: 1.5, **options)


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_records_are_appended_with_the_common_members(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for n in range(2):
        log = opened(path)
        log.write("request_start", {"n": n})
        log.close()
        log.write("request_start", {"n": "after the end"})
    assert lines(path) == [
        {
            "artifact_type": "ninfer_serve_request_log",
            "schema_version": 100,
            "event": "request_start",
            "timestamp_unix_ms": 1500,
            "server_instance_id": "serve-1-2",
            "n": n,
        }
        for n in range(2)
    ]


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_rotation_keeps_the_newest(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "log"
    log = opened(path, max_bytes=400, keep=keep)
    log.write("server_start", {"start": True})
    for n in range(20):
        log.write("request_start", {"n": n})
    log.close()
    kept = [tmp_path / f"log.{n}" for n in range(keep, 0, -1)]
    assert sorted(tmp_path.iterdir()) == sorted([path, *kept])
    numbers = [record["n"] for file in (*kept, path) for record in lines(file) if "n" in record]
    assert numbers == list(range(20 - len(numbers), 20))
    assert len(numbers) >= 2 * keep
    assert all(lines(file)[0]["event"] == "server_start" for file in (*kept, path))


def test_what_was_there_before_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"{}\n" * 200)
    log = opened(path, max_bytes=600)
    log.write("request_start", {})
    log.close()
    assert path.read_bytes() == b""
    assert len(lines(tmp_path / "log.1")) == 201


def test_no_path_is_no_log() -> None:
    log = opened(None)
    log.write("request_start", {})
    log.close()


def test_a_folder_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be opened"):
        opened(tmp_path / "absent" / "log")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_disables_the_log_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    log = opened(Path("/dev/full"))
    log.write("request_start", {})
    log.write("request_done", {})
    log.close()
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("the request log is disabled") == 1
