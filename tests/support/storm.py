"""Seeded storms for the scheduler: a fake engine, a manual clock, and clients that come, wait, leave and read slowly.

A storm feeds the machine what the actors would feed it, in random order, and checks after every event that nothing is
lost. Steps land in the order of their launch, each after a random number of other events. Prompts go on from, edit,
branch off and repeat what others have had, slots are saved, restored and erased meanwhile, and every fifth storm has a
disk whose files get lost and damaged; that reuse never mixes histories is checked with a model of the device's memory.
When the faults stop and everybody has been answered, nothing may be left in use. Some requests draw under masks, which
last for one token or for many. Of three storms two have an engine that cuts chunks into parts. Odd seeds have one step
ahead, even seeds none, and most of those draw several tokens a row.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ninfer.config import SchedulerSettings
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.open_blocks import OpenBlock
from ninfer.scheduler.prefixes import Node
from ninfer.scheduler.reuse import Session
from ninfer.scheduler.transitions import LaneState, Lifecycle
from ninfer.snapshots.rules import FARTHEST
from ninfer.step import PAGE_TOKENS, CaptureState, ParkPages, pages_for
from ninfer.types import Marks
from tests.support.memory import DeviceMemory, Part, Standing

# How many of the newest histories are gone on from: a storm is short, and an old one would seldom be there.
KNOWN = 6


def common(one: bytes, other: bytes) -> int:
    """Tokens with which both begin."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(one), len(other)))


@dataclass
class Client:
    """What the storm knows of one accepted request: its tokens, what was launched of it, what has landed, how it ended.

    history   prompt and everything drawn by steps that were launched, a byte a token
    kept      tokens up to its stop string, if it has met one
    """

    history: bytes = b""
    prompt: int = 0
    limit: int = 0
    prepared: bool = False
    rejected: bool = False
    released: bool = False
    admitted: cmd.Admit | None = None
    read: int = 0
    drawn: int = 0
    kept: int | None = None
    drawing: int = 0
    steps: int = 0
    masked: bool = False
    ahead: int = 0
    guessed: int = 0
    foreseen: int = 0
    free: int = 0
    ends: list[cmd.Command] = field(default_factory=list)


@dataclass(frozen=True)
class File:
    """A saved session: its ledger, and where its state and its checkpoints are."""

    ledger: bytes
    state: int
    checkpoints: tuple[int, ...]


@dataclass(frozen=True)
class SlotJob:
    """A save or a restore under way; `faults` as many as there were when it began."""

    order: cmd.ReadSession | cmd.WriteSession
    file: File
    faults: int
    evicted: bool = False
    disk: str = ""  # name of its file in the disk cache


