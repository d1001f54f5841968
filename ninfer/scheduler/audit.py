"""Every lane, page, step and unit of capacity is accounted for; for tests and after faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ninfer.errors import IllegalTransition
from ninfer.scheduler.flight import Flight
from ninfer.scheduler.pages import PagePool
from ninfer.scheduler.requests import STEPS, WITH_LANE, Request
from ninfer.scheduler.transitions import DeviceState, LaneState

_CHUNK, _ROUND = True, False
# Which steps each state of the device has in flight; VOIDING does not say which kind its one is.
_KINDS: dict[DeviceState, tuple[bool, ...]] = {
    DeviceState.IDLE: (),
    DeviceState.PREFILL_CHUNK: (_CHUNK,),
    DeviceState.DECODE_ROUND: (_ROUND,),
    DeviceState.CHUNK_THEN_CHUNK: (_CHUNK, _CHUNK),
    DeviceState.CHUNK_THEN_ROUND: (_CHUNK, _ROUND),
    DeviceState.ROUND_THEN_CHUNK: (_ROUND, _CHUNK),
    DeviceState.ROUND_THEN_ROUND: (_ROUND, _ROUND),
    DeviceState.RECOVERING: (),
    DeviceState.LOST: (),
}


# Lanes in these states work for no request.
_IDLE = (LaneState.EMPTY, LaneState.RETAINED, LaneState.SAVING, LaneState.RESTORING)


def audit(
    requests: Mapping[int, Request], lanes: Sequence[LaneState], pages: PagePool, flight: Flight, slots: Set[int]
) -> None:
    """Raise :class:`IllegalTransition` unless everything belongs to exactly one owner."""
    with_lane = {request.id: request.lane for request in requests.values() if request.lane is not None}
    if sorted(with_lane.values()) != [lane for lane, state in enumerate(lanes) if state not in _IDLE]:
        raise IllegalTransition("a lane belongs to nobody, or to two")
    if set(pages.owners()) != {*with_lane, *slots}:
        raise IllegalTransition("a page belongs to nobody")
    in_flight = [request.id for step in flight.steps for request in step.requests]
    if flight.chunk is not None:
        in_flight.append(flight.chunk.request.id)
    for request in requests.values():
        if (request.state in WITH_LANE) != (request.lane is not None):
            raise IllegalTransition(f"request {request.id} is {request.state.name} with lane {request.lane}")
        steps = in_flight.count(request.id)
        if steps != STEPS.get(request.state, 0):
            raise IllegalTransition(f"request {request.id} is {request.state.name} and in {steps} steps")
    if not requests.keys() >= set(in_flight):
        raise IllegalTransition("a step in flight works for a request that is gone")
    kinds = tuple(not step.is_round for step in flight.steps)
    if len(kinds) != 1 if flight.device is DeviceState.VOIDING else kinds != _KINDS[flight.device]:
        raise IllegalTransition(f"the device is {flight.device.name} with {len(kinds)} steps in flight")
