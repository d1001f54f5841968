"""Who is admitted next: first come, first served, but for a head that lacks pages (serving spec, 13.2)."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.scheduler.requests import Request

# A later request may pass the head of the queue this often.
PASSES_PER_HEAD = 8


def next_to_admit(queue: Sequence[Request], pages_available: int) -> Request | None:
    """The one in a queue that is not empty whose pages there are; None if it has to be waited for pages."""
    head = queue[0]
    candidates = queue if head.passed < PASSES_PER_HEAD else [head]
    return next((request for request in candidates if request.pages <= pages_available), None)
