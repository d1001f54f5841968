"""What the scheduler counts of what it keeps."""

from __future__ import annotations

from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.statistics import KeptView
from ninfer.types import Marks
from tests.scheduler.driving import Driver, text


def kept(server: Driver) -> KeptView:
    return server.machine.statistics().kept


def test_pages_are_counted_on_their_way_to_host_memory_and_back() -> None:
    server = Driver(pages=8, lanes=1, host_pages=4, images=8, max_context_tokens=512)
    first = server.say(text(200, 1))
    before = kept(server)
    assert (before.host_pages, before.parked, before.parks, before.loads) == (4, 0, 0, 0)
    server.say(text(500, 2))  # takes all eight pages: three blocks move out
    moved = kept(server)
    assert (moved.parked, moved.parks, moved.host_evictions, moved.unparked) == (3, 3, 0, 0)
    server.say(server.histories[first] + text(60, 3))
    back = kept(server)
    assert back.loads == 3
    assert back.parks > 3
    assert back.parks - back.loads - back.host_evictions == back.parked


def test_pages_without_a_place_are_counted_when_everything_there_is_in_use() -> None:
    server = Driver(pages=8, lanes=2, host_pages=1, images=8, max_context_tokens=512)
    server.say(text(500, 1))
    server.say(text(500, 2))
    view = kept(server)
    assert view.parks == 7  # each but the last has made room for the next
    assert (view.parked, view.host_evictions, view.unparked) == (1, 6, 0)
    assert kept(Driver(host_pages=0)).unparked == 0


def test_states_and_slot_actions_are_counted() -> None:
    server = Driver(lanes=2, turn_checkpoints=3, max_shared_prefixes=1, max_context_tokens=1024)
    for seed in (1, 2):
        server.say(text(600, seed), marks=Marks(turn=520, preamble=300))
    view = kept(server)
    assert (view.shared, view.shared_stored, view.shared_dropped) == (1, 2, 1)
    assert view.turn_checkpoints == 2
    assert (view.states, view.stored_states) == (8, 3)
    (order,) = server.slot(0, "save")
    assert isinstance(order, cmd.ReadSession)
    server.send(ev.SlotDone(order.ticket, 0, True))
    (order,) = server.slot(0, "save")
    assert isinstance(order, cmd.ReadSession)
    server.send(ev.SlotDone(order.ticket, 0, False))
    _, written = server.slot(1, "restore", text(64))
    assert isinstance(written, cmd.WriteSession)
    server.send(ev.SlotDone(written.ticket, 1, True))
    server.slot(0, "erase")
    view = kept(server)
    assert (view.saves, view.restores, view.erases) == (1, 1, 1)
