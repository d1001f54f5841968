"""At least ten thousand seeded storms, each replayed: the acceptance of the scheduler."""

from __future__ import annotations

import io

import orjson
import pytest

from ninfer.actors.eventlog import EventLog
from ninfer.replay import replay
from ninfer.scheduler.commands import Fail, Finish
from ninfer.scheduler.machine import Scheduler
from ninfer.types import FinishReason
from tests.support.storm import Storm

STORMS = 10_000
PARTS = 20


def run_storm(seed: int) -> Storm:
    storm = Storm(seed)
    storm.start()
    storm.blow(storm.random.randint(20, 90))
    storm.calm()
    storm.verify()
    return storm


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


def test_the_weather_reaches_every_kind_of_end() -> None:
    reasons: set[str] = set()
    codes: set[str] = set()
    refused = 0
    statuses: set[int] = set()
    for seed in range(300):
        storm = run_storm(seed)
        refused += storm.refused
        statuses |= {command.status for command in storm.exits}
        for _now, _event, commands in storm.decisions:
            reasons |= {command.reason for command in commands if isinstance(command, Finish)}
            codes |= {command.code for command in commands if isinstance(command, Fail)}
    assert reasons == {reason.value for reason in FinishReason} - {FinishReason.NONE.value}
    assert codes == {"request_queue_timeout", "service_unavailable", "internal_error"}
    assert refused
    assert statuses == {0, 3}
