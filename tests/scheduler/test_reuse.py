"""What a request goes on from, in which lane, and what it costs: single decisions, each checked on the model device."""

from __future__ import annotations

import pytest

from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.reuse import WAYS
from ninfer.scheduler.statistics import reuse_counts
from ninfer.scheduler.transitions import LaneState, RequestState
from ninfer.step import CaptureState, LoadPages, PageMapping, ParkPages, RestoreState
from ninfer.types import Marks
from tests.scheduler.driving import Driver, blocks, text

both_ways = pytest.mark.parametrize("steps_ahead", [0, 1])


@both_ways
@pytest.mark.parametrize("folds_late", [False, True])
def test_the_next_turn_goes_on_in_its_lane_from_where_the_last_has_ended(steps_ahead: int, folds_late: bool) -> None:
    server = Driver(steps_ahead=steps_ahead, folds_late=folds_late)
    first = server.say(text(200), limit=10)
    assert server.machine.lanes == [LaneState.RETAINED, LaneState.EMPTY]
    second = server.say(server.histories[first] + text(50, 1), limit=10)
    assert server.reused(second) == (0, "append_frontier", 192)
    (chunk,) = server.chunks(second)
    assert (chunk.begin, chunk.end, chunk.first, chunk.before) == (192, 260, True, ())
    assert chunk.mapping.first == 0
    assert chunk.mapping.pages[:3] == server.chunks(first)[0].mapping.pages[:3]  # the fourth was not full
    assert server.tokens_read == 200 + 68
    totals = server.machine.statistics().totals
    assert (totals.reused_tokens, dict(totals.reuse)["append_frontier"]) == (192, 1)
    counts = reuse_counts(totals)
    assert counts.keys() == {*WAYS, "host_restore"}
    assert (counts["append_frontier"], counts["full_reset"], counts["host_restore"]) == (1, 1, 0)


@pytest.mark.parametrize(("folds_late", "expected"), [(False, 192), (True, 128)])
def test_a_block_that_a_row_has_filled_counts_when_its_state_is_written(folds_late: bool, expected: int) -> None:
    server = Driver(folds_late=folds_late, steps_ahead=0)
    first = server.say(text(183), limit=10)  # the last row runs position 191
    second = server.say(server.histories[first] + text(5, 1))
    assert server.reused(second)[1:] == ("append_frontier", expected)


@both_ways
def test_what_was_drawn_behind_the_end_is_no_part_of_the_session(steps_ahead: int) -> None:
    server = Driver(steps_ahead=steps_ahead)
    request = server.ask(text(120), limit=40)
    while server.machine.requests[request].drawn < 7:
        server.land()
    server.send(ev.StopStringFound(request, 7))
    (finish,) = (c for c in server.out if isinstance(c, cmd.Finish))
    server.run()
    (view, _other) = server.machine.statistics().lanes
    assert view.prompt_tokens == finish.retained_tokens <= len(server.histories[request])
    following = server.say(server.histories[request][: finish.retained_tokens] + text(9, 1))
    # A token too many has filled the second block, of which the lane's state is now: of no use without that token.
    expected = {0: 64, 1: 0}[steps_ahead]
    assert (finish.retained_tokens, server.reused(following)[2]) == (127, expected)


def test_a_new_conversation_takes_the_empty_lane_and_then_the_smallest_loss() -> None:
    server = Driver(lanes=3)
    lanes = [server.reused(server.say(text(tokens, tokens)))[:2] for tokens in (500, 200, 300)]
    assert lanes == [(0, "full_reset"), (1, "full_reset"), (2, "full_reset")]
    assert server.reused(server.say(text(100, 4)))[:2] == (1, "full_reset")  # 200 tokens are the smallest loss
    assert server.reused(server.say(text(100, 5)))[:2] == (1, "full_reset")  # and now 101


def test_of_equal_losses_the_one_retained_longest_goes() -> None:
    server = Driver(lanes=2)
    for seed in range(2):
        server.say(text(100, seed))
    assert server.reused(server.say(text(100, 2)))[0] == 0
    assert server.reused(server.say(text(100, 3)))[0] == 1


