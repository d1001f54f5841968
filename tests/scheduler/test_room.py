"""Promises that displace nothing: what is kept of others goes page by page, when a lane really grows into it."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.transitions import LaneState, RequestState
from ninfer.step import ParkPages
from tests.scheduler.driving import Driver, blocks, text

UNLIMITED = 1 << 20
both_ways = pytest.mark.parametrize("steps_ahead", [0, 1])


def given_up(server: Driver) -> int:
    return server.machine.holdings.tree.evictions


def parks(server: Driver) -> list[int]:
    """Pages copied to host memory, by steps that carry such copies."""
    steps = (c for c in server.out if isinstance(c, cmd.StartChunk | cmd.StartRound))
    return [len(t.pages) for step in steps for t in step.before if isinstance(t, ParkPages)]


def short_answer(server: Driver, prompt: bytes, tokens: int = 3) -> int:
    """A request without a limit whose answer ends soon all the same; returns its id."""
    request = server.ask(prompt, UNLIMITED)
    while server.machine.requests[request].drawn < tokens - 1:
        server.land()
    server.land(stop=request)
    server.run()
    server.send(ev.Released(request))
    return request


@both_ways
def test_a_short_request_without_a_limit_displaces_no_session(steps_ahead: int) -> None:
    server = Driver(pages=32, lanes=4, max_context_tokens=2048, steps_ahead=steps_ahead, appends=True)
    owners = [server.say(text(400, seed), limit=10) for seed in range(3)]
    short_answer(server, text(200, 9))
    assert given_up(server) == 0
    assert server.machine.lanes == [LaneState.RETAINED] * 4
    for lane, owner in enumerate(owners):
        history = server.histories[owner][:410]
        prompt = history + text(20, 10 + lane)
        request = server.ask(prompt, follows=((owner, 409),))
        server.run()
        assert server.reused(request) == (lane, "append_frontier", 409)


def test_blocks_go_when_a_lane_grows_into_them_the_oldest_end_first() -> None:
    server = Driver(pages=16, lanes=3, max_context_tokens=1024, prefill_chunk_tokens=64, steps_ahead=0)
    old, new = (server.say(text(320, seed)) for seed in range(2))
    request = server.ask(text(64 * 6, 2), UNLIMITED)  # six pages are free; all are promised
    tree = server.machine.holdings.tree

    def left() -> list[int]:
        return [len(tree.match(blocks(server.histories[owner]), 9)) for owner in (old, new)]

    seen = []
    while len(server.histories[request]) < 64 * 12:
        server.land()
        held = len(server.histories[request]) - 1  # positions that are in the cache, or will be
        seen.append((held, *left()))
    assert [entry for entry in seen if entry[0] <= 64 * 6][-1][1:] == (5, 5)
    assert next(entry for entry in seen if entry[0] == 64 * 6 + 1)[1:] == (4, 5)
    assert next(entry for entry in seen if entry[0] == 64 * 11 + 1)[1:] == (0, 4)
    assert server.out.index(cmd.Forget(0)) < server.out.index(cmd.Forget(1))
    assert given_up(server) == 6


def test_everybody_who_was_promised_pages_gets_them() -> None:
    """Three take turns that may fill the pool each, and two at a time may together."""
    server = Driver(pages=24, lanes=3, max_context_tokens=1024, max_pending=8)
    for seed in range(3):
        server.say(text(500, seed))
    requests = [server.ask(text(200, 10 + seed), 500 - 190 * seed) for seed in range(3)]
    assert [server.machine.requests[r].state for r in requests][2] is not RequestState.WAITING
    late = server.ask(text(600, 20), UNLIMITED)
    assert server.machine.requests[late].state is RequestState.WAITING
    server.run()
    assert len(server.histories[late]) == 1024
    assert [len(server.histories[r]) for r in requests] == [700, 510, 320]


def test_who_passes_the_head_takes_only_what_is_free_for_good() -> None:
    server = Driver(pages=32, lanes=3, max_context_tokens=2048)
    server.say(text(640, 1))
    server.ask(text(1200, 2), limit=200)  # the 22 pages that are free
    head = server.ask(text(1500, 3))
    later = server.ask(text(60, 4))
    assert {server.machine.requests[r].state for r in (head, later)} == {RequestState.WAITING}
    server.run()
    assert server.admission(later)


def test_who_passes_the_head_and_needs_no_page_takes_none_that_is_promised() -> None:
    server = Driver(pages=16, lanes=3, max_context_tokens=1024, appends=True)
    first = server.say(text(64 * 9 + 10), limit=5)
    server.ask(text(64, 1), limit=64 * 14)  # 15 pages, where six are free
    head = server.ask(text(500, 2))
    history = server.histories[first]
    later = server.ask(history + text(9, 3), follows=((first, len(history)),))  # ends in the block that is begun
    assert {server.machine.requests[r].state for r in (head, later)} == {RequestState.WAITING}
    server.run()
    assert server.admission(later)


def test_a_session_that_was_asked_for_goes_later_though_nothing_came_of_it() -> None:
    server = Driver(pages=32, lanes=3, max_context_tokens=2048, prefill_chunk_tokens=64)
    first = server.say(text(320, 1), limit=2)
    server.say(text(320, 2))
    server.ask(text(64 * 20, 3), 64 * 6, priority=-1)  # 26 pages; 22 are free
    again = server.ask(server.histories[first] + text(10, 4))
    assert server.machine.requests[again].lane == 0
    server.send(ev.Released(again))
    while given_up(server) < 4:
        server.land()
    assert server.machine.lanes[:2] == [LaneState.RETAINED, LaneState.EMPTY]


# --- copies to host memory -----------------------------------------------------------------------------------------


def test_copies_to_host_memory_make_a_page_free_for_each_that_runs() -> None:
    server = Driver(pages=32, lanes=4, max_context_tokens=2048, host_pages=32, prefill_chunk_tokens=64)
    server.say(text(64 * 28 + 10, 1))  # the lanes below have three pages, and one is free
    for seed in range(2, 5):
        server.ask(text(64, seed), limit=64 * 4)
    server.run()
    # Of 15 pages in all the first three and the last are free; four are made free at a time, the last for themselves.
    assert parks(server) == [4, 4, 3]
    assert server.machine.statistics().kept.parks == 11


def test_without_host_memory_no_block_goes_before_its_time() -> None:
    server = Driver(pages=32, lanes=4, max_context_tokens=2048, prefill_chunk_tokens=64, steps_ahead=0)
    server.say(text(64 * 30, 1))
    server.ask(text(64, 2), limit=64 * 4)
    server.ask(text(64, 3), limit=64 * 4)
    assert given_up(server) == 0
    while given_up(server) == 0:
        server.land()
    assert given_up(server) == 1


# --- while a session is read for a file ----------------------------------------------------------------------------


def read(server: Driver, lane: int) -> cmd.ReadSession:
    (order,) = server.slot(lane, "save")
    assert isinstance(order, cmd.ReadSession)
    return order


@both_ways
def test_who_grows_into_a_session_that_is_being_read_waits_for_that(steps_ahead: int) -> None:
    server = Driver(pages=16, lanes=3, max_context_tokens=1024, steps_ahead=steps_ahead)
    server.say(text(64 * 10, 1))
    growing = server.ask(text(64 * 4, 2), UNLIMITED)
    server.ask(text(30, 3), 30)  # one page, which is free in the end
    order = read(server, 0)
    assert server.machine.holdings.room.to_promise() < 0
    server.run()
    # The token behind six pages is drawn and not executed: the other ten pages are being read.
    assert len(server.histories[growing]) == 64 * 6 + 1
    assert server.machine.lanes == [LaneState.SAVING, LaneState.DECODING, LaneState.EMPTY]
    assert [server.memory.pages[page] for page in order.pages] == [text(64 * 10, 1)[:end] for end in range(64, 641, 64)]
    server.send(ev.SlotDone(order.ticket, 0, True))
    assert cmd.Forget(0) in server.out
    server.run()
    assert len(server.histories[growing]) == 1024


def test_the_end_of_a_session_that_is_being_read_stays_though_it_is_read_again() -> None:
    server = Driver(pages=16, lanes=2, max_context_tokens=1024, folds_late=True, steps_ahead=0)
    server.say(text(639, 1), limit=2)  # ten blocks, and the lane stands before the last of them
    server.ask(text(64 * 4, 2), UNLIMITED)
    order = read(server, 0)
    assert (order.tokens, order.state) == (641, 576)
    server.run()
    assert cmd.Forget(0) not in server.out
    server.send(ev.SlotDone(order.ticket, 0, True))
    assert cmd.Forget(0) in server.out


def test_a_prompt_waits_for_a_session_that_is_being_read_before_its_chunks() -> None:
    server = Driver(pages=16, lanes=2, max_context_tokens=1024, prefill_chunk_tokens=64, steps_ahead=0)
    server.say(text(64 * 10, 1))
    reading = server.ask(text(64 * 9, 2))
    order = read(server, 0)
    server.run()
    assert len(server.chunks(reading)) == 6  # as many pages as are free
    server.send(ev.SlotDone(order.ticket, 0, True))
    server.run()
    assert len(server.chunks(reading)) == 9


def test_a_prompt_that_has_not_begun_waits_for_that_with_what_it_has_in_host_memory() -> None:
    server = Driver(pages=16, lanes=3, max_context_tokens=1024, host_pages=16)
    first = server.say(text(64 * 8 + 10, 1))
    server.say(text(64 * 15 + 10, 2))
    assert server.machine.holdings.tree.parked == 8
    server.ask(text(64, 3), 64 * 3, priority=-1)
    again = server.ask(server.histories[first], 64 * 2, priority=1)
    assert server.machine.requests[again].state is RequestState.READING
    order = read(server, 1)
    server.run()
    assert not server.chunks(again)
    server.send(ev.SlotDone(order.ticket, 1, True))
    server.run()
    assert server.reused(again)[2] == 512


def test_nobody_is_promised_what_is_being_read() -> None:
    server = Driver(pages=16, lanes=3, max_context_tokens=1024)
    first = server.say(text(64 * 9, 1))
    server.ask(text(64 * 4, 2), UNLIMITED)
    order = read(server, 0)
    short = server.ask(server.histories[first][: 64 * 9 - 1], 0)
    assert server.machine.requests[short].state is RequestState.WAITING
    server.send(ev.SlotDone(order.ticket, 0, True))
    server.run()
    assert server.chunks(short)


def test_a_block_read_again_while_it_is_read_for_a_file_has_one_page_in_the_end() -> None:
    server = Driver(pages=16, lanes=3, max_context_tokens=1024, images=1, steps_ahead=0)
    session = text(64 * 6, 1)
    server.say(session)
    order = read(server, 0)
    # In front of the session's end there is no state to go on from. 15 pages.
    same = server.ask(session[:320] + text(130, 2), 511)
    assert server.machine.requests[same].state is RequestState.WAITING
    server.send(ev.SlotDone(order.ticket, 0, True))
    assert server.machine.requests[same].state is RequestState.READING_IN_STEP
    order = read(server, 0)
    server.run()  # as far as it gets: ten pages, of which it has the first five for blocks that are being read
    assert server.machine.holdings.room.to_promise() < 0
    tree = server.machine.holdings.tree
    pages = [node.page for node in tree.match(blocks(session), 9)]
    assert tuple(pages) == order.pages
    server.send(ev.SlotDone(order.ticket, 0, True))
    merged = [node.page for node in tree.match(blocks(session), 9)]
    assert merged[:5] == [page for chunk in server.chunks(same) for page in chunk.mapping.pages][:5]
    assert merged[5:] == pages[5:]
    server.run()
    assert len(server.histories[same]) == 64 * 15 + 1


def test_the_audit_finds_a_promise_that_cannot_be_kept() -> None:
    server = Driver(pages=16, lanes=2, max_context_tokens=1024)
    server.say(text(600, 1))
    server.ask(text(100, 2), UNLIMITED)
    pages = server.machine.pages
    pages._promised[2] += 3
    pages._promised_total += 3
    with pytest.raises(IllegalTransition, match="3 pages are promised that nobody could have"):
        server.machine.audit()
