"""A session that has a file goes back there before it is displaced, by whatever."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.statistics import KeptView
from ninfer.scheduler.transitions import LaneState
from ninfer.types import Marks
from tests.scheduler.driving import Driver, blocks, text


def asked(server: Driver, lane: int, action: str, file: str = "a.bin", of: bytes = b"") -> list[cmd.Command]:
    return server.send(ev.SlotAsked(1000, lane, action, True, len(of), blocks(of), (), file))


def bind(server: Driver, lane: int = 0, file: str = "a.bin") -> None:
    """Save the session of a lane."""
    (order,) = asked(server, lane, "save", file)
    assert isinstance(order, cmd.ReadSession)
    server.send(ev.SlotDone(order.ticket, lane, True))


def bound(**settings: object) -> tuple[Driver, bytes]:
    """A server whose lane 0 retains a session that has grown since it was saved, and that session."""
    server = Driver(**{"lanes": 1, "auto_save": True, "max_context_tokens": 2048, "pages": 32, **settings})  # type: ignore[arg-type]
    first = server.say(text(200, 1), limit=2)
    bind(server)
    history = server.histories[first][:202]
    second = server.say(history + text(100, 2), limit=2)
    return server, server.histories[second][:304]


def evicted(commands: list[cmd.Command]) -> cmd.SaveEvicted:
    (order,) = (command for command in commands if isinstance(command, cmd.SaveEvicted))
    return order


def kept(server: Driver) -> KeptView:
    return server.machine.statistics().kept


def saves(server: Driver) -> list[str]:
    return [command.file for command in server.out if isinstance(command, cmd.SaveEvicted)]


def test_a_session_is_read_for_its_file_before_another_gets_its_lane() -> None:
    server, history = bound()
    request = server.ask(text(100, 3))
    order = evicted(server.out)
    assert (order.file, order.read.tokens, order.read.state) == ("a.bin", len(history), 256)
    assert [server.memory.pages[page] for page in order.read.pages] == [history[:end] for end in range(64, 257, 64)]
    assert server.machine.lanes == [LaneState.SAVING]
    assert not server.chunks(request)
    out = server.send(ev.SlotDone(order.read.ticket, 0, True))
    assert any(isinstance(command, cmd.Admit) for command in out)  # while the file is written
    server.send(ev.SlotWritten(order.read.ticket, True))
    server.run()
    assert (kept(server).auto_saves, kept(server).auto_save_failures, kept(server).saves) == (1, 0, 1)


def test_what_goes_on_with_a_session_keeps_its_file() -> None:
    server, history = bound()
    server.say(history + text(90, 4))
    assert saves(server) == []
    server.ask(text(100, 3))
    assert evicted(server.out).file == "a.bin"


def test_what_has_no_file_or_is_there_already_is_not_written() -> None:
    server = Driver(lanes=1, auto_save=True)
    server.say(text(200, 1))
    server.say(text(200, 2))
    bind(server)
    server.say(text(200, 3))
    assert saves(server) == []
    server, _history = bound(auto_save=False)
    server.say(text(100, 3))
    assert saves(server) == []


def test_an_erased_session_is_not_written() -> None:
    server, _history = bound()
    asked(server, 0, "erase")
    server.say(text(100, 3))
    assert saves(server) == []


def test_a_session_that_a_long_prompt_pushes_out_is_read_first() -> None:
    server, _history = bound(lanes=2)
    assert server.machine.lanes == [LaneState.RETAINED, LaneState.EMPTY]
    request = server.ask(text(1900, 3))
    order = evicted(server.out)
    assert not server.chunks(request)
    server.send(ev.SlotDone(order.read.ticket, 0, True))
    assert server.chunks(request)
    assert server.machine.lanes[0] is LaneState.RETAINED  # until its pages are really needed
    server.run()
    assert server.machine.lanes[0] is LaneState.EMPTY


def test_a_session_for_which_host_memory_has_room_stays() -> None:
    server, _history = bound(lanes=2, host_pages=16)
    server.say(text(1900, 3))
    assert server.machine.lanes == [LaneState.RETAINED, LaneState.RETAINED]
    assert saves(server) == []


def test_what_is_used_longer_ago_goes_first_and_nothing_is_written_for_it() -> None:
    server = Driver(lanes=3, auto_save=True, max_context_tokens=2048, pages=32)
    server.say(text(600, 7))  # ten pages that go first
    first = server.say(text(200, 1))
    bind(server, 1)
    server.say(server.histories[first][:201] + text(100, 2))
    request = server.ask(text(1500, 3))
    assert server.chunks(request)
    assert saves(server) == []


def test_a_restore_over_a_session_waits_until_it_is_read() -> None:
    server, _history = bound()
    out = asked(server, 0, "restore", "b.bin", text(128, 5))
    order = evicted(out)
    assert len(out) == 1
    out = server.send(ev.SlotDone(order.read.ticket, 0, True))
    assert [type(command) for command in out] == [cmd.Forget, cmd.WriteSession]
    assert isinstance(out[1], cmd.WriteSession)
    server.send(ev.SlotWritten(order.read.ticket, True))
    server.memory.images.update({image: text(128, 5)[:frontier] for frontier, image in out[1].images})
    server.memory.pages.update({page: text(128, 5)[: 64 * at] for at, page in enumerate(out[1].pages, 1)})
    server.send(ev.SlotDone(out[1].ticket, 0, True))
    server.say(text(100, 6))  # a restored session that has not grown is in its file
    assert saves(server) == ["a.bin"]


def test_a_restore_that_pushes_another_session_out_waits_as_well() -> None:
    server, _history = bound(lanes=2)
    order = evicted(asked(server, 1, "restore", "b.bin", text(1920, 5)))
    assert order.read.lane == 0
    out = server.send(ev.SlotDone(order.read.ticket, 0, True))
    assert any(isinstance(command, cmd.WriteSession) for command in out)


def between_two() -> tuple[Driver, int]:
    """Ten old pages in lane 0 and a changed session in lane 1; a request that runs may come to take eight of these."""
    server = Driver(lanes=4, auto_save=True, max_context_tokens=2048, pages=32)
    server.say(text(640, 7))
    first = server.say(text(200, 1))
    bind(server, 1)
    server.say(server.histories[first][:201] + text(100, 2))
    return server, server.ask(text(100, 3), limit=64 * 26 - 99)


def test_a_save_that_leaves_others_to_go_waits_until_they_are_read() -> None:
    server, running = between_two()
    assert saves(server) == []
    order = evicted(asked(server, 0, "save", "c.bin"))  # whose pages cannot be given up meanwhile
    assert order.read.lane == 1
    assert asked(server, 0, "save", "d.bin") == []
    out = server.send(ev.SlotDone(order.read.ticket, 1, True))
    assert [type(command) for command in out if not isinstance(command, cmd.StartRound)] == [
        cmd.ReadSession,
        cmd.RefuseSlot,
    ]
    assert server.machine.lanes[:2] == [LaneState.SAVING, LaneState.RETAINED]
    server.send(ev.SlotDone(1000, 0, True))
    server.run()
    assert len(server.histories[running]) == 64 * 26 + 1


def test_a_session_loses_nothing_to_a_promise_that_was_there_when_its_blocks_were_in_use() -> None:
    server = Driver(lanes=4, auto_save=True, max_context_tokens=576, pages=9, appends=True, prefill_chunk_tokens=64)
    first = server.say(text(270, 1), limit=2, marks=Marks(preamble=256))
    bind(server)
    history = server.histories[first][:272]
    server.ask(history + text(10, 2), limit=2, follows=((first, 272),))
    server.run()
    server.ask(history[:256] + text(30, 3), limit=34)  # a page, and four of the session's five in use
    growing = server.ask(text(50, 4), limit=64 * 4 - 49)  # four pages, where three are left
    assert [request.lane for request in server.machine.requests.values()][-2:] == [1, 2]
    server.run()
    assert len(server.histories[growing]) == 64 * 4 + 1
    assert cmd.Forget(0) not in server.out


@pytest.mark.parametrize("action", ["save", "restore"])
def test_who_may_displace_a_session_waits_while_one_is_read_for_any_file(action: str) -> None:
    server, _running = between_two()
    order = evicted(asked(server, 0, "save", "c.bin"))
    waiting = server.ask(text(100, 4))
    assert not server.chunks(waiting)
    server.send(ev.SlotDone(order.read.ticket, 1, True))
    assert server.machine.lanes[0] is LaneState.SAVING
    assert server.machine.requests[waiting].lane is None
    assert asked(server, 1 if action == "save" else 3, action, "e.bin", text(256, 5)) == []
    out = server.send(ev.SlotDone(1000, 0, True))
    assert (cmd.ReadSession if action == "save" else cmd.WriteSession) in [type(command) for command in out]
    assert (server.machine.requests[waiting].lane is None) == (action == "save")


def goes_back() -> tuple[Driver, int, bytes]:
    """A request has the lane of a session that it goes on with from far in front of its end, and has not begun."""
    server = Driver(lanes=4, auto_save=True, max_context_tokens=2048, pages=32, prefill_chunk_tokens=64, steps_ahead=0)
    first = server.say(text(600, 1), limit=2, marks=Marks(turn=130))
    bind(server)
    history = server.histories[first][:602]
    server.say(history + text(100, 2))
    server.ask(text(900, 4), priority=-1)
    back = server.ask(history[:130] + text(50, 5))
    assert server.machine.requests[back].lane == 0
    return server, back, history


@pytest.mark.parametrize("leaves", [False, True])
def test_the_end_of_a_session_in_a_lane_that_is_taken_stays_until_that_has_begun(leaves: bool) -> None:
    server, back, history = goes_back()
    waiting = server.ask(text(640, 6), priority=-1)  # ten pages, of which four are behind where the request goes on
    server.land()
    assert server.machine.requests[waiting].lane is None
    assert saves(server) == []
    if leaves:
        server.send(ev.Released(back))
        order = evicted(server.out)
        assert order.read.tokens == len(history) + 101
        server.send(ev.SlotDone(order.read.ticket, 0, True))
    server.run()
    assert server.chunks(waiting)
    assert len(saves(server)) == leaves


def test_a_restore_waits_as_well_for_a_lane_that_is_taken() -> None:
    server, _back, _history = goes_back()
    assert asked(server, 3, "restore", "b.bin", text(640, 8)) == []
    server.run()
    assert [type(command) for command in server.out].count(cmd.WriteSession) == 1
    assert saves(server) == []


def test_one_session_is_written_at_a_time() -> None:
    server, _history = bound()
    server.ask(text(200, 3))
    first = evicted(server.out)
    server.send(ev.SlotDone(first.read.ticket, 0, True))
    server.run()
    bind(server, 0, "b.bin")
    third = server.say(text(200, 3) + text(100, 8))
    waiting = server.ask(text(100, 9))
    assert saves(server) == ["a.bin"]
    assert not server.chunks(waiting)
    out = server.send(ev.SlotWritten(first.read.ticket, True))
    assert evicted(out).file == "b.bin"
    assert server.chunks(third)


def test_a_file_that_could_not_be_written_is_tried_again_while_the_session_is_there() -> None:
    server, _history = bound(lanes=2)
    session = server.machine.holdings.sessions[0]
    assert session is not None
    order = evicted(asked(server, 1, "restore", "b.bin", text(1920, 5)))
    server.send(ev.SlotWritten(order.read.ticket, False))
    assert session.changed
    assert kept(server).auto_save_failures == 1
    with pytest.raises(IllegalTransition, match="written for nobody"):
        server.send(ev.SlotWritten(order.read.ticket, True))


def test_a_session_that_cannot_be_read_makes_way_all_the_same() -> None:
    server, _history = bound()
    session = server.machine.holdings.sessions[0]
    assert session is not None
    session.resident = None
    for image in server.machine.holdings.images.stored:
        server.machine.holdings.images.drop(image)
    request = server.say(text(100, 3))
    assert server.chunks(request)
    assert saves(server) == []
    assert kept(server).auto_save_failures == 1


@pytest.mark.parametrize("lane", [0, 1])
def test_a_restore_goes_over_a_session_that_cannot_be_read(lane: int) -> None:
    """In its own lane, and in another for which it has to make room."""
    server, _history = bound(lanes=2)
    session = server.machine.holdings.sessions[0]
    assert session is not None
    session.resident = None
    for image in server.machine.holdings.images.stored:
        server.machine.holdings.images.drop(image)
    out = asked(server, lane, "restore", "b.bin", text(1920, 5))
    assert cmd.WriteSession in [type(command) for command in out]
    assert kept(server).auto_save_failures == 1


def test_a_fault_while_a_session_is_read_loses_it_and_holds_nobody_up() -> None:
    server, _history = bound(lanes=2)
    running = server.ask(text(100, 4), limit=3)
    assert len(server.chunks(running)) == 1
    waiting = server.ask(text(100, 3))
    order = evicted(server.out)
    server.send(ev.StepFailed(server.machine.flight.steps[0].number, "device fault"))
    server.send(ev.EngineReset())
    assert not server.chunks(waiting)
    server.send(ev.SlotDone(order.read.ticket, order.read.lane, False))
    server.send(ev.SlotWritten(order.read.ticket, False))
    assert kept(server).auto_save_failures == 1
    assert server.chunks(waiting)