def test_an_edit_goes_on_from_the_deepest_state_before_it() -> None:
    server = Driver()
    first = server.say(text(600), limit=20, marks=Marks(turn=500, message_begin=200, message_end=500))
    assert server.images() == {192: "ANCHOR", 448: "TURN"}
    history = server.histories[first]
    edited = server.say(history[:470] + text(200, 1), limit=20)
    assert server.reused(edited) == (0, "restore_turn_checkpoint", 448)
    restores = [t for t in server.chunks(edited)[0].before if isinstance(t, RestoreState)]
    assert [t.lane for t in restores] == [0]
    early = server.say(history[:300] + text(200, 2), limit=20)
    assert server.reused(early) == (0, "restore_user_turn_anchor", 192)
    assert server.reused(server.say(history[:150] + text(200, 3)))[1:] == ("full_reset", 0)


def test_regenerating_reads_the_last_block_of_the_prompt_again() -> None:
    server = Driver()
    prompt, mark = text(600), Marks(turn=590)
    server.say(prompt, limit=5, marks=mark)
    again = server.say(prompt, limit=5, marks=mark)
    assert server.reused(again) == (0, "append_frontier", 576)
    server.say(server.histories[again] + text(100, 1), limit=5)
    third = server.say(prompt, limit=5, marks=mark)
    assert server.reused(third) == (0, "restore_turn_checkpoint", 576)


def test_two_branches_are_both_gone_on_from() -> None:
    server = Driver(lanes=1)
    base = text(512)
    mark = Marks(preamble=512)
    branches = [server.say(base + text(200, seed), limit=5, marks=mark) for seed in (1, 2)]
    assert server.reused(branches[1]) == (0, "fork_shared_prefix", 512)
    for branch in branches:
        back = server.say(server.histories[branch] + text(20, branch), limit=5)
        assert server.reused(back) == (0, "append_frontier", 704)
    assert server.tokens_read == 712 + 200 + 2 * (717 + 20 - 704)


@both_ways
def test_a_state_that_a_new_conversation_pushes_out_of_its_lane_is_stored_first(steps_ahead: int) -> None:
    server = Driver(lanes=1, steps_ahead=steps_ahead)
    first = server.say(text(200), limit=5)
    other = server.say(text(100, 1))
    assert server.chunks(other)[0].before == (CaptureState(0, 0),)
    assert server.images() == {192: "FRONTIER"}
    back = server.say(server.histories[first] + text(10, 2))
    assert server.reused(back) == (0, "append_frontier", 192)
    assert server.chunks(back)[0].before == (CaptureState(0, 1), RestoreState(0, 0))


@both_ways
def test_three_that_begin_alike_and_come_together_read_the_beginning_once(steps_ahead: int) -> None:
    server = Driver(lanes=3, steps_ahead=steps_ahead)
    base = text(512)
    requests = [server.ask(base + text(100, seed), limit=3, marks=Marks(preamble=512)) for seed in (1, 2, 3)]
    server.run()
    assert [server.reused(request)[1:] for request in requests] == [
        ("full_reset", 0),
        ("fork_shared_prefix", 512),
        ("fork_shared_prefix", 512),
    ]
    assert server.tokens_read == 512 + 3 * 100
    shared = server.chunks(requests[0])[0].mapping.pages + server.chunks(requests[0])[1].mapping.pages
    for request in requests[1:]:
        assert server.chunks(request)[0].mapping.pages[:8] == shared[:8]


@both_ways
@pytest.mark.parametrize("landed", [0, 1, 2])
def test_an_identical_prompt_that_is_being_read_is_joined(steps_ahead: int, landed: int) -> None:
    server = Driver(steps_ahead=steps_ahead)
    prompt = text(600)
    mark = Marks(turn=590)
    first = server.ask(prompt, limit=1, marks=mark)
    for _ in range(landed):
        server.land()
    second = server.ask(prompt, limit=9, marks=mark)
    server.run()
    assert server.reused(first) == (0, "full_reset", 0)
    assert server.reused(second) == (1, "fork_shared_prefix", 576)
    assert server.tokens_read == 600 + 24


