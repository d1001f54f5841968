"""Who could be in the next step, if there is room for one on the device.

What is in flight counts as done: a chunk can follow a chunk of the same prompt, a row its row of the round before. A
stop token is not foreseen; the row that follows it is void.
"""

from __future__ import annotations

from collections.abc import Collection

from ninfer.scheduler.requests import STEPS, Request
from ninfer.scheduler.transitions import RequestState

_READS = frozenset({RequestState.READING, RequestState.READING_IN_STEP})
_DRAWS = frozenset({RequestState.GENERATING, RequestState.GENERATING_IN_STEP})


def next_to_read(requests: Collection[Request]) -> Request | None:
    """Prefill is serialised: the request admitted first is read to its end before the next one begins."""
    unread = [request for request in requests if request.state in _READS and request.read < request.prompt]
    return min(unread, key=lambda request: (request.read == 0, request.id)) if unread else None


def rows(requests: Collection[Request]) -> list[Request]:
    """Everybody who may draw one more token behind what is in flight, by lane."""
    ready = [r for r in requests if r.state in _DRAWS and r.drawn + STEPS[r.state] < r.limit]
    ready.sort(key=lambda request: (request.lane is None, request.lane))
    return ready


def first_draw_in_flight(requests: Collection[Request]) -> bool:
    """Somebody's prompt is being read to its end, and more than the token drawn by that is wanted."""
    return any(r.state is RequestState.READING_IN_STEP and r.read == r.prompt and r.limit > 1 for r in requests)
