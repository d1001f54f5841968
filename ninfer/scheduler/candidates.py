"""Who could be in the next step, if there is room for one on the device.

What is in flight counts as done: a chunk can follow a chunk of the same prompt, a row its row of the round before. A
stop token is not foreseen; the row that follows it is void. A request that draws under masks is the exception: its row
follows when the one before has landed and the mask is there, which may be the one that it had.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ninfer.scheduler.holdings import Holdings
from ninfer.scheduler.requests import STEPS, Request
from ninfer.scheduler.transitions import RequestState
from ninfer.scheduler.waiting import urgency

_READS = frozenset({RequestState.READING, RequestState.READING_IN_STEP})
_DRAWS = frozenset({RequestState.GENERATING, RequestState.GENERATING_IN_STEP})


# A prompt that is being read is set aside for one that has at most this part as much left to read.
SET_ASIDE_FOR = 0.5


def next_to_read(requests: Collection[Request], holdings: Holdings, now: float) -> Request | None:
    """Prefill is serialised: one prompt is read at a time, to its end unless a more urgent or a much shorter one comes.

    One that needs what the present one is about to store waits for it, and finds it there; so does one that needs what
    the last unit of a prompt stores, which may be in flight still. Urgency grows with waiting, so nobody is set aside
    for ever.
    """
    reading = [request for request in requests if request.state in _READS]
    unread = [request for request in reading if request.read < request.prompt]
    if len(reading) < 2:
        return unread[0] if unread else None

    def rank(request: Request) -> tuple[int, int, int]:
        return (urgency(request, now), holdings.expected_tokens(request), request.id)

    present = min((request for request in unread if request.started), key=rank, default=None)
    stores = [request for request in reading if request.read == request.prompt or request is present]
    fresh = [
        request
        for request in unread
        if not request.started and not any(holdings.waits_for(request, other) for other in stores)
    ]
    if present is None:
        return min(fresh, key=lambda request: (urgency(request, now), request.id), default=None)
    best = min(fresh, key=rank, default=present)
    level, left, _ = rank(present)
    new_level, new_left, _ = rank(best)
    shorter = new_level == level and new_left <= SET_ASIDE_FOR * left
    return best if new_level < level or shorter else present


def rows(requests: Collection[Request]) -> list[Request]:
    """Everybody who may draw one more token behind what is in flight, by lane."""
    ready = [r for r in requests if r.state in _DRAWS and r.drawn + STEPS[r.state] < r.limit and not _waits_to_land(r)]
    ready.sort(key=lambda request: (request.lane is None, request.lane))
    return ready


def with_pages(ready: Sequence[Request], holdings: Holdings, guesses: int) -> list[Request]:
    """Those of them who can grow now, where promised pages are in use by somebody who reads them for a file."""
    left, able = holdings.room.to_be_had, []
    for request in ready:
        needed = holdings.grows_by(request, request.position + 1 + min(guesses, request.open_drafts))
        if needed <= left:
            left -= needed
            able.append(request)
    return able


def may_read(request: Request, holdings: Holdings, tokens: int) -> bool:
    """Whether a prompt can be read on then, by at most so many tokens."""
    return holdings.unit_needs(request, tokens) <= holdings.room.to_be_had


def _waits_to_land(request: Request) -> bool:
    return request.masked and request.state is RequestState.GENERATING_IN_STEP


def masks_in_work(requests: Collection[Request]) -> bool:
    """Somebody will be ready to draw within moments, and must not find a long chunk in front of him."""
    return any(request.state is RequestState.MASKING for request in requests)


def first_draw_in_flight(requests: Collection[Request]) -> bool:
    """Somebody's prompt is being read to its end, and more than the token drawn by that is wanted."""
    return any(
        r.state is RequestState.READING_IN_STEP and r.read == r.prompt and r.limit > 1 and not r.masked
        for r in requests
    )
