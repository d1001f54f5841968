"""How many faults of the engine are too many (serving spec, section 1)."""

from __future__ import annotations

# Three faults in a row, each this close to the one before, with nothing completed between.
FAULTS_TO_LATCH = 3
FAULT_WINDOW_S = 30.0


class FaultStreak:
    """Faults in a row. A step that was behind a failed one is no fault of its own: it was void before it landed."""

    def __init__(self) -> None:
        self._count = 0
        self._newest_at = 0.0
        self.message = ""

    def add(self, now: float, message: str) -> None:
        """Another fault; one long after the last begins a new row."""
        close = self._count > 0 and now - self._newest_at < FAULT_WINDOW_S
        self._count = self._count + 1 if close else 1
        self._newest_at, self.message = now, message

    def end(self) -> None:
        """Something was completed."""
        self._count = 0

    @property
    def too_long(self) -> bool:
        """The engine cannot be trusted any more."""
        return self._count >= FAULTS_TO_LATCH
