"""Requests that go on inside the block in which a session has ended, each checked on the model device."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.open_blocks import OpenBlock
from ninfer.step import CaptureState, LoadPages
from ninfer.types import Marks
from tests.scheduler.driving import Driver, text
from tests.support.storm import common

both_ways = pytest.mark.parametrize("steps_ahead", [0, 1])


def going_on(server: Driver, owner: int, prompt: bytes, limit: int = 1) -> int:
    """Ask with a prompt that is known to follow the history of an earlier request."""
    same = common(prompt, server.histories[owner])
    return server.ask(prompt, limit, follows=((owner, same),))


def goes_on(server: Driver, owner: int, prompt: bytes, limit: int = 1) -> int:
    """The same, from its arrival to its last byte."""
    request = going_on(server, owner, prompt, limit)
    server.run()
    server.send(ev.Released(request))
    return request


def open_block(server: Driver, lane: int = 0) -> OpenBlock | None:
    session = server.machine.holdings.sessions[lane]
    assert session is not None
    return session.open


@both_ways
@pytest.mark.parametrize("folds_late", [False, True])
def test_the_next_turn_begins_where_its_lane_stands(steps_ahead: int, folds_late: bool) -> None:
    server = Driver(steps_ahead=steps_ahead, folds_late=folds_late, appends=True)
    first = server.say(text(200), limit=10)
    pages = server.chunks(first)[0].mapping.pages
    assert open_block(server) == OpenBlock(first, 209, pages[3])
    assert server.machine.pages.left == {pages[3]}
    second = goes_on(server, first, server.histories[first] + text(50, 1), limit=10)
    assert server.reused(second) == (0, "append_frontier", 209)
    (chunk,) = server.chunks(second)
    assert (chunk.begin, chunk.end, chunk.first, chunk.before) == (209, 260, True, ())
    assert (chunk.mapping.first, chunk.mapping.pages[:4]) == (0, pages[:4])
    assert server.tokens_read == 200 + 51
    assert server.machine.statistics().totals.reused_tokens == 209
    third = goes_on(server, second, server.histories[second] + text(3, 2))
    assert server.reused(third)[2] == 269


@both_ways
def test_a_row_behind_the_last_token_is_a_part_of_what_is_gone_on_from(steps_ahead: int) -> None:
    server = Driver(steps_ahead=steps_ahead, appends=True)
    first = server.ask(text(70), limit=40)
    while server.machine.requests[first].drawn < 7:
        server.land()
    server.land(stop=first)
    server.run()
    (finish,) = (command for command in server.out if isinstance(command, cmd.Finish))
    assert finish.retained_tokens == 78
    second = goes_on(server, first, server.histories[first][:78] + text(9, 1))
    # The row that was ahead has run the stop token.
    assert server.reused(second)[2] == (78 if steps_ahead else 77)


def test_a_session_that_is_shorter_than_a_block_is_gone_on_from() -> None:
    server = Driver(appends=True)
    first = server.say(text(20), limit=5)
    second = goes_on(server, first, server.histories[first] + text(100, 1))
    assert server.reused(second) == (0, "append_frontier", 24)
    assert [(chunk.begin, chunk.end) for chunk in server.chunks(second)] == [(24, 125)]
    assert server.images() == {}


def test_a_long_prompt_goes_on_at_block_starts() -> None:
    server = Driver(appends=True)
    first = server.say(text(100), limit=5)
    second = goes_on(server, first, server.histories[first] + text(600, 1))
    chunks = [(chunk.begin, chunk.end, chunk.first) for chunk in server.chunks(second)]
    assert chunks == [(104, 320, True), (320, 576, False), (576, 705, False)]


def test_a_state_at_the_start_of_the_block_is_stored_where_it_is_wanted() -> None:
    server = Driver(appends=True)
    first = server.say(text(150), limit=5)
    prompt = server.histories[first] + text(100, 1)
    second = server.ask(prompt, 1, Marks(turn=155), follows=((first, 155),))
    server.run()
    assert server.chunks(second)[0].before == (CaptureState(0, 0),)
    assert server.images() == {128: "TURN"}


@pytest.mark.parametrize(
    ("kept", "more", "expected"),
    [
        (103, 50, 64),  # another token where the lane has one
        (104, 50, 104),  # another token where the last one was drawn
        (104, 0, 64),  # nothing behind what the lane has: the last token is read in any case
        (70, 50, 64),
        (60, 50, 0),  # no state in front of that
    ],
    ids=str,
)
def test_other_tokens_in_the_block_are_read_from_its_start(kept: int, more: int, expected: int) -> None:
    server = Driver(appends=True)
    first = server.say(text(100), limit=5)
    second = goes_on(server, first, server.histories[first][:kept] + text(more, 1))
    assert server.reused(second)[2] == expected
    assert not server.machine.pages.left or open_block(server) is not None


def test_nothing_is_gone_on_from_that_nobody_has_compared() -> None:
    server = Driver(appends=True, lanes=1)
    first = server.say(text(100), limit=5)
    assert server.reused(server.say(server.histories[first] + text(50, 1)))[2] == 64


def test_an_engine_that_cannot_goes_on_from_the_block_start() -> None:
    server = Driver(lanes=1)
    first = server.say(text(100), limit=5)
    assert open_block(server) is None
    assert server.reused(goes_on(server, first, server.histories[first] + text(50, 1)))[2] == 64


@pytest.mark.parametrize(("prompt", "expected"), [(181, 191), (182, 128), (183, 128), (184, 194)], ids=str)
def test_a_lane_that_has_a_full_block_to_fold_goes_on_from_its_start(prompt: int, expected: int) -> None:
    server = Driver(folds_late=True, steps_ahead=0, appends=True, draft_tokens=1, adaptive_drafts=False)
    first = server.say(text(prompt), limit=11)  # each round runs two positions
    second = goes_on(server, first, server.histories[first] + text(5, 1))
    assert server.reused(second)[1:] == ("append_frontier", expected)


def test_rows_behind_the_end_leave_no_block_to_go_on_in() -> None:
    server = Driver(steps_ahead=1, appends=True)
    first = server.ask(text(70), limit=40)
    while server.machine.requests[first].drawn < 7:
        server.land()
    server.send(ev.StopStringFound(first, 7))
    (finish,) = (command for command in server.out if isinstance(command, cmd.Finish))
    server.run()
    assert open_block(server) is None
    second = goes_on(server, first, server.histories[first][: finish.retained_tokens] + text(9, 1))
    assert server.reused(second)[2] == 64


def test_a_promise_gives_way_to_what_others_have_read_meanwhile() -> None:
    server = Driver(appends=True)
    first = server.say(text(40), limit=5)
    prompt = server.histories[first] + text(500, 1)
    server.ask(prompt, 1, Marks(preamble=448))  # in the other lane, for it was not compared
    second = going_on(server, first, prompt)
    assert [request.lane for request in server.machine.requests.values()][-2:] == [1, 0]
    assert not server.machine.pages.left
    assert server.machine.holdings.expected_tokens(server.machine.requests[second]) == 545 - 44
    server.run()
    assert server.reused(second) == (0, "fork_shared_prefix", 448)


def test_a_client_that_leaves_before_its_first_chunk_takes_nothing_along() -> None:
    server = Driver(appends=True)
    first = server.say(text(100), limit=5)
    block = open_block(server)
    server.ask(text(900, 1))
    second = going_on(server, first, server.histories[first] + text(50, 2))
    assert not server.machine.pages.left
    server.send(ev.Released(second))
    assert open_block(server) == block
    server.run()
    third = goes_on(server, first, server.histories[first] + text(50, 3))
    assert server.reused(third) == (0, "append_frontier", 104)


def test_a_fault_takes_the_block_of_an_idle_lane_and_of_one_that_was_promised() -> None:
    server = Driver(appends=True, lanes=3)
    owners = [server.say(text(100, seed), limit=5) for seed in range(2)]
    server.ask(text(900, 3))
    going_on(server, owners[0], server.histories[owners[0]] + text(50, 2))
    assert len(server.machine.pages.left) == 1
    server.send(ev.StepFailed(server.machine.flight.steps[0].number, "device fault"))
    while server.machine.flight.steps:
        server.send(ev.StepFailed(server.machine.flight.steps[0].number, "device fault"))
    assert server.machine.pages.available == server.machine.pages.capacity


def test_open_blocks_are_given_up_where_there_are_no_full_ones_the_oldest_first() -> None:
    server = Driver(pages=12, lanes=3, max_context_tokens=768, appends=True)
    owners = [server.say(text(30, seed), limit=5) for seed in range(2)]  # a page each
    other = server.say(text(64 * 11, 3))  # and eleven, where ten are free
    assert server.reused(other)[0] == 2
    assert open_block(server, 0) is None
    late = goes_on(server, owners[1], server.histories[owners[1]] + text(9, 4))
    assert server.reused(late) == (1, "append_frontier", 34)
    early = goes_on(server, owners[0], server.histories[owners[0]] + text(9, 5))
    assert server.reused(early)[1:] == ("full_reset", 0)


def test_full_blocks_that_nobody_uses_go_first() -> None:
    server = Driver(pages=12, lanes=2, max_context_tokens=640, appends=True)
    server.say(text(64 * 7))
    first = server.say(text(30, 1), limit=5)
    second = goes_on(server, first, server.histories[first] + text(64 * 7, 2))
    assert server.machine.holdings.tree.evictions
    assert server.reused(second) == (1, "append_frontier", 34)


def test_a_request_that_passes_the_head_takes_no_page_of_an_open_block() -> None:
    server = Driver(pages=8, lanes=3, max_context_tokens=512, appends=True)
    server.say(text(30), limit=5)
    server.ask(text(64 * 7 - 1, 1), limit=2)
    head, small = server.ask(text(64 * 8 - 1, 2)), server.ask(text(60, 3))
    assert {server.machine.requests[request].lane for request in (head, small)} == {None}
    assert len(server.machine.pages.left) == 1
    server.run()


def test_a_block_is_kept_for_the_request_that_needs_more_pages() -> None:
    server = Driver(pages=8, lanes=2, max_context_tokens=512, appends=True)
    first = server.say(text(100), limit=5)
    server.say(text(64 * 5 + 10, 1))
    second = goes_on(server, first, server.histories[first] + text(400 - 105, 2))
    assert server.reused(second) == (0, "append_frontier", 104)


def test_parked_blocks_come_back_in_front_of_the_open_one() -> None:
    server = Driver(pages=12, lanes=2, max_context_tokens=640, host_pages=12, appends=True)
    first = server.say(text(64 * 4 + 20), limit=5)
    server.say(text(600, 1))
    assert server.machine.holdings.tree.parks
    second = goes_on(server, first, server.histories[first] + text(30, 2))
    assert any(isinstance(transfer, LoadPages) for transfer in server.chunks(second)[0].before)
    assert server.reused(second)[2] == 280


def test_displaced_and_erased_sessions_leave_no_page() -> None:
    server = Driver(lanes=1, appends=True)
    server.say(text(30), limit=5)
    server.say(text(40, 1), limit=5)
    assert len(server.machine.pages.left) == 1
    server.slot(0, "erase")
    assert server.machine.pages.available == server.machine.pages.capacity


def test_a_session_that_has_lost_its_blocks_leaves_no_page() -> None:
    server = Driver(pages=8, lanes=2, max_context_tokens=512, appends=True)
    server.say(text(100), limit=5)
    server.say(text(64 * 8 - 1, 1))
    assert server.machine.holdings.sessions[0] is None
    server.machine.audit()


def test_a_short_turn_waits_for_the_lane_that_is_about_to_be_idle() -> None:
    server = Driver(steps_ahead=1, appends=True)
    first = server.ask(text(20), limit=40)
    while server.machine.requests[first].drawn < 3:
        server.land()
    server.land(stop=first)
    assert server.machine.flight.steps
    second = going_on(server, first, server.histories[first][:25] + text(9, 1))
    assert server.machine.requests[second].lane is None
    server.run()
    assert server.reused(second)[:2] == (0, "append_frontier")


def test_an_audit_finds_a_block_that_no_session_has() -> None:
    server = Driver(appends=True)
    server.say(text(100), limit=5)
    session = server.machine.holdings.sessions[0]
    assert session is not None
    session.open = None
    with pytest.raises(IllegalTransition, match="open blocks"):
        server.machine.audit()
