"""Events and commands survive the way through a dictionary, and what is not one of them is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from ninfer.config import SchedulerSettings
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.records import BadRecord, build, fields_of, from_record, to_record
from ninfer.step import CaptureState, LoadPages, PageMapping, ParkPages, RestoreState
from ninfer.types import Marks


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Painted:
    colour: Colour


def test_enums_are_written_by_name() -> None:
    assert fields_of(Painted(Colour.RED)) == {"colour": "RED"}


MESSAGES = [
    ev.Tick(),
    ev.Arrived(3),
    ev.RoundLanded(7, (ev.RowLanded(1, 1, False), ev.RowLanded(2, 1, True)), 0.25),
    cmd.StartChunk(1, 2, 0, 64, 128, PageMapping(1, (4, 9)), True),
    cmd.StartChunk(1, 2, 0, 64, 128, PageMapping(1, (4, 9)), True, foresee=3, recall=7),
    cmd.StartRound(3, (cmd.RowStart(1, 0, 17, PageMapping(1, ())),)),
    ev.RoundLanded(7, (ev.RowLanded(1, 3, False, ("a",), 4, 2, True),), 0.25),
    cmd.StartRound(3, (cmd.RowStart(1, 0, 17, PageMapping(1, ()), 3, 15),)),
    cmd.Finish(1, None, "stop_token"),
    cmd.Finish(1, 2, "cancelled"),
    ev.Prepared(1, 130, 5, ("a", "b"), Marks(turn=128, preamble=64), -1, masked=True),
    ev.MaskReady(1),
    ev.MaskReady(1, 2, guessed=3, mask_s=0.25),
    cmd.StartRound(3, (cmd.RowStart(1, 0, 17, PageMapping(1, ()), 3, 0, 5, 7),)),
    ev.MaskFailed(1, "constraint_dead_end"),
    ev.SlotAsked(1, 0, "restore", True, 130, ("a", "b"), (64,)),
    cmd.StartChunk(
        1,
        2,
        0,
        64,
        128,
        PageMapping(1, (4,)),
        False,
        (LoadPages((3,), (4,)), RestoreState(1, 0)),
        (CaptureState(0, 2),),
        False,
    ),
    cmd.StartRound(3, (), (ParkPages((1, 2), (5, 6)),)),
    cmd.ReadSession(1, 0, 130, 129, 128, 3, True, (4,), (5,), 1, ((64, 2),)),
    cmd.SaveEvicted("a.bin", cmd.ReadSession(-1, 0, 130, 129, 128, 3, True, (4,), (5,), 1, ((64, 2),))),
    cmd.SaveEvicted("kv-1-1", cmd.ReadSession(-1, 0, 128, 128, 128, 3, True, (4,), (5,), 1, ()), to_disk=True),
    ev.DiskFound("kv-1-1", 9, ("a", "b"), (1, 2)),
    cmd.WriteDisk(1, 1, (5,), 3, (ParkPages((5,), (0,)),)),
    cmd.WriteSession(1, 0, 130, 1, (5,), ((64, 2), (128, 3)), (ParkPages((5,), (0,)),)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: Any) -> None:
    record = json.loads(json.dumps(to_record(message)))
    assert record["type"] == type(message).__name__
    assert from_record(record) == message


def test_settings_survive_and_whole_numbers_may_stand_for_reals() -> None:
    settings = SchedulerSettings(prefill_decode_ratio=2.0, drain_s=5.0)
    record = json.loads(json.dumps(fields_of(settings)))
    record["drain_s"] = 5
    assert build(SchedulerSettings, record) == settings


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"type": "Nothing"},
        {"type": "Arrived"},
        {"type": "Arrived", "ticket": 1, "name": "", "more": 2},
        {"type": "Arrived", "ticket": "1", "name": ""},
        {"type": "Arrived", "ticket": True, "name": ""},
        {"type": "RoundLanded", "step": 1, "rows": [{"request_id": 1}], "device_s": 0.1},
        {"type": "StartRound", "step": 1, "rows": [], "before": [{"type": "Arrived", "ticket": 1}]},
        {"type": "StartRound", "step": 1, "rows": [], "before": [{"pages": [], "places": []}]},
    ],
)
def test_what_is_not_a_record_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(BadRecord):
        from_record(record)
