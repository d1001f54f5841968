"""Who is admitted next: the most urgent, then the first come, but for a head that lacks pages (serving spec, 13.2)."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer.scheduler.requests import Request

# A later request may pass the head of the queue this often.
PASSES_PER_HEAD = 8
# A request grows more urgent by one step of priority for every so many seconds that it has waited.
AGEING_S = 30.0


def urgency(request: Request, now: float) -> int:
    """Lower goes first: the priority asked for, less one for every :data:`AGEING_S` since the request has come."""
    return request.priority - int((now - request.arrived) // AGEING_S)


def in_order(queue: Sequence[Request], now: float) -> list[Request]:
    """The queue, whoever goes first at the front."""
    return sorted(queue, key=lambda request: (urgency(request, now), request.id))


def candidates(queue: Sequence[Request], now: float) -> list[Request]:
    """Who may be admitted, the head of the queue first; nobody else once it has been passed often enough."""
    order = in_order(queue, now)
    return order if order[0].passed < PASSES_PER_HEAD else order[:1]