def test_who_shares_only_what_a_long_prompt_has_behind_it_does_not_wait_for_that() -> None:
    server = Driver(lanes=2, prefill_chunk_tokens=64)
    base = text(256)
    long = server.ask(base + text(4000, 1), marks=Marks(preamble=256))
    short = server.ask(base + text(20, 2), marks=Marks(preamble=256))
    while not server.chunks(short):
        server.land()
    assert server.chunks(long)[-1].end == 256
    assert server.reused(short) == (1, "fork_shared_prefix", 256)
    # Without a state to go on from there is nothing to wait for either.
    server = Driver(lanes=2, prefill_chunk_tokens=64, images=0)
    server.ask(base + text(4000, 1), marks=Marks(preamble=256))
    short = server.ask(base + text(20, 2), marks=Marks(preamble=256))
    server.land()
    assert server.reused(short) == (1, "full_reset", 0)


@pytest.mark.parametrize(
    ("tokens", "expected"), [(63, 0), (64, 0), (65, 64), (127, 64), (128, 64), (129, 128), (191, 128), (193, 192)]
)
def test_an_exact_repeat_reads_at_least_its_last_token(tokens: int, expected: int) -> None:
    # At a whole number of blocks the state at the end is of no use; the mark leaves one a block before.
    server = Driver()
    mark = Marks(turn=max(tokens - 64, 0))
    server.say(text(tokens), limit=1, marks=mark)
    again = server.say(text(tokens), limit=1, marks=mark)
    assert server.reused(again)[2] == expected
    assert server.chunks(again)[0].begin == expected


@both_ways
def test_who_leaves_while_the_prompt_is_read_keeps_what_was_read(steps_ahead: int) -> None:
    server = Driver(steps_ahead=steps_ahead, prefill_chunk_tokens=128)
    prompt = text(1000)
    request = server.ask(prompt)
    for _ in range(3):
        server.land()
    server.send(ev.Released(request))
    (finish,) = (c for c in server.out if isinstance(c, cmd.Finish))
    server.run()
    read = server.chunks(request)[-1].end
    assert read == {0: 512, 1: 640}[steps_ahead]  # the units in flight were too late to stop
    assert finish == cmd.Finish(request, 0, "cancelled", read)
    again = server.say(prompt)
    assert server.reused(again) == (0, "append_frontier", read)
    assert server.tokens_read == 1000


def test_what_others_read_between_admission_and_beginning_counts() -> None:
    server = Driver(lanes=3, prefill_chunk_tokens=64)
    base = text(320)
    server.ask(text(400, 9))
    first = server.ask(base + text(30, 1), marks=Marks(preamble=320))
    second = server.ask(base + text(400, 2), limit=1)
    available = server.machine.pages.available
    assert server.machine.requests[second].state is RequestState.READING
    server.run()
    assert server.reused(first)[1:] == ("full_reset", 0)
    assert server.reused(second)[1:] == ("fork_shared_prefix", 320)
    assert available < server.machine.pages.available + len(server.machine.pages.kept)


def test_when_pages_are_short_the_end_used_longest_ago_goes_first() -> None:
    server = Driver(pages=32, lanes=4, max_context_tokens=2048)
    old, new = server.say(text(640, 1)), server.say(text(640, 2))
    server.say(server.histories[old][:320] + text(1, 5))  # its first five blocks are used again
    server.say(text(1000, 3))  # 16 pages, twelve are free
    tree = server.machine.holdings.tree
    assert tree.evictions == 4
    assert [len(tree.match(blocks(server.histories[r]), 99)) for r in (old, new)] == [6, 10]


def test_a_path_in_use_is_never_given_up() -> None:
    server = Driver(pages=32, lanes=2, max_context_tokens=2048)
    first = server.say(text(640, 1), limit=2)
    going_on = server.ask(server.histories[first] + text(700, 2), limit=2)  # 21 pages in all, and all of them used
    waiting = server.ask(text(1500, 3))  # 24 pages
    assert server.machine.requests[waiting].state is RequestState.WAITING
    server.run()
    assert server.reused(going_on) == (0, "append_frontier", 640)
    assert server.reused(waiting) == (1, "full_reset", 0)


def test_only_the_head_of_the_queue_pushes_others_out() -> None:
    server = Driver(pages=32, lanes=2, max_context_tokens=2048)
    server.say(text(640, 1))
    server.ask(text(1200, 2), limit=200)  # 22 pages and none over
    head = server.ask(text(1500, 3))
    later = server.ask(text(64, 4))
    assert [server.machine.requests[r].state for r in (head, later)] == [RequestState.WAITING] * 2
    server.run()
    assert server.admission(later)


