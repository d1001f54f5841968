"""Saving, restoring and erasing what lanes retain (serving spec, 15): what the scheduler decides of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler.disk import Entry
from ninfer.scheduler.events import SlotAsked, SlotDone, SlotWritten
from ninfer.scheduler.holdings import Holdings
from ninfer.scheduler.images import Image, ImageKind
from ninfer.scheduler.prefixes import Node, path_to
from ninfer.scheduler.reuse import Session
from ninfer.scheduler.transitions import LaneSignal, LaneState
from ninfer.step import MOST_DRAFTS, PAGE_TOKENS

BUSY, MISMATCH = "slot_busy", "slot_session_mismatch"
SAVE_FAILED, RESTORE_FAILED = "slot_save_failed", "slot_restore_failed"
# A file of fewer tokens would hold nothing to go on from.
LEAST_TOKENS = 2


@dataclass(frozen=True, slots=True)
class _Job:
    """A save or a restore under way: what it keeps in use until it is done.

    node            the end of what it uses: of the whole session, or of what a restore finds there
    blocks, pages   of a restore: digests of all blocks of the file, and pages for those that were not there
    images          that are read or written, with the depth of each
    places          in host memory that a save reads
    faults          how many the engine had had when it began
    file            that the session belongs to once it is done
    evicted         whether the save is of a session that is about to be displaced, and `to_disk` whether it goes to
                    the disk cache
    """

    ticket: int
    node: Node
    images: tuple[tuple[int, Image], ...]
    faults: int
    tokens: int = 0
    blocks: tuple[str, ...] = ()
    pages: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    file: str = ""
    evicted: bool = False
    to_disk: bool = False


@dataclass(slots=True)
class _Writing:
    """A file that is being written: number of its session, and what the disk cache is to know of it, if it goes there.

    wanted   False once the session was erased
    """

    session: int
    entry: Entry | None
    wanted: bool = True


class Slots:
    """Moves lanes between RETAINED, SAVING and RESTORING; `say` gives a command.

    saves, restores, erases   that were done since the start
    auto_saves, auto_save_failures   of sessions that were about to be displaced
    disk_saves, disk_save_failures   of those that were to go to the disk cache
    """

    def __init__(
        self,
        holdings: Holdings,
        lanes: list[LaneState],
        move: Callable[[int, LaneSignal], None],
        say: Callable[[cmd.Command], None],
        *,
        saves: bool,
    ) -> None:
        self._holdings, self._lanes, self._move, self._say = holdings, lanes, move, say
        self._jobs: dict[int, _Job] = {}
        self.saves = 0
        self.restores = 0
        self.erases = 0
        self.auto_saves = 0
        self.auto_save_failures = 0
        self.disk_saves = 0
        self.disk_save_failures = 0
        self._saves_evicted = saves
        self._auto_ticket = 0  # counts down: tickets of those who ask are positive
        self._writing: dict[int, _Writing] = {}  # by ticket
        self._deferred: list[SlotAsked] = []

    @staticmethod
    def owner(lane: int) -> int:
        """Who pages of a restore are promised to; requests have positive numbers."""
        return -1 - lane

    def owners(self) -> set[int]:
        """Everybody of the kind who has pages now."""
        return {self.owner(lane) for lane in self._jobs if self._lanes[lane] is LaneState.RESTORING}

    def ask(self, event: SlotAsked, *, serving: bool) -> None:
        """Begin an action, or refuse it. Where the lane's request has ended and a step that still uses the lane has
        not landed, the action waits for that: the client has had its answer and knows nothing of the step.
        """
        state = self._lanes[event.lane]
        if state is LaneState.VACATING:
            self._deferred.append(event)
        elif state not in (LaneState.EMPTY, LaneState.RETAINED):
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
        self._erase_from_disk(event.lane)
        tokens = self._holdings.erase(event.lane)
        self.erases += 1
        if self._lanes[event.lane] is LaneState.RETAINED:
            self._move(event.lane, LaneSignal.DROPPED)
            self._say(cmd.Forget(event.lane))
        self._say(cmd.Erased(event.ticket, event.lane, tokens))

    def _erase_from_disk(self, lane: int) -> None:
        """Files of the disk cache that a lane's session has grown from, also one that is being written."""
        session = self._holdings.sessions[lane]
        if session is None:
            return
        for file in self._holdings.disk.forget({node.digest for node in path_to(session.tip)}):
            self._say(cmd.DropFile(file))
        for writing in self._writing.values():
            writing.wanted &= writing.session != session.number

    # --- before a session is displaced -----------------------------------------------------------------------------

    @property
    def holds_up(self) -> bool:
        """A session is being read and may be displaced as soon as it has been; until then nobody else may be."""
        return self._saves_evicted and LaneState.SAVING in self._lanes

    @property
    def being_read(self) -> set[Node]:
        """Blocks that are read for files."""
        saves = [job for lane, job in self._jobs.items() if self._lanes[lane] is LaneState.SAVING]
        return {node for job in saves for node in path_to(job.node)}

    def save_first(self, lane: int) -> bool:
        """Whether to wait until the lane's session has been read for its file; else it cannot be, and that is told.

        One of them is read or written at a time, so that no more than one lies in memory.
        """
        if self.holds_up or self._writing:
            return True
        session = self._holdings.sessions[lane]
        assert session is not None
        if not self._holdings.misses_slot_file(session):
            return self._save_to_disk(lane, session)
        read = self._begin_save(self._auto_ticket - 1, lane, session.file, evicted=True)
        if read is None:
            session.changed = False
            self.auto_save_failures += 1
            return False
        self._auto_ticket -= 1
        self._writing[read.ticket] = _Writing(session.number, None)
        self._say(cmd.SaveEvicted(session.file, read))
        return True

    def _save_to_disk(self, lane: int, session: Session) -> bool:
        session.offered = True
        read = self._begin_save(self._auto_ticket - 1, lane, "", evicted=True, to_disk=True)
        if read is None:
            self.disk_save_failures += 1
            return False
        self._auto_ticket -= 1
        path = path_to(self._jobs[lane].node)[: read.state // PAGE_TOKENS]
        states = (*(frontier // PAGE_TOKENS for frontier, _image in read.checkpoints), len(path))
        entry = Entry(self._holdings.disk.new_name(), tuple(node.digest for node in path), states, 0)
        self._writing[read.ticket] = _Writing(session.number, entry)
        self._say(cmd.SaveEvicted(entry.file, read, to_disk=True))
        return True

    def written(self, event: SlotWritten) -> None:
        """The file is there, or could not be written; then the next occasion is taken."""
        writing = self._writing.pop(event.ticket, None)
        if writing is None:
            raise IllegalTransition(f"a file was written for nobody: ticket {event.ticket}")
        if writing.entry is not None:
            self._written_to_disk(event, writing, writing.entry)
            return
        self.auto_saves += event.ok
        self.auto_save_failures += not event.ok
        for session in self._holdings.sessions:
            if session is not None and session.number == writing.session and not event.ok:
                session.changed = True

    def _written_to_disk(self, event: SlotWritten, writing: _Writing, entry: Entry) -> None:
        self.disk_saves += event.ok
        self.disk_save_failures += not event.ok
        if not event.ok:
            return
        gone = self._holdings.disk.add(replace(entry, bytes=event.bytes)) if writing.wanted else [entry.file]
        for file in gone:
            self._say(cmd.DropFile(file))

    def deferred(self) -> list[SlotAsked]:
        """What has waited for such a save or for a lane, to be asked for again."""
        waiting, self._deferred = self._deferred, []
        return waiting

    def _has_to_wait(self, event: SlotAsked, short: int, path: list[Node]) -> bool:
        """Whether a restore waits until sessions that it displaces are saved."""
        if not self._saves_evicted:
            return False
        session = self._holdings.sessions[event.lane]
        while session is not None and self._holdings.is_unsaved(session):
            if self.save_first(event.lane):
                return True
        return self._others_come_first(event, short, path)

    def _others_come_first(self, event: SlotAsked, short: int, path: list[Node]) -> bool:
        """Whether to wait until sessions of other lanes are saved that lose blocks when so many pages are given up with
        `path` in use.
        """
        if not self._saves_evicted or short <= 0:
            return False
        others = [lane for lane in range(len(self._lanes)) if lane != event.lane]
        if any(self._lanes[lane] is LaneState.SAVING for lane in others):
            return True
        while (lane := self._holdings.endangered(short, path, others)) is not None:
            # The lane may belong to a request that has not begun and may leave its session there.
            if self._lanes[lane] is not LaneState.RETAINED or self.save_first(lane):
                return True
        return False

    # --- save ------------------------------------------------------------------------------------------------------

    def _save(self, event: SlotAsked) -> None:
        session, room = self._holdings.sessions[event.lane], self._holdings.room
        if session is not None:
            # What is read cannot be given up meanwhile, and others go for what was promised.
            short = min(room.to_give_up(0), room.spare())
            if self._others_come_first(event, short, path_to(session.tip)):
                self._deferred.append(event)
                return
        read = self._begin_save(event.ticket, event.lane, event.file, evicted=False)
        if read is None:
            self._refuse(event, SAVE_FAILED)
        else:
            self._say(read)

    def _begin_save(
        self, ticket: int, lane: int, file: str, *, evicted: bool, to_disk: bool = False
    ) -> cmd.ReadSession | None:
        """None, and nothing done, if there is no session or none whose state is there."""
        holdings = self._holdings
        session = holdings.sessions[lane]
        if session is None or session.tokens < LEAST_TOKENS:
            return None
        node = holdings.state_of(session)
        tokens, executed = session.tokens, session.executed
        if to_disk:  # whoever comes back goes on from the state, wherever that is
            tokens = executed = node.depth * PAGE_TOKENS
        path = path_to(node)
        # A block with a page is never behind one without.
        pages = tuple(step.page for step in path if step.page is not None)
        places = tuple(step.place for step in path if step.place is not None)
        # A file has to hold the state of the block in which the session ends (15.4), or in which its last round began,
        # on this server or on one that guesses more and has saved what was restored here.
        ends_here = executed - node.depth * PAGE_TOKENS <= PAGE_TOKENS + MOST_DRAFTS
        image = node.image
        capture = ends_here and image is None and node.depth > 0
        if capture:
            image = holdings.images.take(ImageKind.FRONTIER, session.number)
        if not ends_here or (capture and image is None):
            return None
        if capture and image is not None:
            holdings.images.attach(image, node)
        checkpoints = self._checkpoints(lane, node)
        used = (((node.depth, image),) if image is not None else ()) + checkpoints
        holdings.tree.use(session.tip)
        holdings.tree.hold(places)
        for _depth, kept in used:
            kept.users += 1
        self._jobs[lane] = _Job(
            ticket, session.tip, used, holdings.faults, places=places, file=file, evicted=evicted, to_disk=to_disk
        )
        self._move(lane, LaneSignal.SAVE)
        return cmd.ReadSession(
            ticket,
            lane,
            tokens,
            executed,
            node.depth * PAGE_TOKENS,
            image.id if image is not None else -1,
            capture,
            pages,
            places,
            holdings.faults,
            tuple((depth * PAGE_TOKENS, kept.id) for depth, kept in checkpoints),
            holdings.transfers(),
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
        if self._has_to_wait(event, holdings.room.to_give_up(missing), path):
            self._deferred.append(event)
            return
        holdings.tree.use(node)
        fits = missing <= holdings.room.to_promise()
        images = self._take_images(event, holdings.new_session()) if fits and event.blocks else ()
        if not fits or images is None:
            holdings.tree.leave(node)
            self._refuse(event, RESTORE_FAILED)
            return
        pages = holdings.room.hand_out(self.owner(lane), missing)
        holdings.displace(lane)
        self._say(cmd.Forget(lane))
        self._jobs[lane] = _Job(
            event.ticket, node, images, holdings.faults, event.tokens, event.blocks, pages, file=event.file
        )
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
        session = holdings.sessions[event.lane]
        if event.ok and session is not None and not job.to_disk:
            session.file, session.changed = job.file, False
        self.saves += event.ok and not job.evicted
        self._move(event.lane, LaneSignal.SAVED)
        if LaneState.SAVING not in self._lanes:
            holdings.merge_pages()
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
            number = number or holdings.new_session()
            # The last token of most sessions is in no cache; what else is behind the state will be read again.
            executed = max(job.tokens - 1, len(job.blocks) * PAGE_TOKENS)
            session = holdings.retain(lane, number, job.tokens, executed, path, None)
            session.file, session.changed = job.file, False
            self._move(lane, LaneSignal.RESTORED)
            self.restores += 1
        else:
            for _depth, image in job.images:
                holdings.images.drop(image)
            holdings.abandon(job.node)
            self._move(lane, LaneSignal.FREED)
            self._say(cmd.Forget(lane))
        holdings.pages.release(self.owner(lane))
