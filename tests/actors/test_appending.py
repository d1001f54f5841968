"""Turns of a conversation through all actors: each goes on exactly where its lane stands."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from ninfer.actors.eventlog import EventLog
from ninfer.actors.messages import Finished
from ninfer.config import SchedulerSettings
from ninfer.ledger import PromptIdentity
from ninfer.replay import replay
from tests.support.engines import FakeBuilder, FakeEngine
from tests.support.system import STOP_IDS, TOKENIZER, Running, collect, echo, last, request_for, running

pytestmark = pytest.mark.asyncio

MORE = tuple(TOKENIZER.encode("and then?"))


async def turn(state: Running, prompt: tuple[int, ...], limit: int) -> Finished:
    request = replace(request_for("", max_tokens=limit), prompt_ids=prompt)
    ticket = await state.system.gateway.arrive()
    await ticket.submit(replace(request, identity=PromptIdentity.of(ticket.names, prompt)))
    end = last(await collect(ticket.replies))
    await ticket.release()
    assert isinstance(end, Finished)
    return end


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("folds_late", [False, True])
@pytest.mark.parametrize("appends", [False, True])
async def test_a_turn_reads_what_nobody_has_read(steps_ahead: int, folds_late: bool, appends: bool) -> None:
    settings = SchedulerSettings(lanes=2, max_context_tokens=1024, steps_ahead=steps_ahead, images=4)
    engine = FakeEngine(echo, folds_late=folds_late, appends=appends)
    file = io.BytesIO()
    async with running(settings, engine=engine, builder=FakeBuilder(engine), log=EventLog(file)) as state:
        prompt = tuple(TOKENIZER.encode("The quick brown fox. " * 6))
        cached = []
        for limit in (7, 12, 1, 90, 3, 40):
            end = await turn(state, prompt, limit)
            cached.append(end.usage.cached_tokens)
            wanted = len(prompt) + limit - 1
            prompt = (*prompt, *echo(prompt)[:limit], *MORE)
            cached.append(wanted if appends else wanted // 64 * 64)
    # What was reused is what the turn before has left, once it is known how many tokens the first one has.
    assert cached[0] == 0
    if appends or not folds_late:
        assert cached[2::2] == cached[1:-1:2]
    assert not replay(file.getvalue().splitlines(keepends=True)).cut_short


async def test_a_stop_token_that_was_run_is_not_read_again() -> None:
    settings = SchedulerSettings(lanes=1, max_context_tokens=1024, steps_ahead=1)
    async with running(settings) as state:
        prompt = tuple(TOKENIZER.encode("Say it backwards."))
        await turn(state, prompt, 500)
        history = (*prompt, *echo(prompt), STOP_IDS[0])
        end = await turn(state, (*history, *MORE), 2)
        assert end.usage.cached_tokens == len(history)
