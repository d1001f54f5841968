"""The Messages routes over a running system: answers, counts, errors, waiting, the log."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from ninfer.api import messages_response
from ninfer.config import HttpSettings, SchedulerSettings
from ninfer.errors import DeviceFault
from tests.api.test_messages_response import rebuilt, without_id
from tests.support.engines import FakeEngine
from tests.support.http import Served, ask, events, model, says, served, settle
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

PATH = "/v1/messages"
ANSWER = "think hard\n</think>\n\nSix times seven is 42, grüß dich \U0001f642."


def body(content: object = "Hi", **fields: object) -> dict[str, object]:
    return {"model": "any-label", "max_tokens": 4096, "messages": [{"role": "user", "content": content}], **fields}


async def whole(state: Served, **fields: Any) -> dict[str, Any]:
    response = await state.send(PATH, body(**fields))
    assert response.status_code == 200
    return await response.get_json()  # type: ignore[no-any-return]


async def streamed(state: Served, **fields: Any) -> list[dict[str, Any]]:
    response = await state.send(PATH, body(stream=True, **fields))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    return events(await response.get_data())


async def refused(state: Served, sent: object, path: str = PATH, **headers: str) -> tuple[int, str, str]:
    response = await state.send(path, sent, **headers)
    answer = await response.get_json(force=True)
    assert set(answer) == {"type", "error", "request_id"}
    assert answer["type"] == "error"
    assert answer["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return response.status_code, answer["error"]["type"], answer["error"]["message"]


async def test_a_whole_answer() -> None:
    async with served(says(ANSWER)) as state:
        message = await whole(state)
        assert message["model"] == "any-label"
        assert [block["type"] for block in message["content"]] == ["thinking", "text"]
        assert message["content"][0]["thinking"] == "think hard"
        assert message["content"][1]["text"] == "Six times seven is 42, grüß dich \U0001f642."
        assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
        assert message["usage"]["output_tokens"] == len(TOKENIZER.encode_with_control(ANSWER)) + 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 3},
        {"stop_sequences": ["seven"]},
        {"stop_sequences": ["hard"]},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "output_config": {"effort": "low"}},
    ],
)
async def test_streamed_and_whole_answers_are_equal(fields: dict[str, object]) -> None:
    async with served(says(ANSWER)) as state:
        message = await whole(state, **fields)
        assert without_id(rebuilt(await streamed(state, **fields))) == without_id(message)


async def test_stop_sequences_count_in_the_answer_alone() -> None:
    async with served(says("a fox thinks\n</think>\n\nThe quick brown fox jumps.")) as state:
        message = await whole(state, stop_sequences=["fox"])
        assert message["content"][0]["thinking"] == "a fox thinks"
        assert message["content"][1]["text"] == "The quick brown "
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "fox")


CALLS = """Two files.
</think>

Reading both.

