"""Seeded storms for the scheduler: a fake engine, a manual clock, and clients that come, wait, leave and read slowly.

A storm feeds the machine what the actors would feed it, in random order, and checks after every event that nothing is
lost. Steps land in the order of their launch, each after a random number of other events. When the faults stop and
everybody has been answered, nothing may be left. Odd seeds have one step ahead, even seeds none.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from ninfer.config import SchedulerSettings
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.transitions import Lifecycle
from ninfer.step import PAGE_TOKENS, pages_for


@dataclass
class Client:
    """What the storm knows of one accepted request: what was launched of it, what has landed, how it ended."""

    prompt: int
    limit: int
    prepared: bool = False
    rejected: bool = False
    released: bool = False
    read: int = 0
    drawn: int = 0
    drawing: int = 0
    steps: int = 0
    ends: list[cmd.Command] = field(default_factory=list)


class Storm:
    """One run. `decisions` is everything that happened, ready to be replayed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        context = choose([64, 200, 1024])
        lanes = choose([1, 2, 4, 8])
        self.settings = SchedulerSettings(
            lanes=lanes,
            max_context_tokens=context,
            prefill_chunk_tokens=choose([64, 128, 256]),
            max_pending=choose([1, 3, 8]),
            pending_timeout_s=choose([0.5, 5.0, 30.0]),
            max_inter_token_s=choose([0.0, 0.02, 0.1]),
            prefill_decode_ratio=choose([None, None, 0.5, 2.0]),
            steps_ahead=seed % 2,
            drain_s=choose([0.0, 1.0]),
            exit_on_failure=choose([True, False]),
        )
        least = pages_for(context)
        self.pages = self.random.randint(max(least, lanes), least * lanes)
        self.fault_rate = choose([0.0, 0.0, 0.05, 0.4])
        self.now = 100.0
        self.machine = Scheduler(self.settings)
        self.decisions: list[tuple[float, ev.Event, list[cmd.Command]]] = []
        self.clients: dict[int, Client] = {}
        self.refused = 0
        self.tickets = 0
        self.flight: deque[cmd.StartChunk | cmd.StartRound] = deque()
        self.void = False
        self.landed_behind_a_fault = 0
        self.resetting = False
        self.wake: float | None = None
        self.exits: list[cmd.Exit] = []
        self.tables: dict[int, list[int]] = {}

    def send(self, event: ev.Event) -> list[cmd.Command]:
        commands = self.machine.handle(event, self.now)
        self.decisions.append((self.now, event, commands))
        for command in commands:
            self.obey(command)
        self.machine.audit()
        return commands

    def obey(self, command: cmd.Command) -> None:
        match command:
            case cmd.Accept():
                self.clients[command.request_id] = Client(
                    self.random.randint(1, self.settings.max_context_tokens),
                    self.random.choice([0, 1, 2, 5, 40, 5000]),
                )
            case cmd.Refuse():
                self.refused += 1
            case cmd.Finish() | cmd.Fail():
                self.clients[command.request_id].ends.append(command)
                self.give_back(command.request_id)
            case cmd.StartChunk():
                self.launch(command)
                self.check_chunk(command)
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
            case _:
                pass

    def launch(self, command: cmd.StartChunk | cmd.StartRound) -> None:
        assert len(self.flight) <= self.settings.steps_ahead, "more steps than may be ahead"
        assert not self.resetting
        assert not self.void
        self.flight.append(command)
        for request_id in self.riders(command):
            client = self.clients[request_id]
            assert not client.ends, "a step for a request that has ended"
            client.steps += 1

    @staticmethod
    def riders(command: cmd.StartChunk | cmd.StartRound) -> list[int]:
        return [command.request_id] if isinstance(command, cmd.StartChunk) else [row.request_id for row in command.rows]

    def give_back(self, request_id: int) -> None:
        """Its pages may be anybody's once it has ended and no step works on them any more."""
        client = self.clients[request_id]
        if client.ends and not client.steps:
            self.tables.pop(request_id, None)

    def check_chunk(self, command: cmd.StartChunk) -> None:
        client = self.clients[command.request_id]
        assert command.begin == client.read
        client.read = command.end
        assert 0 < command.end - command.begin <= self.settings.prefill_chunk_tokens
        assert command.begin % PAGE_TOKENS == 0
        assert command.end == client.prompt or command.end % PAGE_TOKENS == 0
        assert command.sample == (command.end == client.prompt and self.effective(client) > 0)
        client.drawing += command.sample
        self.check_mapping(command.request_id, command.mapping.first, command.mapping.pages, command.end)

    def check_round(self, command: cmd.StartRound) -> None:
        lanes = [row.lane for row in command.rows]
        assert lanes == sorted(set(lanes))
        for row in command.rows:
            client = self.clients[row.request_id]
            assert client.drawn > 0, "a row before its first token has landed"
            assert row.position == client.prompt + client.drawing - 1
            client.drawing += 1
            assert client.drawing <= self.effective(client)
            self.check_mapping(row.request_id, row.mapping.first, row.mapping.pages, row.position + 1)

    def check_mapping(self, request_id: int, first: int, pages: tuple[int, ...], tokens: int) -> None:
        table = self.tables.setdefault(request_id, [])
        assert first == len(table)
        table.extend(pages)
        assert len(table) >= pages_for(tokens)
        if pages:
            others = {page for owner, owned in self.tables.items() if owner != request_id for page in owned}
            assert not others & set(table)

    def effective(self, client: Client) -> int:
        return min(client.limit, self.settings.max_context_tokens - client.prompt)

    def land(self) -> None:
        step = self.flight.popleft()
        device_s = self.random.choice([0.0005, 0.002, 0.05])
        self.now += device_s
        for request_id in self.riders(step):
            self.clients[request_id].steps -= 1
            self.give_back(request_id)
        # What stands behind a failed step fails as well, or is done and worth nothing.
        failed = self.random.random() < (0.5 if self.void else self.fault_rate)
        self.landed_behind_a_fault += self.void
        self.void = (self.void or failed) and bool(self.flight)
        if failed:
            self.send(ev.StepFailed(step.step, "device fault"))
        elif isinstance(step, cmd.StartChunk):
            stopped = step.sample and self.random.random() < 0.1
            self.clients[step.request_id].drawn += step.sample
            self.send(ev.ChunkLanded(step.step, int(step.sample), stopped, device_s))
        else:
            rows = []
            for row in step.rows:
                self.clients[row.request_id].drawn += 1
                rows.append(ev.RowLanded(row.request_id, 1, self.random.random() < 0.05))
            self.send(ev.RoundLanded(step.step, tuple(rows), device_s))

    def start(self) -> None:
        self.send(ev.PlanMade(10, 20, "short"))
        self.send(ev.ModelLoaded(10, 20, self.pages, "short"))
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
        elif self.resetting and roll < 0.7:
            self.resetting = False
            lost = self.random.random() < 0.1
            self.send(ev.EngineLost("device lost") if lost else ev.EngineReset())
        elif roll < 0.65:
            self.tickets += 1
            self.send(ev.Arrived(self.tickets))
        elif roll < 0.995:
            self.somebody_acts()
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
                client.prepared = True
                self.send(ev.Prepared(request_id, client.prompt, client.limit))
        elif client.ends or client.rejected or self.random.random() < 0.1:
            client.released = True  # read to its end, or left in the middle
            self.send(ev.Released(request_id))
        elif client.drawn and self.random.random() < 0.4:
            self.send(ev.StopStringFound(request_id))

    def calm(self) -> None:
        """No more arrivals and faults: everything runs to its end, slow readers included."""
        self.fault_rate = 0.0
        for _ in range(100_000):
            if self.exits and not self.flight:
                break
            if self.flight:
                self.land()
            elif self.resetting:
                self.resetting = False
                self.send(ev.EngineReset())
            elif any(not client.released for client in self.clients.values()):
                self.finish_somebody()
            else:
                break
        for request_id, client in self.clients.items():
            if not client.released:
                client.released = True
                self.send(ev.Released(request_id))
        if self.machine.lifecycle is Lifecycle.FAILED and not self.exits:
            self.now += 10.0
            self.send(ev.Tick())

    def finish_somebody(self) -> None:
        for request_id, client in self.clients.items():
            if client.released:
                continue
            if not client.prepared and not client.rejected:
                client.prepared = True
                self.send(ev.Prepared(request_id, client.prompt, client.limit))
                return
            if client.ends or client.rejected:
                client.released = True
                self.send(ev.Released(request_id))
                return
        self.now += 1.0  # somebody waits for a deadline
        self.send(ev.Tick())

    def verify(self) -> None:
        """Every accepted request ended exactly once, and nothing is left."""
        for request_id, client in self.clients.items():
            expected = 0 if client.rejected and not client.ends else 1
            assert len(client.ends) == expected, (request_id, client)
        assert not self.machine.requests
        self.machine.audit()
        assert self.machine.pages.available == self.machine.pages.capacity
        assert not self.tables
        if self.machine.lifecycle is Lifecycle.STOPPED:
            assert [command.status for command in self.exits] == [0]
        elif self.machine.lifecycle is Lifecycle.FAILED:
            stop_asked = any(isinstance(event, ev.StopRequested) for _now, event, _commands in self.decisions)
            ends = self.settings.exit_on_failure or stop_asked
            assert [command.status for command in self.exits] == [3] * ends