def test_pages_are_parked_in_host_memory_and_come_back() -> None:
    server = Driver(pages=16, lanes=1, max_context_tokens=1024, host_pages=8)
    first = server.say(text(500, 1), limit=3)  # seven full blocks
    other = server.say(text(900, 2))  # 15 pages
    parks = [t for chunk in server.chunks(other) for t in chunk.before if isinstance(t, ParkPages)]
    assert sum(len(park.pages) for park in parks) == 6
    back = server.say(server.histories[first] + text(10, 3), limit=1)
    admit = server.admission(back)
    assert (admit.cached_tokens, admit.way, admit.host_restored) == (448, "append_frontier", True)
    (loads,) = (t for t in server.chunks(back)[0].before if isinstance(t, LoadPages))
    assert set(loads.places) == {place for park in parks for place in park.places}
    assert server.machine.statistics().totals.host_restores == 1


def test_only_the_head_of_the_queue_brings_pages_back() -> None:
    server = Driver(pages=32, lanes=3, max_context_tokens=2048, host_pages=8)
    first = server.say(text(500, 1), limit=3)
    server.say(text(1900, 2))
    server.slot(1, "erase")
    assert server.machine.holdings.tree.parked == 5
    server.ask(text(1200, 3), limit=200)  # 22 pages: eight are left, or ten with those two of the first
    head = server.ask(text(1500, 4))
    later = server.ask(server.histories[first] + text(10, 5))
    assert [server.machine.requests[r].state for r in (head, later)] == [RequestState.WAITING] * 2
    server.send(ev.Released(head))
    server.run()
    admit = server.admission(later)
    assert (admit.cached_tokens, admit.way, admit.host_restored) == (448, "append_frontier", True)


def test_without_room_in_host_memory_the_oldest_parked_end_makes_room() -> None:
    server = Driver(pages=16, lanes=1, max_context_tokens=1024, host_pages=3)
    for seed in range(3):
        server.say(text(900, seed), limit=1)
    tree = server.machine.holdings.tree
    assert tree.parked == 3
    assert tree.parks > 3
    server.machine.audit()


def test_a_promised_image_outlives_the_need_for_room() -> None:
    server = Driver(lanes=3, images=1)
    base = text(512)
    server.say(base + text(50, 1), marks=Marks(preamble=512))
    busy = server.ask(text(2000, 2), limit=200, priority=-1, marks=Marks(preamble=1024))
    fork = server.ask(base + text(50, 3))
    assert server.machine.holdings.images.stored[0].users == 1
    server.land()
    server.run()
    assert server.reused(fork)[2] == 512
    assert server.reused(busy)[2] == 0


@pytest.mark.parametrize("released", [False, True])
def test_a_promise_of_a_lane_s_state_outlives_the_end_of_its_session(released: bool) -> None:
    server = Driver(pages=40, lanes=4, max_context_tokens=2048, folds_late=True, prefill_chunk_tokens=64, steps_ahead=0)
    first = server.say(text(639, 1), limit=2)  # ten blocks, and the lane stands before the last of them
    server.say(text(640, 2))
    server.ask(text(64 * 25, 3), priority=-1)  # the twenty pages that are free, the last of the first, and more
    promised = server.ask(server.histories[first][:600] + text(100, 4))
    while cmd.Forget(0) not in server.out:
        server.land()
    assert not server.chunks(promised)
    if released:
        server.send(ev.Released(promised))
        assert server.machine.lanes[0] is LaneState.EMPTY
    server.run()
    if not released:
        assert server.reused(promised) == (0, "append_frontier", 576)


def test_a_promise_outlives_the_session_whose_end_it_pushes_out_itself() -> None:
    server = Driver(pages=32, lanes=1, max_context_tokens=2048, folds_late=True, steps_ahead=0)
    first = server.say(text(639, 1), limit=2)  # ten blocks, and the lane stands before the last of them
    request = server.say(server.histories[first][:600] + text(1440, 2))  # 32 pages
    assert server.reused(request) == (0, "append_frontier", 576)
    assert server.machine.holdings.tree.evictions == 1


