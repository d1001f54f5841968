"""Who is read next, and who draws."""

from __future__ import annotations

import pytest

from ninfer.scheduler import commands as cmd
from ninfer.scheduler.candidates import first_draw_in_flight, rows
from ninfer.scheduler.requests import Request
from ninfer.scheduler.transitions import RequestState
from ninfer.types import Marks
from tests.scheduler.driving import Driver, text


def order(server: Driver) -> list[int]:
    """Requests in the order in which they began."""
    return [command.request_id for command in server.out if isinstance(command, cmd.Admit)]


def test_of_prompts_that_have_not_begun_the_first_come_goes_first() -> None:
    server = Driver(lanes=4, steps_ahead=0, max_context_tokens=4096)
    server.ask(text(50, 0), limit=3)
    for seed in (1, 2, 3):
        server.ask(text(60, seed))
    server.run()
    assert order(server) == [1, 2, 3, 4]


@pytest.mark.parametrize(("left", "second"), [(600, False), (300, True)])
def test_what_is_reused_of_a_prompt_does_not_make_it_long(left: int, second: bool) -> None:
    server = Driver(lanes=2, steps_ahead=0, prefill_chunk_tokens=64)
    known = server.say(text(2000), limit=2)
    long = server.ask(text(1000, 1))
    short = server.ask(server.histories[known] + text(left, 2))
    server.land()
    assert bool(server.chunks(short)) == second
    assert server.chunks(long)
    server.run()


def test_a_set_aside_prompt_goes_on_from_where_it_stopped() -> None:
    server = Driver(lanes=2, steps_ahead=0, prefill_chunk_tokens=64)
    long = server.ask(text(500, 1))
    server.land()
    short = server.ask(text(100, 2))
    server.run()
    assert [(c.begin, c.end) for c in server.chunks(short)] == [(0, 64), (64, 100)]
    begins = [chunk.begin for chunk in server.chunks(long)]
    assert begins == list(range(0, 500, 64))
    assert server.tokens_read == 600


def test_the_shorter_of_two_that_were_begun_is_ended_first() -> None:
    server = Driver(lanes=3, steps_ahead=0, prefill_chunk_tokens=64)
    requests = [server.ask(text(tokens, tokens)) for tokens in (1000, 400, 100)]
    server.run()
    ended = [command.request_id for command in server.out if isinstance(command, cmd.Finish)]
    assert ended == requests[::-1]


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_whoever_waits_for_another_s_state_lets_third_parties_pass(steps_ahead: int) -> None:
    server = Driver(lanes=3, steps_ahead=steps_ahead, prefill_chunk_tokens=64)
    base = text(640)
    mark = Marks(preamble=640)
    first = server.ask(base + text(30, 1), marks=mark)
    follower = server.ask(base + text(30, 2), marks=mark)
    third = server.ask(text(100, 3))
    server.run()
    assert order(server) == [first, third, follower]
    assert server.reused(follower)[2] == 640


def test_rows_are_those_that_want_one_more_token_by_lane() -> None:
    def drawing(number: int, lane: int, state: RequestState, drawn: int) -> Request:
        return Request(number, 0.0, 1.0, state, prompt=5, limit=4, lane=lane, read=5, drawn=drawn)

    ready = drawing(1, 2, RequestState.GENERATING, 3)
    ahead = drawing(2, 0, RequestState.GENERATING_IN_STEP, 2)
    full = drawing(3, 1, RequestState.GENERATING_IN_STEP, 3)
    leaving = drawing(4, 3, RequestState.LEAVING, 1)
    assert rows([ready, ahead, full, leaving]) == [ahead, ready]


@pytest.mark.parametrize(("read", "limit", "expected"), [(5, 2, True), (5, 1, False), (4, 2, False)])
def test_a_first_token_is_on_its_way(read: int, limit: int, expected: bool) -> None:
    request = Request(1, 0.0, 1.0, RequestState.READING_IN_STEP, prompt=5, limit=limit, lane=0, read=read)
    assert first_draw_in_flight([request]) is expected
    request.state = RequestState.READING_AHEAD
    assert first_draw_in_flight([request]) is False
