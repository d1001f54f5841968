"""Log-probabilities on their way from the engine to the client: those of the answer's tokens, none lost, none moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer.actors.messages import Finished, GenerationRequest, Reply, TextDelta
from ninfer.config import SchedulerSettings
from tests.support.engines import FakeEngine, told_of
from tests.support.system import TOKENIZER, Running, collect, content, last, request_for, running

pytestmark = pytest.mark.asyncio

SAID = "First I think a while.\n</think>\n\nSix times seven is 42, grüß dich \U0001f642."


async def ask(state: Running, request: GenerationRequest) -> list[Reply]:
    ticket = await state.system.gateway.arrive()
    await ticket.submit(request)
    replies = await collect(ticket.replies)
    await ticket.release()
    return replies


@pytest.mark.parametrize("drafts", [0, 5])
@pytest.mark.parametrize("stops", [(), ("seven",), ("dich",)])
@pytest.mark.parametrize("count", [0, 3])
async def test_they_are_those_of_the_answers_tokens(drafts: int, stops: tuple[str, ...], count: int) -> None:
    ids = TOKENIZER.encode_with_control(SAID)
    settings = SchedulerSettings(prefix_reuse=False, draft_tokens=drafts, steps_ahead=0 if drafts else 1)
    async with running(settings, engine=FakeEngine(lambda _prompt: ids)) as state:
        request = replace(request_for("Hi", stops=stops), opens_think=True, logprobs=count)
        replies = await ask(state, request)
    answer = content(replies)
    told = [one for reply in replies if isinstance(reply, TextDelta) for one in reply.logprobs]
    first = TOKENIZER.encode_with_control(SAID).index(TOKENIZER.control_id("</think>"))
    at = next(n for n in range(first + 1, len(ids)) if TOKENIZER.decode(ids[first + 1 : n + 1]).strip())
    assert told == [told_of(ids[n], n, count)[0] for n in range(at, at + len(told))]
    said = TOKENIZER.decode([one.token_id for one in told])
    assert said.lstrip().startswith(answer)
    assert not TOKENIZER.decode([one.token_id for one in told[:-1]]).lstrip().startswith(answer)
    assert isinstance(last(replies), Finished)


async def test_nothing_is_told_to_those_who_do_not_ask() -> None:
    ids = TOKENIZER.encode_with_control(SAID)
    async with running(engine=FakeEngine(lambda _prompt: ids)) as state:
        replies = await ask(state, request_for("Hi"))
    assert not any(reply.logprobs for reply in replies if isinstance(reply, TextDelta))
