"""The official SDKs through a task with a call, whole and streamed, over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from ninfer.engine.scripted import Script, ScriptLine
from tests.support.engines import FakeEngine
from tests.support.http import MODEL_ID
from tests.support.listening import listening
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

CALL = "<tool_call>\n<function=file_it>\n<parameter=word>\nharvest\n</parameter>\n</function>\n</tool_call>"
LINE = ScriptLine("File it", f"I will.\n</think>\n\nI file it.\n\n{CALL}", then=("Done.\n</think>\n\nIt is filed.",))
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
FUNCTION: Any = {"name": "file_it", "description": "File a word", "parameters": SCHEMA}
FILED = [{"word": "harvest"}]


@asynccontextmanager
async def address() -> AsyncIterator[str]:
    script = Script([LINE], TOKENIZER)
    async with listening(FakeEngine(lambda prompt: list(script.answer(prompt).token_ids))) as server:
        yield server.url


@asynccontextmanager
async def gpt() -> AsyncIterator[openai.AsyncOpenAI]:
    async with address() as url:
        http = httpx2.AsyncClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0, http_client=http) as client:
            yield client


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat(streamed: bool) -> None:
    async with gpt() as client:

        async def answer(messages: list[Any]) -> Any:
            asked: dict[str, Any] = {
                "model": MODEL_ID,
                "messages": messages,
                "tools": [{"type": "function", "function": FUNCTION}],
            }
            if not streamed:
                return (await client.chat.completions.create(**asked)).choices[0]
            async with client.chat.completions.stream(**asked) as stream:
                async for _ in stream:
                    pass
                return (await stream.get_final_completion()).choices[0]

        messages: list[Any] = [{"role": "user", "content": "File it, please."}]
        first = await answer(messages)
        assert (first.finish_reason, first.message.content) == ("tool_calls", "I file it.")
        filed = [json.loads(call.function.arguments) for call in first.message.tool_calls]
        assert filed == FILED
        messages.append(
            first.message.model_dump(exclude_none=True, exclude={"tool_calls": {0: {"function": {"parsed_arguments"}}}})
        )
        messages.append({"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "filed"})
        last = await answer(messages)
        assert (last.finish_reason, last.message.content) == ("stop", "It is filed.")


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses(streamed: bool) -> None:
    async with gpt() as client:

        async def answer(**fields: Any) -> Any:
            asked: dict[str, Any] = {"model": MODEL_ID, "tools": [{"type": "function", **FUNCTION, "strict": False}]}
            if not streamed:
                return await client.responses.create(**asked, **fields)
            async with client.responses.stream(**asked, **fields) as stream:
                return await stream.get_final_response()

        first = await answer(input="File it, please.")
        calls = [item for item in first.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == FILED
        result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "filed"}
        last = await answer(input=[result], previous_response_id=first.id)
        assert last.output_text == "It is filed."


@pytest.mark.parametrize("streamed", [False, True])
async def test_messages(streamed: bool) -> None:
    async with address() as url:
        http = httpx2.AsyncClient(trust_env=False)
        async with anthropic.AsyncAnthropic(
            base_url=url.removesuffix("/v1"), api_key="x", max_retries=0, http_client=http
        ) as client:

            async def answer(messages: list[Any]) -> Any:
                tool: Any = {"name": "file_it", "description": "File a word", "input_schema": SCHEMA}
                asked: dict[str, Any] = {"model": "any", "max_tokens": 500, "messages": messages, "tools": [tool]}
                if not streamed:
                    return await client.messages.create(**asked)
                async with client.messages.stream(**asked) as stream:
                    return await stream.get_final_message()

            messages: list[Any] = [{"role": "user", "content": "File it, please."}]
            first = await answer(messages)
            calls = [block for block in first.content if block.type == "tool_use"]
            assert (first.stop_reason, [call.input for call in calls]) == ("tool_use", FILED)
            messages.append({"role": "assistant", "content": first.content})
            result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": "filed"}
            messages.append({"role": "user", "content": [result]})
            last = await answer(messages)
            assert (last.stop_reason, last.content[-1].text) == ("end_turn", "It is filed.")