@pytest.mark.parametrize("second_fault", [False, True])
def test_after_a_fault_nothing_that_was_read_before_is_gone_on_from(second_fault: bool) -> None:
    server = Driver(lanes=2, steps_ahead=1, prefill_chunk_tokens=64)
    first = server.say(text(300), limit=3, marks=Marks(preamble=256))
    other = server.ask(text(300, 1))
    assert server.machine.lanes == [LaneState.RETAINED, LaneState.PREFILLING]
    steps = [step.number for step in server.machine.flight.steps]
    server.memory.lose()
    out = server.send(ev.StepFailed(steps[0], "fault"))
    assert cmd.Forget(0) in out
    assert server.machine.lanes == [LaneState.EMPTY, LaneState.VACATING]
    waiting = server.ask(server.histories[first] + text(50, 2))
    if second_fault:
        assert cmd.ResetEngine() in server.send(ev.StepFailed(steps[1], "and again"))
    else:
        assert cmd.ResetEngine() in server.send(ev.ChunkLanded(steps[1], 0, False, 0.1))
    assert not server.images()
    assert server.machine.pages.available + 6 == server.machine.pages.capacity  # those of the one that waits
    server.send(ev.EngineReset())
    server.run()
    assert server.reused(waiting)[1:] == ("full_reset", 0)
    server.send(ev.Released(waiting))
    again = server.say(server.histories[waiting] + text(1, 3))
    assert server.reused(again)[1] == "append_frontier"
    assert other


def test_without_reuse_nothing_is_kept() -> None:
    server = Driver(prefix_reuse=False)
    first = server.say(text(300), limit=3, marks=Marks(preamble=256, turn=290))
    assert server.reused(server.say(server.histories[first]))[1:] == ("full_reset", 0)
    assert server.machine.lanes == [LaneState.EMPTY] * 2
    assert not server.images()
    assert server.machine.pages.available == server.machine.pages.capacity
    assert [c.retained_tokens for c in server.out if isinstance(c, cmd.Finish)] == [0, 0]


def test_the_more_urgent_is_read_first_and_waiting_makes_urgent() -> None:
    server = Driver(lanes=3, prefill_chunk_tokens=64)
    first = server.ask(text(300, 1), priority=1)
    urgent = server.ask(text(300, 2), priority=0)
    server.land()
    assert server.chunks(urgent)[0].end == 64  # set aside for the more urgent one, which is no shorter
    server.land()
    assert len(server.chunks(first)) == 1
    server.run()
    server.now = 100.0
    patient = server.ask(text(300, 3), priority=1)
    server.now += 31.0
    newcomer = server.ask(text(300, 4), priority=0)
    server.run()
    order = [c.request_id for c in server.out if isinstance(c, cmd.StartChunk)][-10:]
    assert order == [patient] * 5 + [newcomer] * 5


def test_the_queue_is_ordered_by_urgency_and_then_by_age() -> None:
    server = Driver(lanes=1, pending_timeout_s=1000.0)
    server.ask(text(100, 0), limit=500)
    waiting = [server.ask(text(10, 1 + at), priority=priority) for at, priority in enumerate([0, 2, 1, 0])]
    server.now = 70.0  # each is more urgent by two
    newcomer = server.ask(text(10, 9), priority=-1)
    in_front = [server.machine.ahead_of(request, server.now) for request in (*waiting, newcomer, 1)]
    assert in_front == [0, 4, 2, 1, 3, None]
    server.run()
    order = [c.request_id for c in server.out if isinstance(c, cmd.Admit)][1:]
    assert order == [waiting[0], waiting[3], waiting[2], newcomer, waiting[1]]


def test_a_prompt_of_whole_blocks_stores_its_end_without_a_cut() -> None:
    server = Driver(steps_ahead=0)
    request = server.ask(text(256), limit=3, marks=Marks(turn=256, message_begin=64, message_end=200))
    assert [(c.begin, c.end, len(c.after)) for c in server.chunks(request)] == [(0, 64, 1)]
    server.run()
    assert [(c.begin, c.end, len(c.after)) for c in server.chunks(request)] == [(0, 64, 1), (64, 192, 1), (192, 256, 1)]
    assert server.images() == {64: "ANCHOR", 192: "ANCHOR", 256: "TURN"}


def test_a_state_at_the_start_of_the_last_block_is_stored_when_the_prompt_has_been_read() -> None:
    server = Driver(steps_ahead=0)
    request = server.ask(text(250), limit=3, marks=Marks(turn=240))
    assert server.chunks(request) == [
        cmd.StartChunk(1, request, 0, 0, 250, PageMapping(0, (0, 1, 2, 3)), True, (), (CaptureState(0, 0),), True)
    ]


