"""Saving, restoring and erasing what lanes retain (serving spec, 15): what the scheduler decides of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler.events import SlotAsked, SlotDone
from ninfer.scheduler.holdings import Holdings, path_to
from ninfer.scheduler.images import Image, ImageKind
from ninfer.scheduler.prefixes import Node
from ninfer.scheduler.transitions import LaneSignal, LaneState
from ninfer.step import PAGE_TOKENS

BUSY, MISMATCH = "slot_busy", "slot_session_mismatch"
SAVE_FAILED, RESTORE_FAILED = "slot_save_failed", "slot_restore_failed"
# A file of fewer tokens would hold nothing to go on from.
LEAST_TOKENS = 2


@dataclass(frozen=True, slots=True)
class _Job:
    """A save or a restore under way: what it keeps in use until it is done.

    blocks, pages   of a restore: digests of all blocks of the file, and pages for those that were not there
    images          that are read or written, with the depth of each
    places          in host memory that a save reads
    faults          how many the engine had had when it began
    """

    ticket: int
    node: Node
    images: tuple[tuple[int, Image], ...]
    faults: int
    tokens: int = 0
    blocks: tuple[str, ...] = ()
    pages: tuple[int, ...] = ()
    places: tuple[int, ...] = ()


class Slots:
    """Moves lanes between RETAINED, SAVING and RESTORING; `say` gives a command.

    saves, restores, erases   that were done since the start
    """

    def __init__(
        self,
        holdings: Holdings,
        lanes: list[LaneState],
        move: Callable[[int, LaneSignal], None],
        say: Callable[[cmd.Command], None],
    ) -> None:
        self._holdings, self._lanes, self._move, self._say = holdings, lanes, move, say
        self._jobs: dict[int, _Job] = {}
        self.saves = 0
        self.restores = 0
        self.erases = 0

    @staticmethod
    def owner(lane: int) -> int:
        """Who pages of a restore are promised to; requests have positive numbers."""
        return -1 - lane

    def owners(self) -> set[int]:
        """Everybody of the kind who has pages now."""
        return {self.owner(lane) for lane in self._jobs if self._lanes[lane] is LaneState.RESTORING}

    def ask(self, event: SlotAsked, *, serving: bool) -> None:
        """Begin an action, or refuse it."""
        state = self._lanes[event.lane]
        if state not in (LaneState.EMPTY, LaneState.RETAINED):
            self._refuse(event, BUSY)
        elif not event.expected:
            self._refuse(event, MISMATCH)
        elif event.action == "erase":
            self._erase(event)
        elif not serving:
            self._refuse(event, "service_unavailable")
        elif event.action == "save":
            self._save(event)
        else:
            self._restore(event)

    def _refuse(self, event: SlotAsked, code: str) -> None:
        self._say(cmd.RefuseSlot(event.ticket, code))

    def _erase(self, event: SlotAsked) -> None:
        tokens = self._holdings.erase(event.lane)
        self.erases += 1
        if self._lanes[event.lane] is LaneState.RETAINED:
            self._move(event.lane, LaneSignal.DROPPED)
            self._say(cmd.Forget(event.lane))
        self._say(cmd.Erased(event.ticket, event.lane, tokens))

    # --- save ------------------------------------------------------------------------------------------------------

    def _save(self, event: SlotAsked) -> None:
        lane, holdings = event.lane, self._holdings
        session = holdings.sessions[lane]
        if session is None or session.tokens < LEAST_TOKENS:
            self._refuse(event, SAVE_FAILED)
            return
        node = self._state_of(lane)
        path = path_to(node)
        # A block with a page is never behind one without.
        pages = tuple(step.page for step in path if step.page is not None)
        places = tuple(step.place for step in path if step.place is not None)
        # A file has to hold the state of the block in which the session ends (15.4), or in which its last round began.
        ends_here = session.executed - node.depth * PAGE_TOKENS <= PAGE_TOKENS + holdings.most_guesses
        image = node.image
        capture = ends_here and image is None and node.depth > 0
        if capture:
            image = holdings.images.take(ImageKind.FRONTIER, session.number)
        if not ends_here or (capture and image is None):
            self._refuse(event, SAVE_FAILED)
            return
        if capture and image is not None:
            holdings.images.attach(image, node)
        checkpoints = self._checkpoints(lane, node)
        used = (((node.depth, image),) if image is not None else ()) + checkpoints
        holdings.tree.use(node)
        holdings.tree.hold(places)
        for _depth, kept in used:
            kept.users += 1
        self._jobs[lane] = _Job(event.ticket, node, used, holdings.faults, places=places)
        self._move(lane, LaneSignal.SAVE)
        self._say(
            cmd.ReadSession(
                event.ticket,
                lane,
                session.tokens,
                session.executed,
                node.depth * PAGE_TOKENS,
                image.id if image is not None else -1,
                capture,
                pages,
                places,
                holdings.faults,
                tuple((depth * PAGE_TOKENS, kept.id) for depth, kept in checkpoints),
                holdings.transfers(),
            )
        )

    def _state_of(self, lane: int) -> Node:
        """The deepest block behind which the session can be gone on from: the lane itself stands there, or there is an
        image; the root if there is none.
        """
        session = self._holdings.sessions[lane]
        assert session is not None
        if session.resident is not None and session.resident.alive:
            return session.resident
        return next(
            (step for step in reversed(path_to(session.tip)) if step.image is not None), self._holdings.tree.root
        )

    def _checkpoints(self, lane: int, end: Node) -> tuple[tuple[int, Image], ...]:
        frontiers = set(self._holdings.turns(lane))
        return tuple(
            (step.depth, step.image)
            for step in path_to(end)[:-1]
            if step.image is not None and step.depth * PAGE_TOKENS in frontiers
        )

    # --- restore ---------------------------------------------------------------------------------------------------

    def _restore(self, event: SlotAsked) -> None:
        lane, holdings = event.lane, self._holdings
        path = holdings.tree.match(event.blocks, len(event.blocks))
        path = [node for node in path if node.page is not None]
        node = path[-1] if path else holdings.tree.root
        missing = len(event.blocks) - len(path)
        holdings.tree.use(node)
        fits = missing <= holdings.pages.available + holdings.tree.evictable
        images = self._take_images(event, holdings.new_session()) if fits and event.blocks else ()
        if not fits or images is None:
            holdings.tree.leave(node)
            self._refuse(event, RESTORE_FAILED)
            return
        holdings.make_room(missing)
        holdings.displace(lane)
        self._say(cmd.Forget(lane))
        holdings.pages.reserve(self.owner(lane), missing)
        pages = holdings.pages.take(self.owner(lane), missing)
        self._jobs[lane] = _Job(event.ticket, node, images, holdings.faults, event.tokens, event.blocks, pages)
        self._move(lane, LaneSignal.RESTORE)
        frontiers = tuple((depth * PAGE_TOKENS, image.id) for depth, image in images)
        before = holdings.transfers()
        self._say(cmd.WriteSession(event.ticket, lane, event.tokens, len(path), pages, frontiers, before))

    def _take_images(self, event: SlotAsked, session: int) -> tuple[tuple[int, Image], ...] | None:
        """Places for the state and for as many of the newest checkpoints as there are places; None without any."""
        taken: list[tuple[int, Image]] = []
        wanted = [(len(event.blocks), ImageKind.FRONTIER)]
        wanted += [(frontier // PAGE_TOKENS, ImageKind.TURN) for frontier in reversed(event.checkpoints)]
        for depth, kind in wanted:
            image = self._holdings.images.take(kind, session)
            if image is None:
                break
            image.users += 1
            taken.append((depth, image))
        return tuple(reversed(taken)) if taken else None

    # --- the end of either -----------------------------------------------------------------------------------------

    def done(self, event: SlotDone) -> None:
        """The engine has read or written the bytes."""
        job = self._jobs.get(event.lane)
        if job is None or job.ticket != event.ticket:
            raise IllegalTransition(f"lane {event.lane} is done with something that was never begun")
        for _depth, image in job.images:
            image.users -= 1
        if self._lanes[event.lane] is LaneState.RESTORING:
            self._end_restore(event, job)
        else:
            self._end_save(event, job)
        del self._jobs[event.lane]

    def _end_save(self, event: SlotDone, job: _Job) -> None:
        holdings = self._holdings
        holdings.tree.leave(job.node)
        if job.faults == holdings.faults:  # else nothing is held any more
            holdings.tree.let_go(job.places)
        self.saves += event.ok
        self._move(event.lane, LaneSignal.SAVED)
        if self._holdings.sessions[event.lane] is None:  # a fault meanwhile
            self._move(event.lane, LaneSignal.DROPPED)
            self._say(cmd.Forget(event.lane))

    def _end_restore(self, event: SlotDone, job: _Job) -> None:
        holdings, lane = self._holdings, event.lane
        good = event.ok and job.faults == holdings.faults
        number = 0
        if good:
            path = holdings.plant(self.owner(lane), job.node, job.blocks, job.pages)
            for depth, image in job.images:
                number = image.session or number
                holdings.images.attach(image, path[depth - 1])
            holdings.retain(lane, number or holdings.new_session(), job.tokens, job.tokens, path, None)
            self._move(lane, LaneSignal.RESTORED)
            self.restores += 1
        else:
            for _depth, image in job.images:
                holdings.images.drop(image)
            holdings.tree.leave(job.node)
            self._move(lane, LaneSignal.FREED)
            self._say(cmd.Forget(lane))
        holdings.pages.release(self.owner(lane))