<tool_call>
<function=read>
<parameter=path>
a.c
</parameter>
</function>
</tool_call>
<tool_call>
<function=read>
<parameter=path>
b.c
</parameter>
</function>
</tool_call>"""
READ = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


def without_call_ids(message: dict[str, Any]) -> dict[str, Any]:
    for block in message["content"]:
        assert block["type"] != "tool_use" or block.pop("id").startswith("call_")
    return without_id(message)


async def test_calls_whole_and_streamed() -> None:
    async with served(says(CALLS)) as state:
        message = without_call_ids(await whole(state, tools=[READ]))
        assert message["stop_reason"] == "tool_use"
        assert message["content"][1:] == [
            {"type": "text", "text": "Reading both."},
            {"type": "tool_use", "name": "read", "input": {"path": "a.c"}},
            {"type": "tool_use", "name": "read", "input": {"path": "b.c"}},
        ]
        assert without_call_ids(rebuilt(await streamed(state, tools=[READ]))) == message


async def test_at_most_one_call() -> None:
    fields = {"tools": [READ], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    async with served(says(CALLS)) as state:
        message = without_call_ids(await whole(state, **fields))
        assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
        assert without_call_ids(rebuilt(await streamed(state, **fields))) == message


async def test_a_call_that_is_cut_is_a_limit() -> None:
    async with served(says(CALLS)) as state:
        limit = len(TOKENIZER.encode_with_control(CALLS)) - 15
        message = await whole(state, tools=[READ], max_tokens=limit)
        assert message["stop_reason"] == "max_tokens"
        assert [block["input"] for block in message["content"][2:]] == [{"path": "a.c"}, {}]
        parts = await streamed(state, tools=[READ], max_tokens=limit)
        assert without_call_ids(rebuilt(parts)) == without_call_ids(message)
        assert [part["type"] for part in parts[-3:]] == ["content_block_stop", "message_delta", "message_stop"]


async def test_calls_are_not_read_when_none_may_be_made() -> None:
    async with served(says(CALLS)) as state:
        message = await whole(state, tools=[READ], tool_choice={"type": "none"})
        assert message["stop_reason"] == "end_turn"
        assert "<tool_call>" in message["content"][1]["text"]


async def test_the_same_prompt_as_in_chat() -> None:
    seen: list[tuple[int, ...]] = []

    def listen(prompt: tuple[int, ...]) -> list[int]:
        seen.append(prompt)
        return []

    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    async with served(FakeEngine(listen)) as state:
        await whole(
            state,
            system="Be brief.",
            tools=[{"name": "read", "description": "Read", "input_schema": schema}],
            output_config={"effort": "high"},
        )
        chat = ask(reasoning_effort="high")
        chat["messages"] = [{"role": "system", "content": "Be brief."}, *chat["messages"]]  # type: ignore[misc]
        function = {"name": "read", "description": "Read", "parameters": schema}
        await state.post({**chat, "tools": [{"type": "function", "function": function}]})
    assert seen[-1] == seen[-2]


async def test_a_count_equals_the_later_usage() -> None:
    sent = {
        "system": "Be brief.",
        "tools": [{"name": "read", "input_schema": {"type": "object", "properties": {}}}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    prefill = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is"}],
        "thinking": {"type": "disabled"},
    }
    async with served(scheduler=SchedulerSettings(max_pending=1)) as state:
        held = [await state.state.system.gateway.arrive() for _ in range(2)]  # counting needs no capacity
        counts = []
        for fields in (sent, prefill):
            counted = {name: value for name, value in {**body(), **fields}.items() if name != "max_tokens"}
            response = await state.send(f"{PATH}/count_tokens", counted)
            assert response.status_code == 200
            counts.append((await response.get_json())["input_tokens"])
        for ticket in held:
            await ticket.release()
        for fields, count in zip((sent, prefill), counts, strict=True):
            usage = (await whole(state, **fields))["usage"]
            parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
            assert sum(usage[part] for part in parts) == count


async def test_a_prompt_that_is_too_long_is_refused_and_counted() -> None:
    async with served(the_model=model(max_context_tokens=100)) as state:
        status, kind, message = await refused(state, body("word " * 200, stream=True))
        assert (status, kind) == (400, "invalid_request_error")
        response = await state.send(f"{PATH}/count_tokens", body("word " * 200))
        tokens = (await response.get_json())["input_tokens"]
        assert message == f"prompt is too long: {tokens} tokens > 100 maximum"


async def test_a_current_agent_is_understood() -> None:
    async with served() as state:
        response = await state.send(
            f"{PATH}?beta=true",
            body(
                [{"type": "text", "text": ""}, {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}],
                metadata={"user_id": "u"},
                context_management={"edits": []},
                thinking={"type": "adaptive"},
                tools=[{"type": "web_search_20250305", "name": "web_search"}, {"name": "read", "input_schema": {}}],
                tool_choice={"type": "auto", "disable_parallel_tool_use": True},
            ),
            **{"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"},
        )
        assert response.status_code == 200
        assert (await response.get_json())["content"] == [{"type": "text", "text": "Hello."}]
        hello = await state.app.test_client().head("/")
        assert hello.status_code == 200


async def test_refusals_and_their_order() -> None:
    picture = [{"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]
    settings = HttpSettings(api_keys=("k",), max_request_bytes=10_000)
    async with served(scheduler=SchedulerSettings(max_pending=1), http=settings) as state:
        key = {"x-api-key": "k"}
        held = [await state.state.system.gateway.arrive() for _ in range(2)]
        assert (await refused(state, body()))[:2] == (401, "authentication_error")
        assert (await refused(state, b"x" * 10_001, **key))[:2] == (413, "request_too_large")
        assert (await refused(state, b"{", **key))[:2] == (400, "invalid_request_error")
        assert (await refused(state, body(picture), **key))[2] == (
            "there are images or videos in messages, and this server has no vision"
        )
        assert (await refused(state, body(picture), f"{PATH}/count_tokens", **key))[0] == 400
        assert (await refused(state, body(), **key))[:2] == (529, "overloaded_error")
        response = await state.send(PATH, body(stream=True), **key)
        assert (response.status_code, response.headers["Retry-After"]) == (529, "1")
        for ticket in held:
            await ticket.release()
        assert (await refused(state, body(), f"{PATH}/nope", **key))[:2] == (404, "not_found_error")


async def test_a_deadline_in_the_queue() -> None:
    engine = says(ANSWER)
    async with served(engine, scheduler=SchedulerSettings(pending_timeout_s=1.5)) as state:
        engine.gate = threading.Event()
        results: dict[str, Any] = {}

        async def send(name: str, **fields: object) -> None:
            results[name] = await state.send(PATH, body(**fields))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, "first")
            while not state.state.system.machine.statistics().running:
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as late:
                late.start_soon(send, "whole")
                late.start_soon(lambda: send("streamed", stream=True))
            engine.gate.set()
        assert results["first"].status_code == 200
        assert (results["whole"].status_code, results["whole"].headers["Retry-After"]) == (504, "1")
        assert (await results["whole"].get_json())["error"]["type"] == "timeout_error"
        # Nothing was said before: the split of the prompt was not known.
        (error,) = events(await results["streamed"].get_data())
        assert error["error"]["type"] == "timeout_error"
        assert error["request_id"].startswith("req_")
        await settle(state)


async def test_silence_is_filled_with_pings() -> None:
    engine = says(ANSWER)
    async with served(engine, keep_alive_comment_s=0.01) as state:
        engine.gate = threading.Event()
        ping = b'event: ping\ndata: {"type":"ping"}\n\n'
        async with state.app.test_client().request(PATH, method="POST") as connection:
            await connection.send(orjson.dumps(body(stream=True)))
            await connection.send_complete()
            data = await connection.receive()
            while data.count(ping) < 3:
                data += await connection.receive()
            engine.gate.set()
            while b"message_stop" not in data:
                data += await connection.receive()
    parts = [part for part in events(data) if part["type"] != "ping"]
    assert parts[0]["type"] == "message_start"
    assert rebuilt(parts)["content"][0]["thinking"] == "think hard"


async def test_a_fault_in_mid_stream_ends_it() -> None:
    engine = says(ANSWER)
    async with served(engine) as state:
        engine.fail_next = DeviceFault("secret")
        parts = await streamed(state)
        assert parts[-1]["error"] == {"type": "api_error", "message": "Internal server error."}
        assert [part["type"] for part in parts] == ["message_start", "error"]
        await settle(state)


async def test_the_log_of_requests(tmp_path: Path) -> None:
    async with served(says(ANSWER), log_path=tmp_path / "log") as state:
        await whole(state, max_tokens=4, output_config={"effort": "low"})
        await state.send(f"{PATH}/count_tokens", body())
        await settle(state)
        start, done = state.log_records()
    assert (start["event"], done["event"]) == ("request_start", "request_done")
    assert start["request"]["protocol"] == "anthropic_messages"
    assert (start["request"]["model"], start["request"]["requested_reasoning_effort"]) == ("any-label", "low")
    assert done["result"]["finish_reason"] == "output_limit"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_place(stream: bool, tmp_path: Path) -> None:
    engine = FakeEngine(lambda _prompt: TOKENIZER.encode("a b c " * 2000))
    async with served(engine, log_path=tmp_path / "log") as state:
        async with state.app.test_client().request(PATH, method="POST") as connection:
            await connection.send(orjson.dumps(body(stream=stream)))
            await connection.send_complete()
            while not state.state.system.machine.statistics().decode_ready:
                await anyio.lowlevel.checkpoint()
            await connection.disconnect()
        await settle(state)
        assert [record["event"] for record in state.log_records()] == ["request_start", "request_error"]


async def test_a_bug_in_mid_stream_ends_it_and_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_usage: object) -> dict[str, int]:
        raise ValueError("secret")

    monkeypatch.setattr(messages_response, "usage_object", broken)
    async with served(says(ANSWER), log_path=tmp_path / "log") as state:
        (error,) = await streamed(state)
        assert error["error"] == {"type": "api_error", "message": "Internal server error."}
        await settle(state)
        assert [record["event"] for record in state.log_records()] == ["request_start", "request_error"]
