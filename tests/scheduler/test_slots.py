"""Saving, restoring and erasing what lanes retain, in every state of a lane."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.transitions import LaneState, RequestState
from ninfer.snapshots.rules import FARTHEST
from ninfer.step import MOST_DRAFTS, ParkPages
from ninfer.types import Marks
from tests.scheduler.driving import Driver, blocks, text

ACTIONS = ("save", "restore", "erase")


def refused(server: Driver, lane: int, action: str, file: bytes = b"") -> str:
    """The code of a refusal, which changes nothing."""
    before = (list(server.machine.lanes), server.images(), server.machine.pages.available)
    (refusal,) = server.slot(lane, action, file)
    assert isinstance(refusal, cmd.RefuseSlot)
    assert (list(server.machine.lanes), server.images(), server.machine.pages.available) == before
    return refusal.code


def done(server: Driver, order: cmd.ReadSession | cmd.WriteSession, ok: bool = True) -> list[cmd.Command]:
    return server.send(ev.SlotDone(order.ticket, order.lane, ok))


def saving(server: Driver, lane: int = 0) -> cmd.ReadSession:
    (order,) = server.slot(lane, "save")
    assert isinstance(order, cmd.ReadSession)
    return order


def restoring(server: Driver, lane: int, file: bytes, checkpoints: tuple[int, ...] = ()) -> cmd.WriteSession:
    forget, order = server.slot(lane, "restore", file, checkpoints)
    assert forget == cmd.Forget(lane)
    assert isinstance(order, cmd.WriteSession)
    return order


def written(server: Driver, order: cmd.WriteSession, file: bytes) -> None:
    """The engine and the file do their part."""
    for block, page in enumerate(order.pages, start=order.skipped):
        server.memory.pages[page] = file[: (block + 1) * 64]
    for frontier, image in order.images:
        server.memory.images[image] = file[:frontier]
    assert done(server, order) == []


def test_a_session_is_read_with_the_state_of_its_lane() -> None:
    server = Driver(turn_checkpoints=3)
    mark = Marks(turn=100, message_begin=70, message_end=80)
    pages = server.chunks(server.say(text(200), limit=3, marks=mark))[-1].mapping.pages
    order = saving(server)
    first = server.chunks(1)[0].mapping.pages
    assert order == cmd.ReadSession(order.ticket, 0, 203, 202, 192, 1, True, (*first, *pages)[:3], (), 0, ((64, 0),))
    assert server.machine.lanes[0] is LaneState.SAVING
    assert server.images() == {64: "TURN", 192: "FRONTIER"}
    assert done(server, order) == []
    assert server.machine.lanes[0] is LaneState.RETAINED
    again = saving(server)
    assert (again.capture, again.image) == (False, 1)


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_is_done_with_a_lane_that_is_busy(action: str) -> None:
    server = Driver(lanes=1, prefill_chunk_tokens=64, steps_ahead=1)
    request = server.ask(text(100), limit=9)
    assert server.machine.lanes == [LaneState.PREFILLING]
    assert refused(server, 0, action, text(64)) == "slot_busy"
    server.land()
    server.land()
    assert server.machine.lanes == [LaneState.DECODING]
    assert refused(server, 0, action, text(64)) == "slot_busy"
    server.send(ev.Released(request))
    server.run()
    saving(server)
    assert refused(server, 0, action, text(64)) == "slot_busy"


@pytest.mark.parametrize(
    ("action", "outcome"), [("save", cmd.ReadSession), ("restore", cmd.WriteSession), ("erase", cmd.Erased)]
)
def test_an_action_behind_an_answer_waits_for_the_step_that_still_uses_the_lane(action: str, outcome: type) -> None:
    """The client has its answer, and a step behind the last token is in flight: the next that it asks for is done."""
    server = Driver(lanes=1, prefill_chunk_tokens=128, steps_ahead=1)
    request = server.ask(text(100), limit=9)
    server.land()
    server.land(stop=request)
    assert server.machine.lanes == [LaneState.VACATING]
    assert server.slot(0, action, text(64)) == []
    kinds: list[type] = []
    while server.machine.flight.steps:
        kinds += [type(command) for command in server.land()]
    assert outcome in kinds
    assert cmd.RefuseSlot not in kinds


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_is_done_with_a_lane_that_is_being_restored(action: str) -> None:
    server = Driver()
    restoring(server, 0, text(64))
    assert server.machine.lanes[0] is LaneState.RESTORING
    assert refused(server, 0, action, text(64)) == "slot_busy"


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_is_done_with_another_session_than_was_meant(action: str) -> None:
    server = Driver()
    server.say(text(100))
    assert server.send(ev.SlotAsked(5, 0, action, expected=False)) == [cmd.RefuseSlot(5, "slot_session_mismatch")]
    assert server.machine.lanes[0] is LaneState.RETAINED


def test_what_cannot_be_saved_is_refused() -> None:
    server = Driver()
    assert refused(server, 0, "save") == "slot_save_failed"  # empty
    server.say(text(1), limit=0)
    assert refused(server, 0, "save") == "slot_save_failed"  # too short
    server.say(text(2), limit=0)
    assert saving(server, 1).pages == ()  # short, and there is no state to it


def test_a_session_whose_state_is_nowhere_is_not_saved() -> None:
    server = Driver(images=0)
    server.say(text(200))
    assert refused(server, 0, "save") == "slot_save_failed"


def test_a_block_that_is_folded_late_is_read_again_after_a_restore() -> None:
    server = Driver(images=1, folds_late=True, steps_ahead=0)
    server.say(text(127), limit=2)  # a row has filled the second block, whose state is not written yet
    (order,) = server.slot(0, "save")
    assert isinstance(order, cmd.ReadSession)
    assert (order.tokens, order.executed, order.state) == (129, 128, 64)


@pytest.mark.parametrize("guesses", [0, 4, MOST_DRAFTS])
def test_what_a_late_fold_has_left_behind_is_saved_again_after_a_restore(guesses: int) -> None:
    """Also by a server whose rounds draw fewer tokens."""
    server = Driver(images=1, folds_late=True, steps_ahead=0, draft_tokens=guesses)
    session = server.say(text(127), limit=2 + guesses)  # a row begins in the last position of a block
    order = saving(server)
    assert (order.tokens, order.executed, order.state) == (129 + guesses, 128 + guesses, 64)
    file = server.histories[session]
    for draft_tokens in (guesses, 0):
        other = Driver(images=1, folds_late=True, steps_ahead=0, draft_tokens=draft_tokens)
        restore = ev.SlotAsked(1, 0, "restore", tokens=order.tokens, blocks=blocks(file)[:1])
        _forget, write = other.send(restore)
        assert isinstance(write, cmd.WriteSession)
        written(other, write, file)
        again = saving(other)
        assert (again.tokens, again.state) == (order.tokens, order.state)
        assert again.executed in (again.tokens - 1, again.tokens)
        assert 0 <= again.executed - again.state <= FARTHEST


def test_a_state_behind_the_end_of_the_session_is_not_saved() -> None:
    server = Driver(steps_ahead=1)
    request = server.ask(text(120), limit=40)
    while server.machine.requests[request].drawn < 7:
        server.land()
    server.send(ev.StopStringFound(request, 7))  # after 127 tokens; rows in flight fill the second block
    server.run()
    assert refused(server, 0, "save") == "slot_save_failed"


def partly_in_host_memory(host_pages: int = 32) -> tuple[Driver, bytes]:
    """A server whose lane 0 retains a session of ten blocks, eight of them in host memory, and that session."""
    server = Driver(pages=32, lanes=2, max_context_tokens=2048, host_pages=host_pages)
    first = server.say(text(640, 1), limit=2)
    server.say(text(1900, 2), limit=1)
    assert server.machine.lanes == [LaneState.RETAINED] * 2
    return server, server.histories[first]


def test_a_session_that_is_partly_in_host_memory_is_read_from_there() -> None:
    server, history = partly_in_host_memory()
    order = saving(server)
    assert (len(order.pages), len(order.places)) == (2, 8)
    read = [server.memory.pages[page] for page in order.pages] + [server.memory.places[place] for place in order.places]
    assert read == [history[:end] for end in range(64, 641, 64)]
    assert done(server, order) == []


def test_places_that_a_save_reads_are_not_written_until_it_is_done() -> None:
    server, history = partly_in_host_memory(host_pages=9)
    order = saving(server)
    server.say(text(640, 1) + text(10, 3))  # its blocks come back to the device, and others move out for them
    assert server.machine.holdings.tree.loads == 8
    assert [server.memory.places[place] for place in order.places] == [history[:end] for end in range(192, 641, 64)]
    assert not set(order.places) & {node.place for node in server.machine.holdings.tree.nodes()}
    done(server, order)
    server.machine.audit()
    before = server.machine.holdings.tree.parks
    server.say(text(1900, 4))
    assert server.machine.holdings.tree.parks > before + 1
    assert set(order.places) & {node.place for node in server.machine.holdings.tree.nodes()}


def test_two_saves_may_read_the_same_places() -> None:
    server, _history = partly_in_host_memory()
    tree = server.machine.holdings.tree
    place = next(node.place for node in tree.nodes() if node.place is not None)
    tree.hold([place])
    order = saving(server)
    server.say(text(640, 1) + text(10, 3))
    done(server, order)
    server.machine.audit()
    assert place not in tree._free_places
    tree.let_go([place])
    server.machine.audit()
    assert place in tree._free_places


def test_a_fault_lets_go_of_all_places() -> None:
    server, _history = partly_in_host_memory()
    order = saving(server)
    server.ask(text(100, 5))
    step = server.machine.flight.steps[0].number
    server.send(ev.StepFailed(step, "device fault"))
    assert server.machine.holdings.faults == order.faults + 1
    server.send(ev.EngineReset())
    done(server, order, ok=False)
    server.machine.audit()
    assert len(server.machine.holdings.tree._free_places) == 32


def test_a_restored_session_is_gone_on_from() -> None:
    server = Driver(turn_checkpoints=3)
    file = text(330)
    order = restoring(server, 1, file[:320] + file[320:], (64, 192))
    assert (order.tokens, order.skipped, len(order.pages)) == (330, 0, 5)
    assert order.images == ((64, 2), (192, 1), (320, 0))
    assert server.machine.holdings.sessions[1] is None
    written(server, order, file)
    assert server.machine.lanes == [LaneState.EMPTY, LaneState.RETAINED]
    view = server.machine.statistics().lanes[1]
    assert (view.prompt_tokens, view.checkpoints) == (330, (64, 192))
    following = server.say(file + text(10, 1))
    assert server.reused(following) == (1, "append_frontier", 320)
    edited = server.say(file[:200] + text(30, 2))
    assert server.reused(edited) == (1, "restore_turn_checkpoint", 192)


def test_blocks_that_are_there_already_are_not_written_again() -> None:
    server = Driver()
    first = server.say(text(200), limit=2)
    file = server.histories[first][:192] + text(140, 1)
    order = restoring(server, 1, file)
    assert (order.skipped, len(order.pages)) == (3, 2)
    written(server, order, file)
    assert server.reused(server.say(file + text(10, 2)))[1:] == ("append_frontier", 320)
    again = restoring(server, 0, file)
    assert (again.skipped, again.pages) == (5, ())
    written(server, again, file)


def test_blocks_that_others_read_meanwhile_are_shared() -> None:
    server = Driver(lanes=2)
    file = text(320)
    order = restoring(server, 1, file)
    request = server.say(file + text(10, 1), limit=2)
    assert server.reused(request) == (0, "full_reset", 0)
    written(server, order, file)
    assert server.machine.pages.available == server.machine.pages.capacity - 5
    # Nobody uses what the request has left, so that the newer pages can stay.
    assert tuple(node.page for node in server.machine.holdings.tree.match(blocks(file), 9)) == order.pages


def test_a_session_too_short_for_a_state_is_restored_as_it_is() -> None:
    server = Driver()
    order = restoring(server, 0, text(40))
    assert (order.pages, order.images) == ((), ())
    written(server, order, text(40))
    assert server.machine.statistics().lanes[0].prompt_tokens == 40
    assert server.reused(server.say(text(40) + text(30, 1)))[1:] == ("full_reset", 0)


def test_a_restore_takes_the_room_of_those_used_longest_ago() -> None:
    server = Driver(pages=32, lanes=2, max_context_tokens=2048, host_pages=8)
    server.say(text(1900, 1), limit=1)
    file = text(640, 2)
    order = restoring(server, 1, file)
    (parks,) = order.before
    assert isinstance(parks, ParkPages)
    assert len(parks.pages) == 7
    assert set(parks.pages) <= set(order.pages)
    written(server, order, file)
    assert server.machine.lanes == [LaneState.RETAINED] * 2  # what is parked is there still


def test_a_session_whose_end_a_restore_pushes_out_is_forgotten() -> None:
    server = Driver(pages=32, lanes=2, max_context_tokens=2048)
    server.say(text(1900, 1), limit=1)
    out = server.slot(1, "restore", text(640, 2))
    assert [type(c) for c in out] == [cmd.Forget, cmd.WriteSession, cmd.Forget]
    assert server.machine.lanes == [LaneState.EMPTY, LaneState.RESTORING]


def test_a_restore_without_room_is_refused() -> None:
    server = Driver(pages=32, lanes=2, max_context_tokens=2048)
    server.ask(text(1900, 1), limit=2)
    assert refused(server, 1, "restore", text(640, 2)) == "slot_restore_failed"
    server = Driver(pages=32, lanes=2, max_context_tokens=2048, images=1)
    server.say(text(100, 3), marks=Marks(turn=64))
    server.ask(text(1900, 1), limit=2)
    assert refused(server, 0, "restore", text(640, 2)) == "slot_restore_failed"  # and no image is given up for it
    server = Driver(images=0)
    assert refused(server, 0, "restore", text(64)) == "slot_restore_failed"


def test_of_the_checkpoints_of_a_file_the_newest_that_fit_are_kept() -> None:
    server = Driver(images=2)
    order = restoring(server, 0, text(330), (64, 128, 256))
    assert [frontier for frontier, _image in order.images] == [256, 320]


def test_a_restore_that_fails_leaves_an_empty_slot() -> None:
    server = Driver()
    server.say(text(100))
    order = restoring(server, 0, text(330))
    assert done(server, order, ok=False) == [cmd.Forget(0)]
    assert server.machine.lanes[0] is LaneState.EMPTY
    assert not server.machine.holdings.images.stored
    assert server.machine.pages.available == server.machine.pages.capacity - 1  # of the first session


def test_erasing_forgets_what_is_only_this_session_s() -> None:
    server = Driver()
    base = text(256)
    mark = Marks(preamble=256)
    both = [server.ask(base + text(200, seed), limit=2, marks=mark) for seed in (1, 2)]
    server.run()
    assert [server.reused(request)[0] for request in both] == [0, 1]
    tree, pages = server.machine.holdings.tree, server.machine.pages
    histories = [blocks(server.histories[request]) for request in both]
    assert server.slot(0, "erase") == [cmd.Forget(0), cmd.Erased(3, 0, 458)]
    assert [len(tree.match(history, 99)) for history in histories] == [4, 7]
    assert server.slot(1, "erase") == [cmd.Forget(1), cmd.Erased(4, 1, 458)]
    assert not list(tree.nodes())
    assert pages.available == pages.capacity
    assert not server.machine.holdings.images.stored


def test_erasing_an_empty_slot_erases_nothing() -> None:
    server = Driver()
    assert server.slot(1, "erase") == [cmd.Erased(1, 1, 0)]


@pytest.mark.parametrize("kind", ["save", "restore"])
@pytest.mark.parametrize("reset_first", [False, True])
def test_a_fault_voids_what_is_under_way(kind: str, reset_first: bool) -> None:
    server = Driver(lanes=3, steps_ahead=0)
    server.say(text(200), limit=2)
    order = saving(server) if kind == "save" else restoring(server, 0, text(330, 3))
    server.ask(text(100, 1))
    server.memory.lose()
    server.send(ev.StepFailed(server.machine.flight.steps[0].number, "fault"))
    assert refused(server, 1, "save") == "service_unavailable"
    assert refused(server, 1, "restore", text(64)) == "service_unavailable"
    if reset_first:
        server.send(ev.EngineReset())
    assert cmd.Forget(0) in done(server, order)
    assert server.machine.lanes == [LaneState.EMPTY] * 3
    if not reset_first:
        server.send(ev.EngineReset())
    holdings = server.machine.holdings
    assert holdings.pages.available == holdings.pages.capacity
    assert not list(holdings.tree.nodes())
    assert not holdings.images.stored
    assert server.reused(server.say(text(330, 3) + text(5)))[1:] == ("full_reset", 0)


def test_before_service_there_is_nothing_to_save() -> None:
    server = Driver()
    server.send(ev.StopRequested())
    assert refused(server, 0, "save") == "service_unavailable"


def test_only_what_was_begun_can_be_done() -> None:
    server = Driver()
    server.say(text(100))
    with pytest.raises(IllegalTransition, match="never begun"):
        server.send(ev.SlotDone(1, 0, True))
    order = saving(server)
    with pytest.raises(IllegalTransition, match="never begun"):
        server.send(ev.SlotDone(order.ticket + 1, 0, True))


def test_a_request_waits_for_its_slot_to_be_saved() -> None:
    server = Driver(lanes=1)
    first = server.say(text(200), limit=2)
    order = saving(server)
    request = server.ask(server.histories[first] + text(10, 1))
    assert server.machine.requests[request].state is RequestState.WAITING
    done(server, order)
    assert server.reused(request) == (0, "append_frontier", 192)
