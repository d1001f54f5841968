"""What of earlier requests can be gone on from, and who holds which pages and images: the memory of the scheduler.

Three things lie here: the tree of blocks that have been read, the images of states, and for every lane the session that
it retains, that is the history whose end its state still is. A request is planned at its admission, which promises it
pages (`room`) and the image it needs, and planned again when its first chunk is launched: what was read meanwhile by
others counts then (serving spec, 14.1 to 14.7 and 14.11).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition
from ninfer.scheduler.disk import DiskIndex
from ninfer.scheduler.images import Image, ImageKind, ImageStore, folded, states_on_the_way
from ninfer.scheduler.open_blocks import OpenBlock, may_go_on
from ninfer.scheduler.pages import PagePool
from ninfer.scheduler.prefixes import Node, PrefixTree, path_to
from ninfer.scheduler.requests import Request
from ninfer.scheduler.reuse import Begun, Hold, Plan, Session, way_of
from ninfer.scheduler.room import Room
from ninfer.step import (
    PAGE_TOKENS,
    CaptureState,
    LoadPages,
    PageMapping,
    RestoreState,
    Transfer,
    pages_for,
    standing_block,
)


class Holdings:
    """Pages, blocks, images and sessions of all lanes.

    trusted   whether what is held is what it should be; `faults` counts how often it was not
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self.tree = PrefixTree(settings.host_pages)
        self.images = ImageStore(settings.images)
        self.disk = DiskIndex(settings.disk_bytes, settings.disk_least_tokens, settings.disk_name)
        self.sessions: list[Session | None] = [None] * settings.lanes
        self.folds_late = False
        self.appends = False
        self.trusted = True
        self.faults = 0
        self._holds: dict[int, Hold] = {}
        self._pending: list[Transfer] = []
        self.room = Room(self.tree, self.images, self.sessions, self._pending, saves=settings.saves_sessions)
        self._sessions = 0

    def open(self, pages: int, folds_late: bool, appends: bool) -> None:
        """The engine is loaded and has so many pages."""
        self.room.pages = PagePool(pages)
        self.folds_late, self.appends = folds_late, appends

    @property
    def pages(self) -> PagePool:
        """The pool of pages."""
        return self.room.pages

    # --- admission -------------------------------------------------------------------------------------------------

    def admit(self, request: Request, idle: Sequence[int], *, head: bool) -> int | None:
        """Promise the request a lane and all its pages; None if there are not enough. Only for the head of the queue
        a session is displaced, and may a block have to be given up or brought back from host memory (13.2, 14.9).
        """
        plan = self._choose(request, idle)
        displaced = self.sessions[plan.lane]
        if not head and displaced is not None and not plan.continues(displaced):
            return None
        tip = self._tip(plan.path)
        if not head and self._resident_pages(plan.path) < plan.depth:
            return None
        self.tree.use(tip)
        needed = self._needed(request, plan)
        fits = needed <= self.room.to_promise(plan.open) if head else self.room.to_give_up(needed) <= 0
        if not fits:
            self.tree.leave(tip)
            return None
        if plan.image is not None:
            plan.image.users += 1
        if displaced is not None and plan.open is not None:
            displaced.open = None  # it is not to be given up
        self.room.promise(request.id, needed)
        if plan.open is not None:
            self.pages.pick_up(request.id, plan.open.page)
        # It follows the session also where blocks that it does not need are given up for it.
        file = displaced.file if displaced is not None and plan.continues(displaced) else ""
        self._holds[request.id] = Hold(
            path=list(plan.path), open=plan.open, image=plan.image, needed=needed, file=file
        )  # fmt: skip
        return plan.lane

    def unsaved(self, request: Request, idle: Sequence[int], taken: Sequence[int]) -> int | None:
        """A lane whose session has to go to its file before the request is admitted, which displaces it or may come to
        take its blocks; None if there is none, or the request cannot be admitted anyway. Lanes in `taken` belong to
        requests, some of which have not begun and may leave their lanes' sessions as they are.
        """
        plan = self._choose(request, idle)
        displaced = self.sessions[plan.lane]
        if displaced is not None and self.is_unsaved(displaced) and not plan.continues(displaced):
            return plan.lane
        short = self.room.to_give_up(self._needed(request, plan))
        others = [lane for lane in (*idle, *taken) if lane != plan.lane]
        return self.endangered(short, plan.path, others, plan.open)

    def endangered(
        self, short: int, path: Sequence[Node], lanes: Iterable[int], kept: OpenBlock | None = None
    ) -> int | None:
        """One of these lanes whose session has to go to its file before so many pages are given up with `path` in use.

        What was promised before is among these pages. Who leaves a session afterwards does not lose it to that: it is
        newer than the blocks that go for it.
        """
        if not 0 < short <= self.room.spare(kept):
            return None
        short = min(short, self.tree.evictable)
        for lane in lanes:
            session = self.sessions[lane]
            if session is None or session.tip.users or not self.is_unsaved(session):
                continue
            if session.tip.depth and not self.tree.survives(session.tip, short, path):
                return lane
        return None

    def is_unsaved(self, session: Session) -> bool:
        """Whether a session has to be read for a file before it is displaced."""
        return self.misses_slot_file(session) or self._misses_disk(session)

    def misses_slot_file(self, session: Session) -> bool:
        """Whether its slot file has less of it, and should not."""
        return self._settings.auto_save and bool(session.file) and session.changed

    def _misses_disk(self, session: Session) -> bool:
        """Whether the disk cache has less of it than what can be gone on from, and should not."""
        if not self.disk.capacity or not self.images.capacity or session.offered or session.tokens < self.disk.least:
            return False
        node = self.state_of(session)
        return node.depth * PAGE_TOKENS >= max(self.disk.least, PAGE_TOKENS) and not self.disk.has_state(node.digest)

    def state_of(self, session: Session) -> Node:
        """The deepest block behind which the session can be gone on from: the lane itself stands there, or there is an
        image; the root if there is none.
        """
        if session.resident is not None and session.resident.alive:
            return session.resident
        return next((step for step in reversed(path_to(session.tip)) if step.image is not None), self.tree.root)

    def reusable(self, request: Request, idle: Sequence[int]) -> int:
        """Blocks that it would reuse if it were admitted now."""
        return self._choose(request, idle).depth

    def _choose(self, request: Request, idle: Iterable[int]) -> Plan:
        """The idle lane that reuses most; of equal ones the one whose session is the smallest loss (14.3)."""
        path = self._known(request)
        plans = [self._plan(request, path, lane) for lane in idle]

        def rank(plan: Plan) -> tuple[int, int, int, int]:
            session = self.sessions[plan.lane]
            loss, retained = (session.tokens, session.retained) if session is not None else (0, 0)
            return (-plan.tokens, loss, retained, plan.lane)

        return min(plans, key=rank)

    def _known(self, request: Request) -> list[Node]:
        """Blocks of the prompt that are there; its last token is read in any case, since the answer follows it."""
        if not self.trusted or not self._settings.prefix_reuse:
            return []
        return self.tree.match(request.blocks, (request.prompt - 1) // PAGE_TOKENS)

    def _plan(self, request: Request, path: Sequence[Node], lane: int, hold: Hold | None = None) -> Plan:
        """The deepest reuse in a lane. Once it is settled that it is this one, as it is with a `hold`, every image is
        open to it.
        """
        session, settled = self.sessions[lane], hold is not None
        block = hold.open if hold is not None else session.open if session is not None else None
        if block is not None and (session is None or not may_go_on(request, path, block, session.resident)):
            block = None
        least = block.depth if block is not None else 0
        for depth in range(len(path), least, -1):
            node = path[depth - 1]
            if session is not None and session.resident is node:
                return Plan(lane, tuple(path[:depth]), None)
            if node.image is not None and (settled or self._is_open_to(node.image, session)):
                return Plan(lane, tuple(path[:depth]), node.image)
        return Plan(lane, tuple(path[:least]), None, block)

    def _is_open_to(self, image: Image, session: Session | None) -> bool:
        """A session's images are its own lane's while that is idle; else a request would leave its lane for another."""
        if image.session is None or (session is not None and image.session == session.number):
            return True
        return all(other is None or other.number != image.session for other in self.sessions)

    def _needed(self, request: Request, plan: Plan) -> int:
        """Pages that it needs beside those that are there."""
        return request.pages - self._resident_pages(plan.path) - (plan.open is not None)

    @staticmethod
    def _resident_pages(path: Sequence[Node]) -> int:
        return sum(node.page is not None for node in path)

    def _tip(self, path: Sequence[Node]) -> Node:
        return path[-1] if path else self.tree.root

    def _give_up(self, pages: Collection[int], images: Iterable[Image]) -> None:
        """Blocks are forgotten that had these."""
        self.pages.let_go(pages)
        for image in images:
            self.images.drop(image)

    def expected_tokens(self, request: Request) -> int:
        """Prompt tokens that would have to be read now; of a request that has begun, those that are left."""
        hold = self._holds[request.id]
        if hold.begun:
            return request.prompt - request.read
        return request.prompt - hold.promised

    def waits_for(self, request: Request, other: Request) -> bool:
        """Whether `other` is about to store a state that `request` could go on from, deeper than what it has now."""
        hold = self._holds[other.id]
        depth, last = len(self._holds[request.id].path), (request.prompt - 1) // PAGE_TOKENS
        return any(
            depth < at <= last and request.blocks[at - 1 : at] == other.blocks[at - 1 : at]
            for at in (*hold.captures, *hold.storing)
        )

    # --- reading ---------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> Begun:
        """Settle what the request reuses; transfers for it wait for the next step."""
        assert request.lane is not None
        hold, lane = self._holds[request.id], request.lane
        displaced = self.sessions[lane]
        plan = self._plan(request, self._known(request), lane, hold)
        if plan.tokens < hold.promised:
            raise IllegalTransition(f"request {request.id} was promised {hold.promised} tokens, {plan.tokens} are left")
        self.tree.use(self._tip(plan.path))
        self.tree.leave(self._tip(hold.path))
        self._hand_image(hold, plan.image)
        parked = [node for node in plan.path if node.page is None]
        if hold.open is not None and plan.open is None:  # others have read more meanwhile
            self.pages.hand_back(request.id, hold.open.page)
            hold.needed, hold.open = hold.needed + 1, None
        needed = self._needed(request, plan)
        self.pages.waive(request.id, hold.needed - needed)
        self._load(request, parked)
        continued = plan.continues(displaced)
        if displaced is not None:
            self._disown(displaced.number, plan.path if continued else ())
            if not (plan.path and displaced.resident is plan.path[-1]):  # for whoever comes back to this history
                self._surpass(displaced.resident)
                self._store(lane, displaced.resident, ImageKind.FRONTIER, None)
        if plan.image is not None:
            self._pending.append(RestoreState(plan.image.id, lane))
            self.images.touch(plan.image)
            self._hand_image(hold, None)
        self.tree.touch(plan.path)
        self.room.drop_open(displaced)
        self.sessions[lane] = None
        number = self.new_session()
        hold.session = displaced.number if continued and displaced is not None else number
        hold.path = list(plan.path)
        hold.begun = True
        request.read = request.executed = plan.tokens
        hold.captures = self._captures(request, plan.depth)
        self._store_here(request, hold)
        return Begun(request.read, way_of(plan, own=continued), bool(parked))

    def _hand_image(self, hold: Hold, image: Image | None) -> None:
        """Promise another image instead of the one promised so far."""
        if image is not None:
            image.users += 1
        if hold.image is not None:
            hold.image.users -= 1
        hold.image = image

    def _load(self, request: Request, parked: Sequence[Node]) -> None:
        pages = self.room.take(request.id, len(parked))
        places = []
        for node, page in zip(parked, pages, strict=True):
            places.append(self.tree.load(node, page))
            self.pages.keep(request.id, page)
        if parked:
            self._pending.append(LoadPages(tuple(places), pages))

    def _store(self, lane: int, node: Node | None, kind: ImageKind, session: int | None) -> bool:
        """Keep the state of a lane that stands behind `node`, before it is overwritten."""
        if node is None or not node.alive or node.image is not None:
            return False
        image = self.images.take(kind, session)
        if image is None:
            return False
        self._pending.append(CaptureState(lane, image.id))
        return self.images.attach(image, node)

    def _store_here(self, request: Request, hold: Hold) -> None:
        """Store what is wanted of the state that the request begins with."""
        assert request.lane is not None
        kind = self._wanted(hold, len(hold.path))
        if kind is not None and self._store(request.lane, self._tip(hold.path), kind, hold.owner_of(kind)):
            self._settle(kind, request, hold)

    def _wanted(self, hold: Hold, depth: int) -> ImageKind | None:
        """As what the state at a depth is to be stored, if there may be one more of that; asked for once."""
        kind = hold.captures.pop(depth, None)
        return None if kind is ImageKind.SHARED and not self._admits_shared() else kind

    def _settle(self, kind: ImageKind, request: Request, hold: Hold) -> None:
        """With a new image of a kind others may go."""
        if kind is ImageKind.TURN:
            self._fold(hold)
        elif kind is ImageKind.ANCHOR:
            self._drop_old_anchors(hold, request)

    def _disown(self, number: int, path: Sequence[Node] = ()) -> None:
        """Images of a session that are not on the path it goes on from belong to nobody any more."""
        for image in self.images.stored:
            node = image.node
            on_path = node is not None and node.depth <= len(path) and path[node.depth - 1] is node
            if image.session == number and not on_path:
                image.session = None

    def _surpass(self, node: Node | None) -> None:
        """Nobody's states in front of a node that is about to have one are worth less than any other."""
        if node is None or not node.alive:
            return
        for step in path_to(node)[:-1]:
            if step.image is not None and step.image.session is None:
                step.image.surpassed = True

    def _captures(self, request: Request, depth: int) -> dict[int, ImageKind]:
        """States worth storing from depth `depth` on, where the prompt passes them (14.4, 14.11)."""
        if not self.images.capacity or not self._settings.prefix_reuse:
            return {}
        wanted = states_on_the_way(request.marks, shared=self._settings.max_shared_prefixes > 0)
        last = min(request.prompt // PAGE_TOKENS, len(request.blocks))
        return {at: kind for at, kind in sorted(wanted.items()) if max(depth, 1) <= at <= last}

    def extend(self, request: Request, tokens: int) -> PageMapping:
        """Pages for all positions below `tokens`; those of reused blocks come with the first."""
        hold = self._holds[request.id]
        first = len(hold.table)
        if not first:
            hold.table = [node.page for node in hold.path if node.page is not None]
            assert len(hold.table) == len(hold.path), "every block of a path in use has a page"
            if hold.open is not None:
                hold.table.append(hold.open.page)
        missing = self.grows_by(request, tokens)
        if missing:
            # One page for each that may grow next, where pages are copied to host memory before they are free.
            ahead = len(self._holds) if self.tree.places else 0
            hold.table.extend(self.room.take(request.id, missing, ahead))
        return PageMapping(first, tuple(hold.table[first:]))

    def grows_by(self, request: Request, tokens: int) -> int:
        """Pages for positions below `tokens` that its table does not have yet."""
        return max(0, pages_for(tokens) - len(self._holds[request.id].table))

    def unit_needs(self, request: Request, tokens: int) -> int:
        """Pages at most for reading so many more tokens, and for what comes back from host memory before the first."""
        if self._holds[request.id].begun:
            return self.grows_by(request, min(request.prompt, request.read + tokens))
        parked = sum(node.page is None for node in self._known(request))
        return min(parked + pages_for(tokens), request.pages)

    def cut(self, request: Request, end: int) -> int:
        """Where a chunk that could end at `end` has to end for the sake of a state that is to be stored.

        A state at the start of the prompt's last block needs no cut: it stands when the prompt has been read.
        """
        last = request.prompt // PAGE_TOKENS
        depths = [at for at in self._holds[request.id].captures if request.read < at * PAGE_TOKENS and at != last]
        return min([end, *(at * PAGE_TOKENS for at in depths)])

    def capture(self, request: Request, end: int) -> tuple[tuple[Transfer, ...], tuple[Image, ...]]:
        """Transfers that store what is wanted of the state with `end` positions read, and the images they fill."""
        hold = self._holds[request.id]
        assert request.lane is not None
        assert end % PAGE_TOKENS == 0 or end == request.prompt, "a chunk ends at a block start or with its prompt"
        at = end // PAGE_TOKENS
        kind = self._wanted(hold, at)
        image = self.images.take(kind, hold.owner_of(kind)) if kind is not None else None
        if image is None:
            return (), ()
        hold.storing.add(at)
        return (CaptureState(request.lane, image.id),), (image,)

    def _admits_shared(self) -> bool:
        """Make room among the images that are there for everybody."""
        shared = self.images.shared
        return len(shared) < self._settings.max_shared_prefixes or self.images.drop_oldest(shared)

    def transfers(self) -> tuple[Transfer, ...]:
        """What has to happen before the next step, in order; asked for once."""
        pending = tuple(self._pending)
        self._pending.clear()
        return pending

    def landed(self, request: Request, tokens: int, images: Sequence[Image]) -> None:
        """So many positions of the request are in the cache, and these images hold the state behind them."""
        hold = self._holds[request.id]
        self._grow(request, hold, tokens)
        for image in images:
            at = tokens // PAGE_TOKENS
            hold.storing.discard(at)
            if self.images.attach(image, hold.path[at - 1]):
                self._settle(image.kind, request, hold)

    def _grow(self, request: Request, hold: Hold, tokens: int) -> None:
        """Give full blocks to the tree, so that others can share them."""
        if not self.trusted or not self._settings.prefix_reuse:
            return
        begin, end = len(hold.path), min(tokens // PAGE_TOKENS, len(request.blocks))
        self._add(request.id, hold.path, request.blocks[begin:end], hold.table[begin:end])

    def _add(self, owner: int, path: list[Node], blocks: Sequence[str], pages: Sequence[int]) -> None:
        """Lengthen a path in use by the owner's blocks, or by those that somebody else has read meanwhile."""
        for digest, page in zip(blocks, pages, strict=True):
            parent = self._tip(path)
            node = parent.children.get(digest)
            if node is None:
                node = self.tree.grow(parent, digest, page)
                self.pages.keep(owner, page)
            else:
                self._follow(owner, node, page)
            path.append(node)

    def _fold(self, hold: Hold) -> None:
        """Which of the session's turn checkpoints stay, the newest of which is not in the ring yet (14.5)."""
        images = [node.image for node in hold.path if node.image is not None]
        turns = {
            image.node.depth * PAGE_TOKENS: image
            for image in images
            if image.node is not None and image.kind is ImageKind.TURN and image.session == hold.session
        }
        *earlier, _newest = sorted(turns)
        ring: list[int] = folded(earlier[:-1], earlier[-1], self._settings.turn_checkpoints) if earlier else []
        for frontier in earlier:
            if frontier not in ring:
                turns[frontier].session = None
                if not turns[frontier].users:
                    self.images.drop(turns[frontier])

    def _drop_old_anchors(self, hold: Hold, request: Request) -> None:
        begin = request.marks.message_begin // PAGE_TOKENS
        for image in self.images.stored:
            own = image.kind is ImageKind.ANCHOR and image.session == hold.session and image.node is not None
            if own and image.node is not None and image.node.depth < begin and not image.users:
                self.images.drop(image)

    # --- the end ---------------------------------------------------------------------------------------------------

    def retire(self, request: Request) -> bool:
        """The request leaves its lane, with nothing of it in flight; whether the lane retains its session."""
        assert request.lane is not None
        hold = self._holds.pop(request.id)
        if not hold.begun:
            self._hand_image(hold, None)
            self.abandon(self._tip(hold.path))
            session = self.sessions[request.lane]
            if session is not None and hold.open is not None:
                self.pages.leave(request.id, hold.open.page)
                session.open = hold.open
            self.pages.release(request.id)
            if session is not None and not session.tokens:
                self.displace(request.lane)
            return self.sessions[request.lane] is not None
        self._grow(request, hold, request.executed)
        for image in self.images.stored:
            if image.session == hold.session and image.node is not None:
                self.images.touch(image)
        self.tree.touch(hold.path)
        self.tree.leave(self._tip(hold.path))
        tokens = request.retained
        if not self.trusted or not tokens:
            self.pages.release(request.id)
            self._disown(hold.session)
            return False
        # What was drawn after the end is a history of its own: the session ends before it.
        path = hold.path[: tokens // PAGE_TOKENS]
        executed = min(request.executed, tokens)
        session = self.retain(request.lane, hold.session, tokens, executed, path, self._standing(request))
        session.file, session.open = hold.file, self._leave_open(request, hold)
        self.pages.release(request.id)
        return True

    def _leave_open(self, request: Request, hold: Hold) -> OpenBlock | None:
        """Leave the block that the request has begun in the lane, unless void rows stand there, or the lane still holds
        the state of the block before: then what goes on reads from that block's start.
        """
        end = request.executed
        if not self.appends or not end % PAGE_TOKENS or end > request.retained:
            return None
        if self._standing(request) != end // PAGE_TOKENS or len(hold.path) != end // PAGE_TOKENS:
            return None
        page = hold.table[end // PAGE_TOKENS]
        self.pages.leave(request.id, page)
        return OpenBlock(request.id, end, page)

    def _standing(self, request: Request) -> int:
        return standing_block(request.executed, drew=request.drew, folds_late=self.folds_late)

    def retain(
        self, lane: int, number: int, tokens: int, executed: int, path: Sequence[Node], standing: int | None
    ) -> Session:
        """Let a lane retain a session; `standing` is the block at whose start the lane's own state is, if any."""
        resident = path[standing - 1] if standing and standing <= len(path) else None
        session = Session(number, tokens, executed, self._tip(path), resident, self.new_session(), changed=True)
        self.sessions[lane] = session
        return session

    def new_session(self) -> int:
        """A number that no session has had."""
        self._sessions += 1
        return self._sessions

    def displace(self, lane: int) -> None:
        """A lane gives its session up for another; what was read stays in the tree."""
        session = self.sessions[lane]
        if session is not None:
            self._disown(session.number)
            self.room.drop_open(session)
        self.sessions[lane] = None

    def plant(self, owner: int, node: Node, blocks: Sequence[str], pages: Sequence[int]) -> list[Node]:
        """Give the tree the blocks behind `node`, which the caller uses and with it all of them until now."""
        path = path_to(node)
        self._add(owner, path, blocks[node.depth :], pages)
        self.tree.touch(path)
        self.tree.leave(self._tip(path))
        return path

    def abandon(self, node: Node) -> None:
        """Nothing comes of a path that was asked for. Since it was in use nobody has seen to it that its sessions are
        in files; so it goes later than what was promised meanwhile can be kept with.
        """
        self.tree.touch(path_to(node))
        self.tree.leave(node)

    def _follow(self, owner: int, node: Node, page: int) -> None:
        """A block is there already: the page stays its owner's, unless the block has none on the device, or one that
        nobody uses; a promise may have to be kept with that.
        """
        is_used = node.users > 0
        self.tree.follow(node)
        if node.page is None:
            self.tree.fill(node, page)
            self.pages.keep(owner, page)
        elif not is_used:
            self._replace(owner, node, page)

    def merge_pages(self) -> None:
        """Nobody reads blocks for files any more: those that somebody has read again meanwhile have one page from now
        on, if the other one was promised.
        """
        if self.room.to_promise() >= 0:
            return
        mapped = self._mapped()
        for owner, hold in self._holds.items():
            for node, page in zip(hold.path, hold.table, strict=False):
                if node.page is not None and node.page not in mapped:
                    self._replace(owner, node, page)

    def _mapped(self) -> set[int]:
        """Pages that requests have, or have been promised as they are."""
        holds = self._holds.values()
        reused = {node.page for hold in holds if not hold.begun for node in hold.path if node.page is not None}
        return reused.union(*(hold.table for hold in holds))

    def _replace(self, owner: int, node: Node, page: int) -> None:
        """A block has the owner's page instead of its own, which nobody reads any more."""
        assert node.page is not None
        self.pages.let_go([node.page])
        self.pages.keep(owner, page)
        node.page = page

    def lost(self, taken: Collection[int]) -> list[int]:
        """Lanes whose session is gone because its blocks are; they retain nothing any more.

        Of a lane in `taken`, which belongs to a request that has not begun, the state may be promised: that is kept,
        with a session of no tokens, until the request begins or ends.
        """
        gone = []
        for lane, session in enumerate(self.sessions):
            if session is None or session.tip.alive:
                continue
            gone.append(lane)
            self._disown(session.number)
            self.room.drop_open(session)
            resident = session.resident
            if lane in taken and resident is not None and resident.alive:
                session.tip, session.tokens, session.executed = resident, 0, 0
            else:
                self.sessions[lane] = None
        return gone

    def erase(self, lane: int) -> int:
        """Forget a lane's session and every block that is only its own; returns its tokens."""
        session = self.sessions[lane]
        if session is None:
            return 0
        self.displace(lane)
        keep = [other.tip for other in self.sessions if other is not None]
        self._give_up(*self.tree.prune(session.tip, keep))
        return session.tokens

    def checkpoints(self, lane: int) -> tuple[int, ...]:
        """Frontiers of the turn checkpoints of a retained session, ascending; none where there is no ring."""
        return self.turns(lane) if self._settings.turn_checkpoints else ()

    def turns(self, lane: int) -> tuple[int, ...]:
        """The same whether there is a ring or only the newest of them."""
        session = self.sessions[lane]
        if session is None:
            return ()
        return tuple(
            sorted(
                image.node.depth * PAGE_TOKENS
                for image in self.images.stored
                if image.session == session.number and image.kind is ImageKind.TURN and image.node is not None
            )
        )

    # --- faults ----------------------------------------------------------------------------------------------------

    def distrust(self) -> list[int]:
        """A step has failed: nothing that was read before is gone on from. Returns lanes that had a session."""
        self.trusted = False
        self.faults += 1
        gone = [lane for lane, session in enumerate(self.sessions) if session is not None]
        for session in self.sessions:
            self.room.drop_open(session)
        self._forget_sessions()
        return gone

    def clear(self) -> None:
        """Nothing is in flight: forget everything that was read."""
        self.tree.clear()
        self.images.clear()
        self.pages.let_go(self.pages.kept)
        self._pending.clear()
        self._forget_sessions()

    def _forget_sessions(self) -> None:
        self.sessions[:] = [None] * len(self.sessions)

    def trust(self) -> None:
        """The engine is clean again."""
        self.trusted = True

    def audit(self, read: Collection[Node] = ()) -> None:
        """Raise unless pages, blocks and images agree; blocks in `read` are read for files."""
        mapped = self._mapped() if read else ()
        self.room.audit(sum(node.page is not None and node.page not in mapped for node in read))
        self.tree.audit()
        self.images.audit()
        of_tree = sorted(node.page for node in self.tree.nodes() if node.page is not None)
        if of_tree != sorted(self.pages.kept):
            raise IllegalTransition("the tree and the pool disagree on pages")
        blocks = [session.open for session in self.sessions if session is not None and session.open is not None]
        if sorted(block.page for block in blocks) != sorted(self.pages.left):
            raise IllegalTransition("sessions and the pool disagree on the pages of open blocks")
        for session in self.sessions:
            if session is not None and session.resident is not None and not session.resident.leads_to(session.tip):
                raise IllegalTransition("a lane's state is not on the path of its session")
