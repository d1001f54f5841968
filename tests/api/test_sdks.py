"""The official clients of both companies over real sockets: answers, streams, counts, stored responses, errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from ninfer.config import SchedulerSettings
from tests.support.engines import FakeEngine
from tests.support.http import MODEL_ID, says, settle
from tests.support.listening import Listening, listening
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

ANSWER = "think hard\n</think>\n\nSix times seven is 42, grüß dich \U0001f642."
TEXT = "Six times seven is 42, grüß dich \U0001f642."


@asynccontextmanager
async def claude(
    engine: FakeEngine, scheduler: SchedulerSettings | None = None
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Listening]]:
    async with listening(engine, scheduler=scheduler) as server:
        http = httpx2.AsyncClient(trust_env=False)
        async with anthropic.AsyncAnthropic(
            base_url=server.url.removesuffix("/v1"), api_key="x", max_retries=0, http_client=http
        ) as client:
            yield client, server


@asynccontextmanager
async def gpt(engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with listening(engine) as server:
        http = httpx2.AsyncClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0, http_client=http) as client:
            yield client


def claude_ask(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"model": "claude-x", "max_tokens": 2000, "messages": [{"role": "user", "content": text}], **fields}


async def test_messages_whole_streamed_and_counted() -> None:
    async with claude(says(ANSWER)) as (client, _):
        ask = claude_ask(system="Be brief.", tools=[{"name": "f", "input_schema": {"type": "object"}}])
        whole = await client.messages.create(**ask)
        assert [block.type for block in whole.content] == ["thinking", "text"]
        assert (whole.model, whole.stop_reason) == ("claude-x", "end_turn")
        async with client.messages.stream(**ask) as stream:
            said = "".join([piece async for piece in stream.text_stream])
            streamed = await stream.get_final_message()
        assert said == TEXT
        assert [block.model_dump() for block in streamed.content] == [block.model_dump() for block in whole.content]
        assert streamed.usage.output_tokens == whole.usage.output_tokens
        del ask["max_tokens"]
        counted = await client.messages.count_tokens(**ask)
        assert counted.input_tokens == whole.usage.input_tokens
        through_beta = await client.beta.messages.create(**claude_ask(), betas=["context-management-2025-06-27"])
        assert through_beta.stop_reason == "end_turn"


async def test_messages_carry_a_conversation_on() -> None:
    seen: list[str] = []

    def words(prompt: tuple[int, ...]) -> list[int]:
        seen.append(TOKENIZER.decode(prompt))
        return TOKENIZER.encode_with_control(ANSWER)

    async with claude(FakeEngine(words)) as (client, _):
        first = await client.messages.create(**claude_ask("one"))
        history: Any = [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": first.content},  # as the SDK has it, signature and all
            {"role": "user", "content": "two"},
        ]
        await client.messages.create(model="claude-x", max_tokens=10, messages=history)
    assert seen[-1].count("think hard") == seen[-1].count(TEXT) == 1


async def test_messages_refuse_in_the_clients_own_errors() -> None:
    async with claude(says(ANSWER), SchedulerSettings(max_pending=1)) as (client, server):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(**claude_ask("word " * 9000))
        assert "prompt is too long: " in caught.value.message
        assert caught.value.request_id is not None
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("x")
        await settle(server.served)
        held = [await server.served.state.system.gateway.arrive() for _ in range(2)]
        with pytest.raises(anthropic.APIStatusError) as full:
            await client.messages.create(**claude_ask())
        assert full.value.status_code == 529
        for ticket in held:
            await ticket.release()
        await settle(server.served)


async def test_responses_whole_streamed_and_stored() -> None:
    async with gpt(says(ANSWER)) as client:
        whole = await client.responses.create(model=MODEL_ID, input="Hi", instructions="Be brief.")
        assert (whole.output_text, whole.status) == (TEXT, "completed")
        assert whole.usage is not None
        counted = await client.responses.input_tokens.count(model=MODEL_ID, input="Hi", instructions="Be brief.")
        assert counted.input_tokens == whole.usage.input_tokens
        async with client.responses.stream(model=MODEL_ID, input="Hi", instructions="Be brief.") as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        assert streamed.output_text == TEXT
        assert [item.type for item in streamed.output] == [item.type for item in whole.output]
        again = await client.responses.retrieve(streamed.id)
        assert again.output_text == TEXT
        items = await client.responses.input_items.list(streamed.id)
        assert [item.type for item in items.data] == ["message"]
        await client.responses.delete(streamed.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(streamed.id)


async def test_responses_carry_a_conversation_on() -> None:
    seen: list[str] = []

    def words(prompt: tuple[int, ...]) -> list[int]:
        seen.append(TOKENIZER.decode(prompt))
        return TOKENIZER.encode_with_control(ANSWER)

    async with gpt(FakeEngine(words)) as client:
        first = await client.responses.create(model=MODEL_ID, input="one")
        await client.responses.create(model=MODEL_ID, input="two", previous_response_id=first.id)
        # The same without the store: the client sends the items back as it got them.
        history: Any = [{"role": "user", "content": "one"}, *[item.model_dump() for item in first.output]]
        history.append({"role": "user", "content": "two"})
        await client.responses.create(model=MODEL_ID, input=history, store=False)
    assert seen[-1] == seen[-2]
    assert seen[-1].count(TEXT) == 1


async def test_responses_refuse_in_the_clients_own_errors() -> None:
    async with gpt(says(ANSWER)) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model=MODEL_ID, input="Hi", previous_response_id="resp_x")
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
        with pytest.raises(openai.NotFoundError) as other:
            await client.responses.create(model="other", input="Hi")
        assert other.value.code == "model_not_found"


async def test_chat_and_completions_tell_log_probabilities_of_several_choices() -> None:
    async with gpt(says(ANSWER)) as client:
        ask: Any = {
            "model": MODEL_ID,
            "messages": [{"role": "user", "content": "Hi"}],
            "n": 2,
            "logprobs": True,
            "top_logprobs": 2,
        }
        whole = await client.chat.completions.create(**ask)
        for choice in whole.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.content is not None
            said = b"".join(bytes(one.bytes or ()) for one in choice.logprobs.content)
            assert said.decode().lstrip() == choice.message.content == TEXT
            assert {len(one.top_logprobs) for one in choice.logprobs.content} == {2}
        async with client.chat.completions.stream(**ask) as stream:
            streamed = await stream.get_final_completion()
        assert [choice.message.content for choice in streamed.choices] == [TEXT] * 2
        told = [choice.logprobs.content for choice in streamed.choices if choice.logprobs is not None]
        assert told == [choice.logprobs.content for choice in whole.choices if choice.logprobs is not None]
        text = await client.completions.create(model=MODEL_ID, prompt="Hi", n=2, max_tokens=100, logprobs=2)
        for one in text.choices:
            assert one.logprobs is not None
            assert len(one.logprobs.tokens or ()) == len(one.logprobs.text_offset or ()) > 0
        response = await client.responses.create(
            model=MODEL_ID, input="Hi", include=["message.output_text.logprobs"], top_logprobs=1
        )
        (part,) = response.output[-1].content  # type: ignore[union-attr, misc]
        assert len(part.logprobs or ()) == len(told[0] or ())  # type: ignore[union-attr]
