"""At least ten thousand seeded storms, each replayed: the acceptance of the scheduler."""

from __future__ import annotations

import io
from collections import Counter
from enum import Enum
from typing import TypeVar

import orjson
import pytest

from ninfer.actors.eventlog import EventLog
from ninfer.replay import replay
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.scheduler.reuse import FROM_DISK, FULL_RESET, WAYS
from ninfer.scheduler.slots import BUSY, MISMATCH, RESTORE_FAILED, SAVE_FAILED
from ninfer.scheduler.transitions import DeviceState, RequestState
from ninfer.step import pages_for
from ninfer.types import FinishReason
from tests.support.storm import Storm

Watched = TypeVar("Watched", bound=Storm)
STORMS = 10_000
PARTS = 20


def run_storm(seed: int) -> Storm:
    return run(Storm(seed))


def run(storm: Watched) -> Watched:
    storm.start()
    storm.blow(storm.random.randint(20, 66))
    storm.calm()
    storm.verify()
    return storm


class WatchedStorm(Storm):
    """Notes every state that a request or the device is in after an event."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.states: set[Enum] = set()

    def send(self, event: ev.Event) -> list[cmd.Command]:
        commands = super().send(event)
        self.states |= {self.machine.device, *(request.state for request in self.machine.requests.values())}
        return commands


@pytest.mark.storm
@pytest.mark.parametrize("part", range(PARTS))
def test_every_request_ends_once_and_every_decision_is_made_again(part: int) -> None:
    for seed in range(part, STORMS, PARTS):
        storm = run_storm(seed)
        again = Scheduler(storm.settings)
        for now, event, commands in storm.decisions:
            assert again.handle(event, now) == commands, seed


@pytest.mark.parametrize("seed", range(0, STORMS, 50))
def test_a_storm_survives_its_log(seed: int) -> None:
    storm = run_storm(seed)
    file = io.BytesIO()
    log = EventLog(file)
    log.start(storm.settings)
    for now, event, commands in storm.decisions:
        log.decision(now, event, commands)
    lines = file.getvalue().splitlines(keepends=True)
    result = replay(lines)
    assert (result.events, result.cut_short) == (len(storm.decisions), False)
    assert [orjson.loads(line)["seq"] for line in lines] == list(range(len(lines)))


def test_the_weather_reaches_every_kind_of_end_and_every_state() -> None:
    reasons: set[str] = set()
    codes: set[str] = set()
    refused = 0
    parts = 0
    statuses: set[int] = set()
    states: list[set[Enum]] = [set(), set()]
    for seed in range(300):
        storm = run(WatchedStorm(seed))
        states[storm.settings.steps_ahead] |= storm.states
        refused += storm.refused
        parts += storm.parts_landed
        statuses |= {command.status for command in storm.exits}
        for _now, _event, commands in storm.decisions:
            reasons |= {command.reason for command in commands if isinstance(command, cmd.Finish)}
            codes |= {command.code for command in commands if isinstance(command, cmd.Fail)}
    assert reasons == {reason.value for reason in FinishReason} - {FinishReason.NONE.value}
    assert codes == {"request_queue_timeout", "service_unavailable", "internal_error", "constraint_dead_end"}
    assert refused
    assert parts > 30
    assert statuses == {0, 3}
    assert states[1] == {*DeviceState, *RequestState} - {RequestState.GONE}
    of_two_steps = {state for state in states[1] if "AHEAD" in state.name or "THEN" in state.name}
    assert states[1] - states[0] == {DeviceState.VOIDING, *of_two_steps}


def test_many_requests_go_on_from_what_others_have_read() -> None:
    ways: Counter[str] = Counter()
    slots: Counter[str] = Counter()
    reused = read = parks = host_restores = exact = 0
    for seed in range(0, STORMS, 19):
        storm = run_storm(seed)
        totals = storm.machine.statistics().totals
        ways.update(dict(totals.reuse))
        reused, read = reused + totals.reused_tokens, read + totals.prefill_tokens
        parks, host_restores = parks + storm.machine.holdings.tree.parks, host_restores + totals.host_restores
        slots.update(storm.slot_refusals)
        exact += storm.exact
        for _now, _event, commands in storm.decisions:
            slots.update(type(command).__name__ for command in commands)
    assert set(ways) == set(WAYS)
    assert min(ways.values()) >= 5, ways
    assert sum(ways.values()) - ways[FULL_RESET] > 0.12 * sum(ways.values()), ways
    assert reused > 0.12 * (reused + read)
    assert parks > 100
    assert exact > 20, exact
    assert host_restores > 5
    for what in (
        "Erased",
        "ReadSession",
        "WriteSession",
        "Forget",
        BUSY,
        MISMATCH,
        SAVE_FAILED,
        RESTORE_FAILED,
    ):
        assert slots[what] > 5, what


class SavingStorm(Storm):
    """Sessions are saved, restored and erased all the time."""

    def gust(self, roll: float) -> None:
        super().gust(0.97 if roll > 0.8 else roll)


def test_sessions_go_back_to_their_files_before_they_are_displaced() -> None:
    assert sum(run(SavingStorm(seed)).auto_saves for seed in range(0, 900, 3)) > 3


class TightStorm(Storm):
    """Nobody has a limit, there are pages for one of them, and sessions are read and written all the time."""

    limits = (5000,)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pages = max(pages_for(self.settings.max_context_tokens), self.settings.lanes)

    def gust(self, roll: float) -> None:
        disk = self.settings.disk_bytes and 0.55 < roll < 0.58
        super().gust(0.53 if disk else 0.97 if roll > 0.85 else roll)


def test_promises_are_kept_where_everything_is_promised_and_sessions_are_being_read() -> None:
    waited = given_up = 0
    for seed in range(0, 3000, 6):
        storm = run(TightStorm(seed))
        given_up += storm.machine.holdings.tree.evictions
        waited += storm.overdrawn
    assert given_up > 1000, given_up
    assert waited > 20, waited


class DiskStorm(Storm):
    """Lanes are taken and files are read all the time."""

    def gust(self, roll: float) -> None:
        super().gust(0.53 if 0.7 > roll > 0.62 else roll)


def test_sessions_come_back_from_disk() -> None:
    outcomes: Counter[str] = Counter()
    files: Counter[str] = Counter()
    ways = 0
    for seed in range(2, 3000, 5):
        storm = run(DiskStorm(seed))
        outcomes += storm.disk_outcomes
        kept, totals = storm.machine.statistics().kept, storm.machine.statistics().totals
        ways += dict(totals.reuse)[FROM_DISK]
        files.update(saved=kept.disk_saves, failed=kept.disk_save_failures, hit=kept.disk_hits, missed=kept.disk_misses)
    assert min(outcomes[what] for what in ("read", "dropped", "unreadable")) > 5, outcomes
    assert min(files.values()) > 20, files
    assert ways > 20
