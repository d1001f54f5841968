"""The records of the request log for those who watch: a few that are past, then each as it is written.

It works whether there is a file or not, and nobody waits for a watcher: one that is slow loses its oldest records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ninfer.requestlog.records import Record

# Serving spec, 4.10: what a new watcher is told of the past, and what a slow one may be behind.
RECENT = 512


class Watcher:
    """One who watches; `wake` is called when there is something new."""

    def __init__(self, wake: Callable[[], None], past: list[Record]) -> None:
        self.wake = wake
        self._waiting = deque(past, maxlen=RECENT + 1)

    def tell(self, record: Record) -> None:
        """Note a record for later."""
        self._waiting.append(record)
        self.wake()

    def take(self) -> list[Record]:
        """What has come since the last time, oldest first."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


class Feed:
    """Hands records to watchers.

    is_over   whether the server stops, and nobody should wait for more
    """

    def __init__(self) -> None:
        self.is_over = False
        self._start: Record | None = None
        self._recent: deque[Record] = deque(maxlen=RECENT)
        self._watchers: list[Watcher] = []

    @property
    def watchers(self) -> int:
        """How many there are."""
        return len(self._watchers)

    def publish(self, record: Record) -> None:
        """Tell everybody; a ``server_start`` is what later watchers are told first."""
        if record["event"] == "server_start":
            self._start = record
        else:
            self._recent.append(record)
        for watcher in self._watchers:
            watcher.tell(record)

    def end(self) -> None:
        """There is nothing more to wait for."""
        self.is_over = True
        for watcher in self._watchers:
            watcher.wake()

    def watch(self, wake: Callable[[], None]) -> Watcher:
        """A new watcher, who has the past to take already."""
        start = [] if self._start is None else [self._start]
        watcher = Watcher(wake, [*start, *self._recent])
        self._watchers.append(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Tell this one nothing any more."""
        self._watchers.remove(watcher)