def test_a_long_message_gets_an_anchor_near_its_end() -> None:
    server = Driver()
    server.say(text(2000), marks=Marks(message_begin=300, message_end=1900, turn=1990))
    assert server.images() == {256: "ANCHOR", 1792: "ANCHOR", 1856: "ANCHOR", 1984: "TURN"}


def test_anchors_belong_to_the_newest_message() -> None:
    server = Driver()
    first = server.say(text(400), limit=70, marks=Marks(message_begin=100, message_end=390, turn=399))
    assert server.images() == {64: "ANCHOR", 384: "TURN"}
    # The second message begins in the block at which the lane stands.
    mark = Marks(message_begin=475, message_end=640, turn=720)
    second = server.say(server.histories[first] + text(260, 1), marks=mark)
    assert server.reused(second)[2] == 448
    assert server.chunks(second)[0].before == (CaptureState(0, 2),)
    assert server.images() == {448: "ANCHOR", 640: "ANCHOR", 704: "TURN"}
    edited = server.say(server.histories[second][:480] + text(100, 2))
    assert server.reused(edited) == (0, "restore_user_turn_anchor", 448)


def test_turn_checkpoints_make_a_ring() -> None:
    server = Driver(pages=512, max_context_tokens=32768, turn_checkpoints=3, images=16, prefill_chunk_tokens=1024)
    history = b""
    for frontier in (1024, 3072, 9024, 11008, 15232, 20032):
        history = history[:frontier] + text(frontier + 60 - len(history[:frontier]), frontier)
        request = server.say(history, limit=2, marks=Marks(turn=frontier))
        history = server.histories[request]
    # The worked example of the contract, and the newest capture that is not folded in yet.
    assert server.machine.holdings.checkpoints(0) == (1024, 9024, 15232, 20032)
    server.say(history + text(300), marks=Marks(turn=20200))
    assert server.machine.holdings.checkpoints(0) == (9024, 15232, 20032, 20160)


def test_shared_states_are_limited_in_number() -> None:
    server = Driver(max_shared_prefixes=2, lanes=1)
    bases = [text(256, 10 + seed) for seed in range(3)]
    for base in bases:
        server.say(base + text(10, 1), marks=Marks(preamble=256))
    shared = [i for i in server.machine.holdings.images.stored if i.kind.name == "SHARED"]
    assert len(shared) == 2
    assert server.reused(server.say(bases[1] + text(99, 2)))[1:] == ("fork_shared_prefix", 256)
    assert server.reused(server.say(bases[0] + text(99, 3)))[1:] == ("full_reset", 0)


@pytest.mark.parametrize("kept", [2, 7, 8, 9])
def test_what_a_round_has_drawn_behind_a_stop_string_is_no_part_of_the_session(kept: int) -> None:
    """A first token and a round of eight; the prompt and the first eight of them fill two blocks."""
    server = Driver(steps_ahead=0, draft_tokens=7)
    request = server.ask(text(120), limit=40)
    while server.machine.requests[request].drawn < 9:
        server.land()
    server.send(ev.StopStringFound(request, kept))
    (finish,) = (c for c in server.out if isinstance(c, cmd.Finish))
    server.run()
    (view, _other) = server.machine.statistics().lanes
    assert view.prompt_tokens == finish.retained_tokens == 120 + kept
    following = server.say(server.histories[request][: finish.retained_tokens] + text(9, 1))
    # The lane stands behind the second block, which with fewer than eight tokens is not the session's.
    assert server.reused(following)[2] == (128 if kept >= 8 else 0)


def test_the_next_turn_waits_for_the_row_behind_the_last_token() -> None:
    server = Driver(lanes=2, images=4, steps_ahead=1)
    prompt = text(200)
    first = server.ask(prompt, limit=9)
    while server.machine.requests[first].drawn < 3:
        server.land()
    server.send(ev.StopStringFound(first, 3))
    assert LaneState.VACATING in server.machine.lanes
    server.ask(prompt, limit=1)
    assert server.machine.lanes == [LaneState.VACATING, LaneState.EMPTY]
    server.run()
    assert server.machine.lanes == [LaneState.RETAINED, LaneState.EMPTY]
