"""The queue before admission: first come, first served, but for a head that lacks pages (serving spec, 13.2)."""

from __future__ import annotations

from ninfer.scheduler.requests import Request

# A later request may pass the head of the queue this often.
PASSES_PER_HEAD = 8


class WaitingLine:
    """Requests in the order in which they were submitted."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Behind everybody."""
        self._requests.append(request)

    def leave(self, request: Request) -> None:
        """The request has ended; it need not be in the queue."""
        if request in self._requests:
            self._requests.remove(request)

    def take(self, pages_available: int) -> Request | None:
        """Whoever is to be admitted next with so many pages, taken out of the queue; None if nobody is."""
        if not self._requests:
            return None
        head = self._requests[0]
        candidates = self._requests if head.passed < PASSES_PER_HEAD else [head]
        chosen = next((request for request in candidates if request.pages <= pages_available), None)
        if chosen is None:
            return None
        if chosen is not head:
            head.passed += 1
        self._requests.remove(chosen)
        return chosen