class Storm:
    """One run. `decisions` is everything that happened, ready to be replayed. `limits` are of requests."""

    limits = (0, 1, 2, 5, 8, 40, 5000)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        context = choose([64, 200, 512, 1024])
        of_disk = random.Random(seed)
        disk_bytes = of_disk.choice([600, 3000]) if seed % 5 == 2 else 0
        lanes = choose([1, 2, 4, 8])
        self.settings = SchedulerSettings(
            lanes=lanes,
            max_context_tokens=context,
            prefill_chunk_tokens=choose([64, 128, 256]),
            max_pending=choose([1, 3, 8]),
            pending_timeout_s=choose([0.5, 5.0, 30.0]),
            max_inter_token_s=choose([0.0, 0.002, 0.1]),
            prefill_decode_ratio=choose([None, None, 0.5, 2.0]),
            steps_ahead=seed % 2,
            draft_tokens=0 if seed % 2 else choose([0, 1, 3, 5, 15]),
            copied_tokens=0 if seed % 2 else choose([0, 0, 7]),
            adaptive_drafts=choose([True, False]),
            drain_s=choose([0.0, 1.0]),
            exit_on_failure=choose([True, False]),
            prefix_reuse=self.random.random() < 0.9,
            images=choose([0, 1, 2, 8]),
            host_pages=choose([0, 3, 50]),
            turn_checkpoints=choose([0, 1, 3]),
            max_shared_prefixes=choose([0, 1, 4]),
            auto_save=seed % 3 == 0,
            disk_bytes=disk_bytes,
            disk_least_tokens=of_disk.choice([1, 64, 128]),
            disk_name="storm",
        )
        least = pages_for(context)
        self.pages = self.random.randint(max(least, lanes), least * lanes)
        self.fault_rate = choose([0.0, 0.0, 0.05, 0.4])
        self.preambles = [b"", *(self.random.randbytes(choose([64, 100, 256, 300])) for _ in range(2))]
        self.now = 100.0
        self.machine = Scheduler(self.settings)
        self.memory = DeviceMemory(lanes, folds_late=choose([True, False]))
        self.chunk_parts = ((1,), (1, 2), (1, 2, 4))[seed % 3]
        self.appends = seed % 7 != 3
        self.decisions: list[tuple[float, ev.Event, list[cmd.Command]]] = []
        self.clients: dict[int, Client] = {}
        self.known: deque[int] = deque(maxlen=KNOWN)
        self.ledgers: list[bytes | None] = [None] * lanes
        self.owners: dict[int, int] = {}  # by lane the request that was admitted there last
        self.overdrawn = 0  # events behind which promised pages were being read for a file
        self.exact = 0  # requests that went on inside a block
        self.files: list[File] = []
        self.slot_jobs: dict[int, SlotJob] = {}
        self.asked: dict[int, File] = {}  # by ticket
        self.names: dict[bytes, str] = {}
        self.histories: dict[str, bytes] = {}
        self.refused = 0
        self.slot_refusals: set[str] = set()
        self.read_places = 0
        # Sessions that are being written to files: ticket, name in the disk cache, and what is written, if it is right.
        self.writing: list[tuple[int, str, File | None]] = []
        self.disk: dict[str, File] = {}
        self.disk_job: cmd.ReadDisk | None = None
        self.disk_filling: tuple[cmd.WriteDisk, File, int] | None = None
        self.disk_outcomes: Counter[str] = Counter()
        self.auto_saves = 0
        self.tickets = 0
        self.flight: deque[cmd.StartChunk | cmd.StartRound | Part] = deque()
        self.chunk: cmd.StartChunk | None = None  # that has parts to come, and how many of them
        self.parts_left = 0
        self.parts_landed = 0
        self.counts: dict[int, int] = {}  # tokens that the round in flight draws, by request
        self.void = False
        self.landed_behind_a_fault = 0
        self.resetting = False
        self.copied: set[int] = set()  # whose guesses are copied
        self.masking: list[int] = []
        self.of_masks = random.Random(seed)
        self.wake: float | None = None
        self.exits: list[cmd.Exit] = []

    def send(self, event: ev.Event) -> list[cmd.Command]:
        holdings = self.machine.holdings
        before, lanes = list(holdings.sessions), list(self.machine.lanes)
        missing = [holdings.state_of(s) if s is not None and holdings._misses_disk(s) else None for s in before]
        failures = self.machine.slots.disk_save_failures
        evictions = holdings.tree.evictions
        commands = self.machine.handle(event, self.now)
        self.decisions.append((self.now, event, commands))
        self.check_displaced(event, before)
        if self.machine.slots.disk_save_failures == failures:
            self.check_retained(event, before, lanes, missing)
        for command in commands:
            self.obey(command)
        self.machine.audit()
        self.overdrawn += holdings.room.to_promise() < 0
        if len(self.decisions) % 4 == 0:
            self.check_promises()
        if holdings.tree.evictions > evictions:
            self.check_given_up(before, lanes, commands)
        self.check_lanes()
        if len(self.decisions) % 16 == 0:
            self.check_tree()
        return commands

    def obey(self, command: cmd.Command) -> None:
        match command:
            case cmd.Accept():
                self.clients[command.request_id] = Client()
            case cmd.Refuse():
                self.refused += 1
            case cmd.Admit():
                self.check_admission(command)
            case cmd.Finish() | cmd.Fail():
                self.end(command)
            case cmd.StartChunk():
                self.launch(command)
                self.check_chunk(command)
            case cmd.ContinueChunk():
                self.launch_part(command)
            case cmd.StartRound():
                self.launch(command)
                self.check_round(command)
            case cmd.ResetEngine():
                assert not self.flight, "a reset with a step in flight"
                self.resetting = True
            case cmd.Exit():
                self.exits.append(command)
            case cmd.WakeAt():
                assert self.wake is None or command.at < self.wake
                self.wake = command.at
            case cmd.RefuseSlot():
                self.slot_refusals.add(command.code)
            case cmd.Forget():
                self.ledgers[command.lane] = None
            case cmd.Erased():
                assert self.ledgers[command.lane] is None
            case cmd.ReadSession():
                self.read_session(command)
            case cmd.SaveEvicted():
                assert self.settings.disk_bytes if command.to_disk else self.settings.auto_save
                assert not self.writing
                assert command.file
                self.read_session(command.read, evicted=True, disk=command.file if command.to_disk else "")
            case cmd.WriteSession():
                self.write_session(command)
            case cmd.ReadDisk():
                assert self.disk_job is None
                assert self.disk_filling is None
                self.disk_job = command
            case cmd.WriteDisk():
                self.write_disk(command)
            case cmd.DropRead():
                assert self.disk_job is not None
                self.disk_job = None
            case cmd.DropFile():
                self.disk.pop(command.file, None)  # it may have been lost
            case _:
                pass

    # --- histories -------------------------------------------------------------------------------------------------

    def name(self, history: bytes) -> str:
        """The digest of a history of full blocks."""
        name = self.names.setdefault(history, f"block {len(self.names)}")
        self.histories[name] = history
        return name

    def blocks(self, history: bytes) -> tuple[str, ...]:
        return tuple(self.name(history[:end]) for end in range(PAGE_TOKENS, len(history) + 1, PAGE_TOKENS))

    def filled(self, history: bytes, tokens: int, count: int = 1) -> tuple[str, ...]:
        """What the `count` tokens that make it so many tell of the blocks that they fill."""
        ends = range(tokens - count + 1, tokens + 1)
        return tuple(self.name(history[:end]) for end in ends if end % PAGE_TOKENS == 0)

    def compose(self) -> bytes:
        """A prompt: a new one, or one that goes on from, edits or repeats what somebody has had."""
        prompt = self.continued()[: self.settings.max_context_tokens]
        if self.random.random() < 0.5 and len(prompt) > PAGE_TOKENS:
            # Answers that begin just below a block start are the interesting ones.
            prompt = prompt[: len(prompt) // PAGE_TOKENS * PAGE_TOKENS - self.random.randint(0, 4)]
        return prompt

    def continued(self) -> bytes:
        more = self.random.randbytes(self.random.choice([1, 10, 63, 64, 65, 150, 400]))
        roll = self.random.random()
        if not self.known or roll < 0.15:
            return self.random.choice(self.preambles) + more
        client = self.clients[self.random.choice(self.known)]
        if roll < 0.4:
            return client.history[: client.prompt]
        if roll < 0.7:
            return client.history + more
        cut = self.random.randint(0, len(client.history))
        return client.history[:cut] + more

    def marks(self, tokens: int) -> Marks:
        if self.random.random() < 0.2:
            return Marks()
        begin, end, turn = sorted(self.random.randint(0, tokens) for _ in range(3))
        return Marks(turn, begin, end, self.random.randint(0, tokens))

    # --- what is checked -------------------------------------------------------------------------------------------

    def may_launch(self) -> None:
        assert len(self.flight) <= self.settings.steps_ahead, "more steps than may be ahead"
        assert not self.resetting
        assert not self.void

    def launch_part(self, command: cmd.ContinueChunk) -> None:
        self.may_launch()
        chunk = self.chunk
        assert chunk is not None, "a part of no chunk"
        assert (command.request_id, command.lane) == (chunk.request_id, chunk.lane)
        self.parts_left -= 1
        assert command.last == (self.parts_left == 0)
        if command.last:
            self.chunk = None
            self.flight.append(replace(chunk, step=command.step))
        else:
            self.flight.append(Part(command.step))

    def launch(self, command: cmd.StartChunk | cmd.StartRound) -> None:
        self.may_launch()
        if isinstance(command, cmd.StartChunk) and command.parts > 1:
            assert self.chunk is None, "a chunk between the parts of another"
            assert command.parts in self.chunk_parts
            self.chunk, self.parts_left = command, command.parts - 1
            self.flight.append(Part(command.step))
        else:
            assert self.chunk is None or isinstance(command, cmd.StartRound), "a chunk between the parts of another"
            self.flight.append(command)
        for request_id in self.riders(command):
            client = self.clients[request_id]
            assert client.admitted is not None, "a step for a request that was never admitted"
            assert not client.ends, "a step for a request that has ended"
            client.steps += 1

    @staticmethod
    def riders(command: cmd.StartChunk | cmd.StartRound | Part) -> list[int]:
        if isinstance(command, Part):
            return []
        return [command.request_id] if isinstance(command, cmd.StartChunk) else [row.request_id for row in command.rows]

    def end(self, command: cmd.Finish | cmd.Fail) -> None:
        client = self.clients[command.request_id]
        client.ends.append(command)
        assert command.lane == (client.admitted.lane if client.admitted is not None else None)
        if isinstance(command, cmd.Finish):
            self.retain(client, command.retained_tokens)
        self.give_back(command.request_id)

    def retain(self, client: Client, tokens: int) -> None:
        """Its lane keeps what has landed, or will land if nothing fails."""
        if client.admitted is None or not self.settings.prefix_reuse or not self.machine.holdings.trusted:
            assert tokens == 0
            return
        drawn = client.drawn if client.kept is None else client.kept
        assert tokens == (client.read if client.read < client.prompt else client.prompt + drawn)
        self.ledgers[client.admitted.lane] = client.history[:tokens]

    def give_back(self, request_id: int) -> None:
        """Its pages may be anybody's once it has ended and no step works on them any more."""
        client = self.clients[request_id]
        if client.ends and not client.steps:
            self.memory.leave(request_id)

    def check_admission(self, command: cmd.Admit) -> None:
        client = self.clients[command.request_id]
        assert client.admitted is None
        client.admitted = command
        assert command.cached_tokens < client.prompt
        assert command.cached_tokens % PAGE_TOKENS == 0 or command.way == "append_frontier"
        assert (command.way == "full_reset") == (command.cached_tokens == 0)
        assert self.settings.prefix_reuse or not command.cached_tokens
        client.read = command.cached_tokens
        self.ledgers[command.lane] = None
        self.owners[command.lane] = command.request_id
        self.exact += command.cached_tokens % PAGE_TOKENS > 0

    def check_chunk(self, command: cmd.StartChunk) -> None:
        client = self.clients[command.request_id]
        assert client.admitted is not None
        assert command.begin == client.read
        assert command.first == (command.begin == client.admitted.cached_tokens)
        client.read = command.end
        assert 0 < command.end - command.begin <= self.settings.prefill_chunk_tokens
        assert command.first or command.begin % PAGE_TOKENS == 0
        assert command.end == client.prompt or command.end % PAGE_TOKENS == 0
        assert command.sample == (command.end == client.prompt and self.effective(client) > 0)
        self.memory.chunk(command, client.history)
        client.foreseen = command.foresee
        assert command.foresee <= self.settings.draft_tokens
        assert command.recall <= self.settings.copied_tokens
        assert max(command.foresee, command.recall) <= max(0, self.effective(client) - 2)
        assert (client.masked and command.sample) or not command.foresee + command.recall
        if command.sample:
            self.draw(client)

    def check_round(self, command: cmd.StartRound) -> None:
        lanes = [row.lane for row in command.rows]
        assert lanes == sorted(set(lanes))
        for row in command.rows:
            client = self.clients[row.request_id]
            assert client.drawn > 0, "a row before its first token has landed"
            assert row.position == client.prompt + client.drawing - 1
            if client.masked:
                assert client.drawing == client.drawn, "a masked row behind one that has not landed"
                assert row.request_id not in self.masking, "a masked row without its mask"
                if client.free:
                    assert max(row.drafts, row.copies) < client.free, "a guess behind the last token of a mask"
                else:
                    assert (row.drafts if client.guessed else row.copies) <= client.ahead
                    assert (row.copies if client.guessed else row.drafts) == 0
                    assert row.foresee <= self.settings.draft_tokens
                    assert row.recall <= self.settings.copied_tokens
                    left = self.effective(client) - client.drawing - 2  # guesses that the row behind it can have
                    assert max(row.foresee, row.recall) <= max(0, left), "a guess behind the last token"
            client.foreseen = row.foresee
            assert (client.masked and not client.free) or not row.foresee + row.recall
        self.copied = {row.request_id for row in command.rows if row.copies and self.random.random() < 0.5}
        guesses = {row.request_id: row.copies if row.request_id in self.copied else row.drafts for row in command.rows}
        counts = {row.request_id: 1 + self.random.randint(0, guesses[row.request_id]) for row in command.rows}
        histories: dict[int, bytes] = {}
        for row in command.rows:
            client = self.clients[row.request_id]
            most = max(row.drafts, row.copies)
            assert most <= self.settings.guesses
            assert client.drawing + 1 + most <= self.effective(client), "a guess behind the last token"
            self.draw(client, counts[row.request_id])
            histories[row.request_id] = client.history
        if self.settings.guesses:
            self.counts = counts
        self.memory.round(command, histories, counts)

    def draw(self, client: Client, count: int = 1) -> None:
        client.drawing += count
        client.history += self.random.randbytes(count)

    def effective(self, client: Client) -> int:
        return min(client.limit, self.settings.max_context_tokens - client.prompt)

    def check_displaced(self, event: ev.Event, before: Sequence[Session | None]) -> None:
        """A session that has a file is not displaced before it has gone there, but for erasure and faults."""
        holdings = self.machine.holdings
        erased = isinstance(event, ev.SlotAsked) and event.action == "erase"
        if erased or not holdings.trusted or not self.settings.auto_save:
            return
        followed = {r.lane for r in self.machine.requests.values() if r.lane is not None and holdings._holds[r.id].file}
        for lane, (old, new) in enumerate(zip(before, holdings.sessions, strict=True)):
            if old is not None and old is not new and old.file and old.tokens:
                assert not old.changed or lane in followed

    def check_promises(self) -> None:
        """Whoever was admitted can have every page that is missing, from those that no request has and nobody reads."""
        holdings = self.machine.holdings
        missing = 0
        for request_id, hold in holdings._holds.items():
            client = self.clients[request_id]
            mapped = len(self.memory.tables.get(request_id, ()))
            whole = pages_for(client.prompt + max(self.effective(client) - 1, 0))
            promised = holdings.pages.promised_to(request_id)
            # Before it begins nobody but the scheduler knows what it has.
            assert promised == whole - mapped if hold.begun else promised <= whole
            missing += promised
        mapped_pages = {page for table in self.memory.tables.values() for page in table}
        written = [job.order for job in self.slot_jobs.values() if isinstance(job.order, cmd.WriteSession)]
        filled = [page for order in written for page in order.pages]
        filled += self.disk_filling[0].pages if self.disk_filling is not None else ()
        assert not mapped_pages & set(filled)
        assert missing <= self.pages - len(mapped_pages) - len(filled)

    def check_given_up(
        self, before: Sequence[Session | None], lanes: Sequence[LaneState], commands: Sequence[cmd.Command]
    ) -> None:
        """No block goes while a page is free: what is free now was left by sessions that went, or copied ahead."""
        holdings = self.machine.holdings
        ahead = len(holdings._holds) if self.settings.host_pages else 0
        gone = sum(old is not new for old, new in zip(before, holdings.sessions, strict=True))
        # Some have come and gone with this one event.
        gone += sum(isinstance(command, cmd.Finish | cmd.Fail) for command in commands)
        gone += lanes.count(LaneState.VACATING)
        assert holdings.pages.free <= ahead + gone

    def check_retained(
        self,
        event: ev.Event,
        before: Sequence[Session | None],
        lanes: Sequence[LaneState],
        missing: Sequence[Node | None],
    ) -> None:
        """No lane loses a session that belongs on disk, but to a request that goes on with it.

        missing   for each lane, the end of what belongs there
        """
        holdings = self.machine.holdings
        if isinstance(event, ev.SlotAsked) or not holdings.trusted:
            return
        requests = {request.lane: request.id for request in self.machine.requests.values() if request.lane is not None}
        for lane, session in enumerate(before):
            end = missing[lane]
            if lanes[lane] is not LaneState.RETAINED or end is None or session is None or session.offered:
                continue
            # The state goes before the session if there are few places for states.
            no_state = end.alive and end.image is None and session.resident is not end
            if no_state or holdings.disk.has_state(end.digest):
                continue
            if self.machine.lanes[lane] not in (LaneState.RETAINED, LaneState.SAVING):
                path = holdings._holds[requests[lane]].path if lane in requests else []
                assert path, "a session is displaced that belongs on disk"
                assert path[-1].leads_to(session.tip)

    def check_lanes(self) -> None:
        """What lanes were told that they retain is what the machine thinks they retain, and the device has it."""
        holdings = self.machine.holdings
        for lane, state in enumerate(self.machine.lanes):
            session, ledger = holdings.sessions[lane], self.ledgers[lane]
            if session is None:
                assert ledger is None or state in (LaneState.VACATING, LaneState.SAVING), state
                assert state is not LaneState.RETAINED
                continue
            if session.tokens:
                assert ledger is not None
                assert session.tokens == len(ledger)
                assert session.tip.depth * PAGE_TOKENS <= session.executed <= session.tokens
                assert self.history_of(session.tip) == ledger[: session.tip.depth * PAGE_TOKENS]
            else:  # only the state is left of it, promised to a request that has not begun
                assert ledger is None
                assert state is LaneState.PREFILLING
            if session.resident is not None:
                standing = self.memory.lanes[lane]
                assert standing is not None
                assert standing.state == self.history_of(session.resident)
            if session.open is not None:
                self.check_open(lane, session.open, ledger)

    def check_open(self, lane: int, block: OpenBlock, ledger: bytes | None) -> None:
        """The lane and the page of the block that a session has begun hold what they should."""
        assert ledger is not None
        assert block.owner == self.owners[lane]
        assert self.memory.lanes[lane] == Standing(ledger[: block.executed], block.depth)
        assert self.memory.pages[block.page][: block.executed] == ledger[: block.executed]
        assert all(block.page not in table for table in self.memory.tables.values())

    def history_of(self, node: Node) -> bytes:
        return self.histories[node.digest] if node.depth else b""

    def check_tree(self) -> None:
        """Every block of the tree is where the tree says."""
        pending = [transfer for transfer in self.machine.holdings._pending if isinstance(transfer, ParkPages)]
        on_their_way = {place: page for parks in pending for page, place in zip(parks.pages, parks.places, strict=True)}
        if not self.machine.holdings.trusted:
            return
        for node in self.machine.holdings.tree.nodes():
            history = self.history_of(node)
            assert len(history) == node.depth * PAGE_TOKENS
            if node.page is not None:
                assert self.memory.pages[node.page] == history
            elif node.place in on_their_way:
                assert self.memory.pages[on_their_way[node.place]] == history
            else:
                assert node.place is not None
                assert self.memory.places[node.place] == history
            if node.image is not None:
                assert self.memory.images[node.image.id] == history

    def check_disk(self) -> None:
        """The disk holds what is known of it, and not more than it may."""
        index = self.machine.holdings.disk
        assert index.used <= index.capacity
        assert index.used == sum(entry.bytes for entry in index._entries.values())
        assert index._entries.keys() >= self.disk.keys()
        for name, file in self.disk.items():
            assert self.histories[index._entries[name].blocks[-1]] == file.ledger

    # --- slots -----------------------------------------------------------------------------------------------------

    def ask_slot(self) -> None:
        """Save, restore or erase any lane, whatever it is doing."""
        self.tickets += 1
        lane = self.random.randrange(self.settings.lanes)
        action = self.random.choice(["save", "save", "restore", "restore", "erase"])
        if action != "restore":
            expected = self.random.random() < 0.9
            self.send(ev.SlotAsked(self.tickets, lane, action, expected=expected, file="saved"))
            return
        asked = self.random.choice(self.files) if self.files and self.random.random() < 0.7 else self.made_up()
        self.asked[self.tickets] = asked
        blocks, tokens = self.blocks(asked.ledger[: asked.state]), len(asked.ledger)
        self.send(ev.SlotAsked(self.tickets, lane, action, True, tokens, blocks, asked.checkpoints, "saved"))

    def made_up(self) -> File:
        """A file from another server."""
        ledger = self.compose()
        state = len(ledger) // PAGE_TOKENS * PAGE_TOKENS
        below = range(PAGE_TOKENS, state, PAGE_TOKENS)
        return File(ledger, state, tuple(sorted(self.random.sample(below, self.random.randint(0, min(2, len(below)))))))

    def read_session(self, order: cmd.ReadSession, *, evicted: bool = False, disk: str = "") -> None:
        ledger = self.ledgers[order.lane]
        assert ledger is not None
        if disk:
            assert order.tokens == order.executed == order.state >= self.settings.disk_least_tokens
            ledger = ledger[: order.tokens]
        for transfer in order.before:
            self.memory.transfer(transfer)
        if order.capture:
            self.memory.transfer(CaptureState(order.lane, order.image))
        # What a file has to fulfil (serving spec, 15.4).
        assert order.tokens == len(ledger)
        assert order.executed in (order.tokens - 1, order.tokens)
        # A block that is folded late is a whole one behind, and guesses may have led out of it.
        assert 0 <= order.executed - order.state <= FARTHEST
        assert order.state == len(order.pages + order.places) * PAGE_TOKENS
        self.read_places += bool(order.places)
        assert list(order.checkpoints) == sorted(order.checkpoints)
        frontiers = tuple(frontier for frontier, _image in order.checkpoints)
        assert all(0 < frontier < order.state for frontier in frontiers)
        job = SlotJob(order, File(ledger, order.state, frontiers), self.memory.faults, evicted, disk)
        self.check_read(job)
        self.begin_slot_job(job)

    def check_read(self, job: SlotJob) -> None:
        """Everything a save reads is what the file says it is."""
        order, ledger = job.order, job.file.ledger
        assert isinstance(order, cmd.ReadSession)
        for block, page in enumerate(order.pages):
            assert self.memory.pages[page] == ledger[: (block + 1) * PAGE_TOKENS]
        for block, place in enumerate(order.places, start=len(order.pages)):
            assert self.memory.places[place] == ledger[: (block + 1) * PAGE_TOKENS]
        for frontier, image in (*order.checkpoints, *(((order.state, order.image),) if order.state else ())):
            assert self.memory.images[image] == ledger[:frontier]

    def write_session(self, order: cmd.WriteSession) -> None:
        for transfer in order.before:
            self.memory.transfer(transfer)
        assert self.ledgers[order.lane] is None, "what the slot held is forgotten before it is written over"
        file = self.asked[order.ticket]
        assert order.tokens == len(file.ledger)
        assert order.skipped + len(order.pages) == file.state // PAGE_TOKENS
        frontiers = [frontier for frontier, _image in order.images]
        if file.state:
            assert frontiers[-1] == file.state
            newest = list(file.checkpoints)[len(file.checkpoints) - len(frontiers) + 1 :]
            assert frontiers[:-1] == newest
        in_use = {page for table in self.memory.tables.values() for page in table}
        for page in order.pages:
            assert page not in in_use
            self.memory.pages.pop(page, None)  # until it is written, nobody knows what it holds
        for _frontier, image in order.images:
            self.memory.images.pop(image, None)
        self.begin_slot_job(SlotJob(order, file, self.memory.faults))

    def begin_slot_job(self, job: SlotJob) -> None:
        assert job.order.lane not in self.slot_jobs
        self.slot_jobs[job.order.lane] = job

    def finish_slot_job(self) -> None:
        job = self.slot_jobs.pop(self.random.choice(sorted(self.slot_jobs)))
        order, file = job.order, job.file
        ok = self.random.random() < 0.9
        if job.faults != self.memory.faults:
            ok &= not job.evicted  # what was read or written is lost, and a server that reads knows it
        elif isinstance(order, cmd.ReadSession):
            self.check_read(job)
            if ok and not job.disk:
                self.files.append(file)
        elif ok:
            for block, page in enumerate(order.pages, start=order.skipped):
                self.memory.pages[page] = file.ledger[: (block + 1) * PAGE_TOKENS]
            for frontier, image in order.images:
                self.memory.images[image] = file.ledger[:frontier]
        if ok and isinstance(order, cmd.WriteSession):
            self.ledgers[order.lane] = file.ledger
        if job.evicted:
            self.writing.append((order.ticket, job.disk, file if ok else None))
        self.send(ev.SlotDone(order.ticket, order.lane, ok))

    def finish_writing(self) -> None:
        ticket, disk, file = self.writing.pop()
        ok = self.random.random() < 0.8
        if not disk:
            self.auto_saves += ok
            self.send(ev.SlotWritten(ticket, ok))
        elif ok and file is not None:
            self.disk[disk] = file
            self.send(ev.SlotWritten(ticket, True, len(file.ledger)))
        else:
            self.send(ev.SlotWritten(ticket, False))

    # --- disk cache ------------------------------------------------------------------------------------------------

    def find_file(self) -> None:
        """A file of an earlier process."""
        file = self.made_up()
        if file.state and len(file.ledger):
            file = File(file.ledger[: file.state], file.state, file.checkpoints)
            name = f"earlier-{len(self.decisions)}"
            self.disk[name] = file
            states = tuple(frontier // PAGE_TOKENS for frontier in (*file.checkpoints, file.state))
            self.send(ev.DiskFound(name, len(file.ledger), self.blocks(file.ledger), states))

    def finish_disk_job(self) -> None:
        if self.disk_filling is not None:
            self.fill_from_disk()
            return
        job = self.disk_job
        assert job is not None
        file = self.disk.get(job.file)
        if file is not None and self.random.random() < 0.1:
            file = None  # it is damaged, or somebody has removed it
            del self.disk[job.file]
        if file is None:
            self.disk_job = None
            self.disk_outcomes["unreadable"] += 1
        else:
            assert job.depth * PAGE_TOKENS in (*file.checkpoints, file.state)
            assert self.name(file.ledger[: job.depth * PAGE_TOKENS]) == job.block
        commands = self.send(ev.DiskRead(job.ticket, file is not None))
        if file is not None:
            self.disk_outcomes["dropped" if any(isinstance(c, cmd.DropRead) for c in commands) else "read"] += 1

    def write_disk(self, order: cmd.WriteDisk) -> None:
        assert self.disk_job is not None
        depth = self.disk_job.depth
        file = File(self.histories[self.disk_job.block], depth * PAGE_TOKENS, ())
        for transfer in order.before:
            self.memory.transfer(transfer)
        assert order.skipped + len(order.pages) == depth
        in_use = {page for table in self.memory.tables.values() for page in table}
        for page in order.pages:
            assert page not in in_use
            self.memory.pages.pop(page, None)  # until it is written, nobody knows what it holds
        self.memory.images.pop(order.image, None)
        self.disk_job, self.disk_filling = None, (order, file, self.memory.faults)

    def fill_from_disk(self) -> None:
        assert self.disk_filling is not None
        (order, file, faults), self.disk_filling = self.disk_filling, None
        ok = self.random.random() < 0.9
        if ok and faults == self.memory.faults:
            for block, page in enumerate(order.pages, start=order.skipped):
                self.memory.pages[page] = file.ledger[: (block + 1) * PAGE_TOKENS]
            self.memory.images[order.image] = file.ledger
        self.send(ev.DiskDone(order.ticket, ok))

    @property
    def reads_disk(self) -> bool:
        return self.disk_job is not None or self.disk_filling is not None

    # --- weather ---------------------------------------------------------------------------------------------------

    def land(self) -> None:
        step = self.flight.popleft()
        device_s = self.random.choice([0.0005, 0.002, 0.05])
        self.now += device_s
        # What stands behind a failed step fails as well, or is done and worth nothing.
        failed = self.random.random() < (0.5 if self.void else self.fault_rate)
        riders = self.riders(step)
        if failed and self.chunk is not None:  # it does not go on
            riders.append(self.chunk.request_id)
            self.chunk = None
        for request_id in riders:
            self.clients[request_id].steps -= 1
            self.give_back(request_id)
        self.landed_behind_a_fault += self.void
        self.void = (self.void or failed) and bool(self.flight)
        if failed:
            self.memory.lose()
            self.send(ev.StepFailed(step.step, "device fault"))
        elif isinstance(step, Part):
            self.parts_landed += 1
            self.send(ev.PartLanded(step.step, device_s))
        elif isinstance(step, cmd.StartChunk):
            client = self.clients[step.request_id]
            stopped = step.sample and self.random.random() < 0.1
            client.drawn += step.sample
            free = self.pass_mask(step.request_id, 1) if step.sample and not stopped else 0
            blocks = self.filled(client.history, step.end + 1) if step.sample else ()
            self.send(ev.ChunkLanded(step.step, int(step.sample), stopped, device_s, blocks, free))
        else:
            rows = []
            for row in step.rows:
                client = self.clients[row.request_id]
                count = self.counts.get(row.request_id, 1)
                client.drawn += count
                blocks = self.filled(client.history, row.position + 1 + count, count)
                stopped = self.random.random() < 0.05
                free = self.pass_mask(row.request_id, count) if not stopped else 0
                copied = row.request_id in self.copied
                drafted = self.random.randint(count - 1, row.copies if copied else row.drafts)
                rows.append(ev.RowLanded(row.request_id, count, stopped, blocks, drafted, count - 1, copied, free))
            self.send(ev.RoundLanded(step.step, tuple(rows), device_s))

    def pass_mask(self, request_id: int, count: int) -> int:
        """A request has drawn so many tokens. If that leaves it without a mask the next is worked out, whether it has
        ended or not; returns how many more it may draw under the same.
        """
        client = self.clients[request_id]
        if not client.masked:
            return 0
        halted = client.free > 0 and self.of_masks.random() < 0.2
        client.free = 0 if halted else max(0, client.free - count)
        if not client.free:
            assert request_id not in self.masking
            self.masking.append(request_id)
        return client.free

    def finish_mask(self) -> None:
        request_id = self.masking.pop(self.random.randrange(len(self.masking)))
        if self.random.random() < 0.02:
            self.send(ev.MaskFailed(request_id, "constraint_dead_end"))
        else:
            client = self.clients[request_id]
            client.masked = self.of_masks.random() < 0.95
            client.free = self.of_masks.choice([0, 0, 1, 7, 1 << 31]) * client.masked
            held = client.masked and not client.free
            client.ahead = self.random.randint(0, self.settings.guesses) * held
            client.guessed = 0
            if held and client.foreseen and self.of_masks.random() < 0.7:
                client.guessed = client.foreseen
                client.ahead = self.of_masks.randint(0, client.guessed)
            mask_s = self.of_masks.choice([0.0, 1e-5, 0.001, 0.2])
            self.send(ev.MaskReady(request_id, client.ahead, client.free, client.masked, client.guessed, mask_s))

    def start(self) -> None:
        self.send(ev.PlanMade(10, 20, "short"))
        self.send(ev.ModelLoaded(10, 20, self.pages, "short", self.memory.folds_late, self.chunk_parts, self.appends))
        self.send(ev.WarmedUp())

    def blow(self, steps: int) -> None:
        """Random weather for a number of events."""
        for _ in range(steps):
            self.now += self.random.choice([0.0, 0.0, 0.001, 0.2])
            self.gust(self.random.random())
            if self.exits:
                return

    def gust(self, roll: float) -> None:
        if self.wake is not None and self.wake <= self.now:
            self.wake = None
            self.send(ev.Tick())
        elif self.flight and roll < 0.45:
            self.land()
        elif self.masking and roll < 0.52:
            self.finish_mask()
        elif self.resetting and roll < 0.7:
            self.resetting = False
            lost = self.random.random() < 0.1
            self.send(ev.EngineLost("device lost") if lost else ev.EngineReset())
        elif self.settings.disk_bytes and roll < 0.55:
            if self.reads_disk:
                self.finish_disk_job()
            elif self.slot_jobs:
                self.finish_slot_job()
            elif self.writing:
                self.finish_writing()
            elif self.random.random() < 0.2:
                self.find_file()
        elif roll < 0.6:
            self.tickets += 1
            self.send(ev.Arrived(self.tickets))
        elif roll < (0.9 if self.settings.auto_save else 0.95):
            self.somebody_acts()
        elif roll < 0.995:
            if self.writing and self.random.random() < 0.5:
                self.finish_writing()
            elif self.slot_jobs and self.random.random() < 0.5:
                self.finish_slot_job()
            else:
                self.ask_slot()
        elif self.random.random() < 0.3:
            self.send(ev.StopRequested())

    def somebody_acts(self) -> None:
        alive = [request_id for request_id, client in self.clients.items() if not client.released]
        if not alive:
            return
        request_id = self.random.choice(alive)
        client = self.clients[request_id]
        if not client.prepared and not client.rejected:
            if self.random.random() < 0.1:
                client.rejected = True
                self.send(ev.PreparationFailed(request_id))
            else:
                self.prepare(request_id, client)
        elif client.ends or client.rejected or self.random.random() < 0.1:
            client.released = True  # read to its end, or left in the middle
            self.send(ev.Released(request_id))
        elif client.drawn and self.random.random() < 0.4:
            behind = self.random.randint(0, min(client.drawn - 1, self.settings.guesses))
            client.kept = client.drawn - behind
            self.send(ev.StopStringFound(request_id, client.kept))

    def prepare(self, request_id: int, client: Client) -> None:
        client.prepared = True
        client.history = self.compose()
        client.prompt = len(client.history)
        client.limit = self.random.choice(self.limits)
        self.known.append(request_id)
        blocks, marks = self.blocks(client.history), self.marks(client.prompt)
        priority = self.random.choice([0, 0, 0, 0, 1, -1])
        client.masked = self.random.random() < 0.2
        client.free = self.of_masks.choice([0, 1, 3, 1 << 31]) * client.masked
        follows = self.followed(client.history)
        self.send(ev.Prepared(request_id, client.prompt, client.limit, blocks, marks, priority, client.masked, follows))

    def followed(self, prompt: bytes) -> tuple[tuple[int, int], ...]:
        """What the prompt has in common with histories of those who were in the lanes last."""
        found = []
        for owner in self.owners.values():
            client = self.clients[owner]
            same = common(prompt, client.history[: client.prompt + client.drawn])
            if same % PAGE_TOKENS:
                found.append((owner, same))
        return tuple(found)

    def calm(self) -> None:
        """No more arrivals and faults: everything runs to its end, slow readers included."""
        self.fault_rate = 0.0
        for _ in range(100_000):
            if self.exits and not self.flight:
                break
            if self.flight:
                self.land()
            elif self.masking:
                self.finish_mask()
            elif self.resetting:
                self.resetting = False
                self.send(ev.EngineReset())
            elif self.slot_jobs:
                self.finish_slot_job()
            elif self.writing:
                self.finish_writing()
            elif self.reads_disk:
                self.finish_disk_job()
            elif any(not client.released for client in self.clients.values()):
                self.finish_somebody()
            else:
                break
        for request_id, client in self.clients.items():
            if not client.released:
                client.released = True
                self.send(ev.Released(request_id))
        while self.slot_jobs:
            self.finish_slot_job()
        while self.writing:
            self.finish_writing()
        while self.reads_disk:
            self.finish_disk_job()
        if self.machine.lifecycle is Lifecycle.FAILED and not self.exits:
            self.now += 10.0
            self.send(ev.Tick())

    def finish_somebody(self) -> None:
        for request_id, client in self.clients.items():
            if client.released:
                continue
            if not client.prepared and not client.rejected:
                self.prepare(request_id, client)
                return
            if client.ends or client.rejected:
                client.released = True
                self.send(ev.Released(request_id))
                return
        self.now += 1.0  # somebody waits for a deadline
        self.send(ev.Tick())

    def verify(self) -> None:
        """Every accepted request ended exactly once, and nothing is left in use."""
        for request_id, client in self.clients.items():
            expected = 0 if client.rejected and not client.ends else 1
            assert len(client.ends) == expected, (request_id, client)
        assert not self.machine.requests
        self.machine.audit()
        self.check_tree()
        holdings = self.machine.holdings
        pages = holdings.pages
        assert pages.available + len(pages.kept) + len(pages.left) == pages.capacity
        assert all(node.users == 0 for node in holdings.tree.nodes())
        assert all(image.users == 0 and image.node is not None for image in holdings.images.stored)
        assert not self.memory.tables
        self.check_disk()
        for lane in range(self.settings.lanes):
            self.send(ev.SlotAsked(0, lane, "erase"))
        self.check_disk()
        assert self.machine.lanes == [LaneState.EMPTY] * self.settings.lanes
        if self.machine.lifecycle is Lifecycle.STOPPED:
            assert [command.status for command in self.exits] == [0]
        elif self.machine.lifecycle is Lifecycle.FAILED:
            stop_asked = any(isinstance(event, ev.StopRequested) for _now, event, _commands in self.decisions)
            ends = self.settings.exit_on_failure or stop_asked
            assert [command.status for command in self.exits] == [3] * ends
