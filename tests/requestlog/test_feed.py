"""Watchers of the request log."""

from __future__ import annotations

from pathlib import Path

import orjson

from ninfer.requestlog.feed import RECENT, Feed
from ninfer.requestlog.records import Record
from ninfer.requestlog.writer import RequestLog


def record(n: int, event: str = "request_done") -> Record:
    return {"event": event, "n": n}


def test_a_watcher_is_told_the_start_the_recent_past_and_what_comes() -> None:
    feed, woken = Feed(), []
    feed.publish(record(0, "server_start"))
    for n in range(1, RECENT + 3):
        feed.publish(record(n))
    watcher = feed.watch(lambda: woken.append(1))
    past = watcher.take()
    assert past == [record(0, "server_start"), *(record(n) for n in range(3, RECENT + 3))]
    assert watcher.take() == []
    feed.publish(record(9))
    assert (watcher.take(), len(woken)) == ([record(9)], 1)


def test_before_the_start_there_is_nothing_to_tell() -> None:
    assert Feed().watch(lambda: None).take() == []


def test_a_slow_watcher_loses_its_oldest_records_and_others_none() -> None:
    feed = Feed()
    slow, quick = feed.watch(lambda: None), feed.watch(lambda: None)
    taken = []
    for n in range(3 * RECENT):
        feed.publish(record(n))
        taken += quick.take()
    assert len(taken) == 3 * RECENT
    left = slow.take()
    assert left[-1] == record(3 * RECENT - 1)
    assert len(left) == RECENT + 1


def test_who_leaves_is_told_nothing() -> None:
    feed = Feed()
    watcher = feed.watch(lambda: None)
    assert feed.watchers == 1
    feed.leave(watcher)
    feed.publish(record(1))
    assert (feed.watchers, watcher.take()) == (0, [])


def test_the_log_feeds_what_it_writes_with_a_file_and_without(tmp_path: Path) -> None:
    for path in (tmp_path / "log", None):
        log = RequestLog(path, instance_id="serve-1-2", unix_time=lambda: 1.5)
        log.write("request_start", {"n": 1})
        (fed,) = log.feed.watch(lambda: None).take()
        log.close()
        assert (fed["event"], fed["n"], fed["server_instance_id"]) == ("request_start", 1, "serve-1-2")
        if path is not None:
            assert orjson.loads(path.read_bytes()) == fed
