"""Time as an argument: the real clock, and one that tests move by hand."""

from __future__ import annotations

from typing import Protocol

import anyio


class Clock(Protocol):
    """Seconds on the event loop's monotonic scale."""

    def now(self) -> float:
        """The time now."""
        ...

    async def wait_until(self, at: float) -> None:
        """Return once the time has come."""
        ...


class LoopClock:
    """The event loop's own clock."""

    def now(self) -> float:
        """The time now."""
        return anyio.current_time()

    async def wait_until(self, at: float) -> None:
        """Return once the time has come."""
        await anyio.sleep_until(at)
