"""A machine that says, while it is replayed, what it chose between: the scheduler with an ear at its three choices.

Choices leave no trace in the log, but they can be made again: the same events lead the same machine to the same point,
where what it holds can be looked at. Nothing here changes what it does; a replay compares all of that with the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ninfer.config import SchedulerSettings
from ninfer.explain.account import FILE, Cause, Holder, LaneChoice
from ninfer.scheduler import commands as cmd
from ninfer.scheduler.candidates import next_to_read
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.open_blocks import OpenBlock
from ninfer.scheduler.prefixes import Node
from ninfer.scheduler.requests import WITH_LANE, Request
from ninfer.scheduler.reuse import Plan, Session
from ninfer.scheduler.transitions import LaneState, Lifecycle, RequestState
from ninfer.scheduler.waiting import candidates, in_order
from ninfer.step import CaptureState, LoadPages, PageMapping

IDLE = (LaneState.EMPTY, LaneState.RETAINED)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request was promised a lane and pages."""

    request: Request
    lane: int
    pages: int
    choices: tuple[LaneChoice, ...]
    passed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Blocks that nobody used went for pages of a request: `images` with them, and the sessions of `lanes`."""

    request: Request
    pages: int
    parked: int
    images: int
    lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Began:
    """What a request reuses was settled.

    path        reused blocks; `open` is the one behind them in which it goes on, if it does
    image       number of the one its state comes from, None for the lane's own or none
    session     its number from here on; `displaced` what stood in the lane, who left it, whether its state is an image
    stored      images captured of states that the lane had before its first chunk, and whose states they are
    """

    request: Request
    command: cmd.Admit
    path: tuple[Node, ...]
    open: OpenBlock | None
    image: int | None
    loaded_pages: int
    session: int
    displaced: Session | None
    displaced_from: int
    displaced_is_stored: bool
    stored: tuple[tuple[int, int], ...]


class WitnessScheduler(Scheduler):
    """The scheduler; `admitted`, `began` and `gave_up` are of the newest decision, and emptied by whoever reads them.

    left_by   session number to the request that it belongs or belonged to last
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.admitted: list[Admitted] = []
        self.began: list[Began] = []
        self.gave_up: list[GaveUp] = []
        self.left_by: dict[int, int] = {}
        self._forgotten: list[int] = []

    def _admit_one(self, idle: list[int]) -> bool:
        queue, order = list(self._queue), candidates(self._queue, self._now)
        choices = {request.id: self._choices(request, idle) for request in order}
        if not super()._admit_one(idle):
            return False
        (request,) = set(queue) - set(self._queue)
        assert request.lane is not None
        self.admitted.append(
            Admitted(
                request,
                request.lane,
                self.holdings._holds[request.id].needed,
                choices[request.id],
                tuple(other.id for other in order[: order.index(request)]),
            )
        )
        return True

    def _begin(self, request: Request) -> None:
        assert request.lane is not None
        holdings, displaced = self.holdings, self.holdings.sessions[request.lane]
        displaced_from = FILE if displaced is None else self.left_by.get(displaced.number, FILE)
        plan = holdings._plan(request, holdings._known(request), request.lane, holdings._holds[request.id])
        number = plan.image.id if plan.image is not None else None
        pending = len(holdings._pending)
        with self._noting(request):
            super()._begin(request)
        hold, command = holdings._holds[request.id], self._out[-1]
        assert isinstance(command, cmd.Admit), "it is the last word of a beginning"
        self.left_by[hold.session] = request.id
        transfers = holdings._pending[pending:]
        frontier = displaced.resident.image if displaced is not None and displaced.resident is not None else None
        captured = [step.image for step in transfers if isinstance(step, CaptureState)]
        self.began.append(
            Began(
                request,
                command,
                tuple(hold.path),
                plan.open,
                number,
                sum(len(step.pages) for step in transfers if isinstance(step, LoadPages)),
                hold.session,
                displaced,
                displaced_from,
                frontier is not None,
                tuple((at, displaced_from if frontier and frontier.id == at else request.id) for at in captured),
            )
        )

    def _extend(self, request: Request, tokens: int) -> PageMapping:
        with self._noting(request):
            return super()._extend(request, tokens)

    @contextmanager
    def _noting(self, request: Request) -> Iterator[None]:
        """What is given up meanwhile goes for this request."""
        tree, room = self.holdings.tree, self.holdings.room
        pages, parked, images = tree.evictions, tree.parks, room.dropped
        self._forgotten = []
        yield
        if tree.evictions > pages:
            self.gave_up.append(
                GaveUp(
                    request,
                    tree.evictions - pages,
                    tree.parks - parked,
                    room.dropped - images,
                    tuple(self._forgotten),
                )
            )

    def _forget_sessions(self, lanes: Sequence[int]) -> None:
        self._forgotten.extend(lanes)
        super()._forget_sessions(lanes)

    # --- looking, between two events -------------------------------------------------------------------------------

    def _choices(self, request: Request, idle: Sequence[int]) -> tuple[LaneChoice, ...]:
        """What every idle lane has to offer, best first as the scheduler ranks them (serving spec, 14.3)."""
        holdings = self.holdings
        path = holdings._known(request)
        made = []
        for lane in idle:
            session, plan = holdings.sessions[lane], holdings._plan(request, path, lane)
            tokens, retained, left_by = (0, 0, FILE) if session is None else self._view(session)
            choice = LaneChoice(lane, plan.tokens, _source(plan), tokens, left_by)
            made.append(((-plan.tokens, tokens, retained, lane), choice))
        return tuple(choice for _rank, choice in sorted(made, key=lambda entry: entry[0]))

    def _view(self, session: Session) -> tuple[int, int, int]:
        return session.tokens, session.retained, self.left_by.get(session.number, FILE)

    def owner_of(self, lane: int) -> int:
        """The request that left what the lane retains."""
        session = self.holdings.sessions[lane]
        return FILE if session is None else self._view(session)[2]

    def cause(self, request: Request) -> Cause | None:
        """Why the request does not run at this moment; None if it does, or has ended."""
        if request.state is RequestState.PREPARING:
            return Cause("preparing")
        if request.state is RequestState.WAITING:
            return self._cause_in_queue(request)
        if request.state in WITH_LANE and not request.started:
            return self._cause_behind_device(request)
        return None

    def _cause_in_queue(self, request: Request) -> Cause:
        order = in_order(self._queue, self._now)
        ahead = tuple(other.id for other in order[: order.index(request)])
        if self.lifecycle is not Lifecycle.SERVING:
            return Cause("stopping", ahead=ahead)
        idle = [lane for lane, state in enumerate(self.lanes) if state in IDLE]
        if not idle:
            return Cause("lanes", self._lane_holders(), ahead)
        plan = self.holdings._choose(request, idle)
        wanted = self.holdings._needed(request, plan)
        spared = sum(node.page is not None and node.users == 0 for node in plan.path)
        available = max(0, self.holdings.room.to_promise(plan.open) - spared)
        kind = "order" if ahead else "pages"
        return Cause(kind, self._page_holders(), ahead, wanted, available)

    def _cause_behind_device(self, request: Request) -> Cause:
        running = [other for other in self.requests.values() if other.lane is not None]
        present = next_to_read(running, self.holdings, self._now)
        begun = [other for other in running if other.started and other.read < other.prompt]
        joined = [other for other in begun if self.holdings.waits_for(request, other)]
        if joined:
            return Cause("joins", tuple(self._holder(other) for other in joined))
        readers = begun or [other for other in (present,) if other is not None and other is not request]
        return Cause("device", tuple(self._holder(other) for other in readers))

    def _holder(self, request: Request) -> Holder:
        assert request.lane is not None
        pages = self.pages._promised.get(request.id, 0) + len(self.pages._owned.get(request.id, ()))
        return Holder(request.lane, request.id, self.lanes[request.lane].name, pages)

    def _lane_holders(self) -> tuple[Holder, ...]:
        taken = {request.lane: request for request in self.requests.values() if request.lane is not None}
        return tuple(
            Holder(lane, taken[lane].id if lane in taken else None, state.name)
            for lane, state in enumerate(self.lanes)
            if state not in IDLE
        )

    def _page_holders(self) -> tuple[Holder, ...]:
        running = [self._holder(request) for request in self.requests.values() if request.lane is not None]
        return tuple(sorted(running, key=lambda holder: (-holder.pages, holder.lane)))


def _source(plan: Plan) -> str:
    if not plan.tokens:
        return "none"
    return "own" if plan.image is None else plan.image.kind.value
