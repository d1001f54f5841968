"""What the memory of the scheduler refuses, and what its audit finds."""

from __future__ import annotations

import pytest

from ninfer.errors import IllegalTransition
from ninfer.scheduler.images import ImageKind
from ninfer.types import Marks
from tests.scheduler.driving import Driver, text


def test_the_audit_compares_tree_and_pool() -> None:
    server = Driver()
    server.say(text(100))
    node = next(server.machine.holdings.tree.nodes())
    assert node.page is not None
    node.page += 1
    with pytest.raises(IllegalTransition, match="disagree on pages"):
        server.machine.holdings.audit()


def test_the_audit_finds_a_lane_that_stands_in_another_history() -> None:
    server = Driver()
    server.say(text(100, 1))
    server.say(text(100, 2))
    first, second = server.machine.holdings.sessions
    assert first is not None
    assert second is not None
    first.resident = second.resident
    with pytest.raises(IllegalTransition, match="not on the path of its session"):
        server.machine.holdings.audit()


def test_a_promise_that_cannot_be_kept_is_a_fault_of_ours() -> None:
    server = Driver(lanes=2)
    first = server.say(text(200), limit=2)
    server.ask(text(900, 1), priority=-1)
    server.ask(server.histories[first] + text(100, 2))
    session = server.machine.holdings.sessions[0]
    assert session is not None
    session.resident = None
    with pytest.raises(IllegalTransition, match="promised 192 tokens, 0 are left"):
        server.run()


def test_a_state_is_not_stored_where_every_image_is_promised() -> None:
    server = Driver(lanes=3, images=1)
    base = text(512)
    server.say(base + text(50, 1), marks=Marks(preamble=512))
    server.ask(text(900, 2), priority=-1, marks=Marks(turn=640, preamble=320))
    server.ask(base + text(50, 3))
    server.run()
    assert server.images() == {512: "SHARED"}


def test_where_all_shared_states_are_promised_there_is_room_for_no_other() -> None:
    server = Driver(lanes=3, max_shared_prefixes=1)
    base = text(512)
    server.say(base + text(50, 1), marks=Marks(preamble=512))
    server.ask(text(900, 2), priority=-1, marks=Marks(preamble=320))
    server.ask(base + text(50, 3))
    server.run()
    assert server.images() == {512: "SHARED"}


def test_a_shared_state_is_stored_where_a_prompt_begins() -> None:
    server = Driver(lanes=1)
    first = server.say(text(320), limit=70)
    second = server.say(server.histories[first] + text(50, 1), marks=Marks(preamble=384))
    assert server.reused(second)[2] == 384
    assert server.images() == {384: "SHARED"}
    off = Driver(lanes=1, max_shared_prefixes=0)
    first = off.say(text(320), limit=70)
    off.say(off.histories[first] + text(50, 1), marks=Marks(preamble=384))
    assert off.images() == {}


def test_a_turn_checkpoint_at_which_the_next_turn_begins_is_stored_once() -> None:
    server = Driver(lanes=1, turn_checkpoints=2, pages=256, max_context_tokens=16384, prefill_chunk_tokens=1024)
    first = server.say(text(5000), limit=2, marks=Marks(turn=4999))
    second = server.say(server.histories[first] + text(20, 1), limit=2, marks=Marks(turn=5003))
    assert server.reused(second) == (0, "append_frontier", 4992)
    assert server.images() == {4992: "TURN"}
    third = server.say(server.histories[second] + text(50, 2), limit=70, marks=Marks(turn=5050))
    assert server.reused(third)[1:] == ("append_frontier", 4992)
    assert server.images() == {4992: "TURN"}
    fourth = server.say(server.histories[third] + text(5, 3), marks=Marks(turn=5130))
    assert server.reused(fourth)[2] == 5120
    assert server.images() == {4992: "TURN", 5120: "TURN"}


def test_a_turn_checkpoint_that_is_promised_outlives_the_ring() -> None:
    server = Driver(lanes=3, turn_checkpoints=0)
    first = server.say(text(600), limit=2, marks=Marks(turn=400))
    going_on = server.ask(server.histories[first] + text(900, 1), marks=Marks(turn=1400))
    fork = server.ask(server.histories[first][:420] + text(700, 2))
    assert server.machine.holdings.images.stored[0].users == 1
    server.run()
    assert server.reused(going_on)[1:] == ("append_frontier", 576)
    assert server.reused(fork)[1:] == ("fork_shared_prefix", 384)
    kinds = {image.kind for image in server.machine.holdings.images.stored}
    assert ImageKind.TURN in kinds


def test_a_state_that_two_have_stored_is_kept_once_and_for_whom_it_was_promised() -> None:
    server = Driver(lanes=3, steps_ahead=0, prefill_chunk_tokens=64)
    base = text(512)
    long = server.ask(base + text(1500, 1), marks=Marks(preamble=512))
    server.land()
    # As much as can be shared of a prompt of exactly 512 tokens ends a block before what the long one stores.
    server.ask(base, limit=200, marks=Marks(turn=512))
    while server.images() != {512: "TURN"}:
        server.land()
    fork = server.ask(base + text(5, 2), priority=5)
    server.run()
    begins = [server.out.index(server.admission(request)) for request in (long, fork)]
    assert begins == sorted(begins)
    assert server.chunks(long)[7].after  # it had stored the same state meanwhile
    assert server.images() == {512: "TURN"}
    assert server.reused(fork)[1:] == ("fork_shared_prefix", 512)
