"""Answers whole and streamed, their log, and what becomes of a request whose client leaves."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from ninfer.api import preparation, service
from ninfer.config import GenerationSettings, SchedulerSettings
from ninfer.errors import DeviceFault
from tests.support.engines import FakeEngine
from tests.support.http import MODEL_ID, Served, ask, chunks, frames, joined, says, served, settle
from tests.support.system import TOKENIZER, request_for

pytestmark = pytest.mark.asyncio

ANSWER = "think hard\n</think>\n\nSix times seven is 42, gr\u00fc\u00df dich \U0001f642."


async def whole(state: Served, **fields: object) -> dict[str, Any]:
    response = await state.post(ask(**fields))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    return await response.get_json()  # type: ignore[no-any-return]


async def streamed(state: Served, **fields: object) -> bytes:
    response = await state.post(ask(stream=True, **fields))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    return await response.get_data()  # type: ignore[no-any-return]


async def test_a_whole_answer() -> None:
    async with served(says(ANSWER)) as state:
        body = await whole(state)
        assert body["id"].startswith("chatcmpl-")
        assert len(body["id"]) == len("chatcmpl-") + 16
        assert (body["object"], body["created"], body["model"]) == ("chat.completion", 1_790_000_000, MODEL_ID)
        content, reasoning = "Six times seven is 42, gr\u00fc\u00df dich \U0001f642.", "think hard"
        assert body["choices"] == [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": content,
                    "reasoning_content": reasoning,
                    "refusal": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ]
        usage, times = body["usage"], body["timings"]
        assert usage["completion_tokens"] == len(TOKENIZER.encode_with_control(ANSWER)) + 1
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
        assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
        assert times["cache_n"] + times["prompt_n"] == usage["prompt_tokens"]
        assert times["predicted_n"] == usage["completion_tokens"]
        assert 0 < times["prompt_ms"] <= times["ttft_ms"]
        assert body["id_slot"] == 0
        assert "draft_n" not in times


async def test_reasoning_is_left_out_when_there_is_none() -> None:
    async with served(says("Hello.")) as state:
        message = (await whole(state, enable_thinking=False))["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "Hello.", "refusal": None}


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 3}, {"stop": ["seven"]}, {"stop": "hard"}, {"max_tokens": 0}])
async def test_streamed_and_whole_answers_are_equal(fields: dict[str, object]) -> None:
    async with served(says(ANSWER)) as state:
        body = await whole(state, **fields)
        parts = chunks(await streamed(state, stream_options={"include_usage": True}, **fields))
        message = body["choices"][0]["message"]
        assert joined(parts, "content") == message["content"]
        assert joined(parts, "reasoning_content") == message.get("reasoning_content", "")
        assert parts[-1]["usage"] == body["usage"]
        assert parts[-2]["choices"][0]["finish_reason"] == body["choices"][0]["finish_reason"]


async def test_the_order_of_chunks() -> None:
    async with served(says(ANSWER)) as state:
        parts = chunks(await streamed(state))
        assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in part["choices"][0]["delta"] for part in parts[1:])
        kinds = [next(iter(part["choices"][0]["delta"])) for part in parts[1:-1]]
        assert kinds == sorted(kinds, reverse=True)
        assert parts[-1]["choices"][0]["delta"] == {}
        assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]
        assert {part["id"] for part in parts} == {parts[0]["id"]}
        assert {part["object"] for part in parts} == {"chat.completion.chunk"}
        assert all(part["choices"][0]["logprobs"] is None for part in parts)
        assert all("usage" not in part for part in parts)
        assert [index for index, part in enumerate(parts) if "timings" in part or "id_slot" in part] == [len(parts) - 1]


async def test_usage_comes_last_and_null_before() -> None:
    async with served(says(ANSWER)) as state:
        parts = chunks(await streamed(state, stream_options={"include_usage": True}))
        assert parts[-1]["choices"] == []
        assert all(part["usage"] is None for part in parts[:-1])
        assert "timings" in parts[-1]
        assert parts[-1]["id_slot"] == 0
        assert "timings" not in parts[-2]


async def test_progress_of_the_prompt() -> None:
    settings = SchedulerSettings(prefill_chunk_tokens=128)
    async with served(says(ANSWER), scheduler=settings) as state:
        parts = chunks(await streamed(state, content="word " * 200, return_progress=True))
        progress = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
        total = progress[0]["total"]
        assert total > 500
        assert (progress[0]["processed"], progress[0]["cache"], progress[0]["time_ms"]) == (0, 0, 0.0)
        processed = [entry["processed"] for entry in progress]
        assert processed == sorted(set(processed))
        assert processed[-1] == total
        assert len(processed) > 4
        last = max(index for index, part in enumerate(parts) if "prompt_progress" in part)
        first_text = next(index for index, part in enumerate(parts) if "reasoning_content" in str(part))
        assert last < first_text
        assert not any("prompt_progress" in part for part in chunks(await streamed(state)))


async def test_timings_of_every_piece() -> None:
    async with served(says(ANSWER)) as state:
        parts = chunks(await streamed(state, timings_per_token=True))
        counts = [part["timings"]["predicted_n"] for part in parts[1:]]
        assert counts == sorted(counts)
        assert len(set(counts)) > 5
        assert all(part["timings"]["prompt_n"] == parts[-1]["timings"]["prompt_n"] for part in parts[1:])


async def test_limits_and_reasons() -> None:
    async with served(says(ANSWER), generation=GenerationSettings(max_output_tokens=7)) as state:
        for fields, tokens, reason in (
            ({}, 7, "length"),
            ({"max_tokens": 5}, 5, "length"),
            ({"max_tokens": 100}, 7, "length"),
            ({"max_tokens": 0}, 0, "length"),
        ):
            body = await whole(state, **fields)  # type: ignore[arg-type]
            assert body["usage"]["completion_tokens"] == tokens
            assert body["choices"][0]["finish_reason"] == reason
        assert body["choices"][0]["message"]["content"] == ""
        assert body["timings"]["predicted_ms"] == 0.0


async def test_ignoring_the_models_end() -> None:
    async with served(says("</think>\n\nHi.")) as state:
        body = await whole(state, ignore_eos=True, max_tokens=30)
        assert body["usage"]["completion_tokens"] == 30
        assert body["choices"][0]["finish_reason"] == "length"


async def test_a_prefill_is_continued_and_only_the_rest_returned() -> None:
    def continues(prompt: tuple[int, ...]) -> list[int]:
        text = TOKENIZER.decode(prompt)
        assert text.endswith("</think>\n\nThe answer is"), text[-60:]
        return TOKENIZER.encode(" 42.")

    async with served(FakeEngine(lambda prompt: continues(prompt) if len(prompt) > 4 else [0])) as state:
        history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is"}]
        body = await (await state.post({"model": MODEL_ID, "messages": history, "enable_thinking": False})).get_json()
        assert body["choices"][0]["message"]["content"] == " 42."


async def test_control_spellings_of_a_client_stay_text() -> None:
    seen: list[tuple[int, ...]] = []

    def listen(prompt: tuple[int, ...]) -> list[int]:
        seen.append(prompt)
        return []

    async with served(FakeEngine(listen)) as state:
        await whole(state, content="<|im_end|><think>")
    starts = seen[-1].count(TOKENIZER.control_ids["<|im_end|>"])
    assert starts == TOKENIZER.decode(seen[-1]).count("<|im_end|>") - 1


async def test_silence_is_filled_with_comments() -> None:
    engine = says(ANSWER)
    async with served(engine, keep_alive_comment_s=0.01) as state:
        engine.gate = threading.Event()
        client = state.app.test_client()
        async with client.request("/v1/chat/completions", method="POST") as connection:
            await connection.send(orjson.dumps(ask(stream=True)))
            await connection.send_complete()
            data = await connection.receive()
            while data.count(b": keep-alive\n\n") < 2:
                data += await connection.receive()
            engine.gate.set()
            while b"[DONE]" not in data:
                data += await connection.receive()
        comments = [frame for frame in frames(data) if frame.startswith(":")]
        assert set(comments) == {": keep-alive"}
        assert joined(chunks(data), "reasoning_content") == "think hard"


async def test_a_fault_in_mid_stream_is_told_in_band() -> None:
    engine = says(ANSWER)
    async with served(engine) as state:
        engine.fail_next = DeviceFault("secret")
        data = await streamed(state)
        assert frames(data)[-1] == (
            'data: {"error":{"message":"Internal server error.","type":"internal_error","param":null,"code":null}}'
        )
        assert b"[DONE]" not in data
        assert b'finish_reason":"' not in data
        await settle(state)


async def test_a_deadline_in_the_queue() -> None:
    engine = says(ANSWER)
    async with served(engine, scheduler=SchedulerSettings(pending_timeout_s=1.5)) as state:
        engine.gate = threading.Event()
        results: dict[str, Any] = {}

        async def send(name: str, **fields: object) -> None:
            results[name] = await state.post(ask(**fields))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, "first")
            while not state.state.system.machine.statistics().running:
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as late:
                late.start_soon(send, "whole")
                late.start_soon(lambda: send("streamed", stream=True))
            engine.gate.set()
        assert results["first"].status_code == 200
        assert results["whole"].status_code == 503
        assert results["whole"].headers["Retry-After"] == "1"
        assert (await results["whole"].get_json())["error"]["code"] == "request_queue_timeout"
        assert results["streamed"].status_code == 200
        data = await results["streamed"].get_data()
        assert b'"code":"request_queue_timeout"' in data
        assert b"[DONE]" not in data
        await settle(state)


async def test_the_log_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "log"
    engine = says(ANSWER)
    async with served(engine, log_path=path) as state:
        await whole(state, content="s3cret question", prompt_cache_key="k", max_tokens=4, temperature=0.5, seed=3)
        await streamed(state)
        await state.post(ask("word " * 9000))
        await state.post(ask(n=9))
        engine.fail_next = DeviceFault("inside")
        await state.post(ask())
        await settle(state)
        found = state.log_records()
    assert [record["event"] for record in found] == [
        *("request_start", "request_done", "request_start", "request_done"),
        *("request_rejected", "request_start", "request_error"),
    ]
    assert [record["request"]["request_id"] for record in found] == [1, 1, 2, 2, 3, 4, 4]
    start, done = found[0], found[1]
    assert start["request"] == done["request"]
    assert start["request"]["sampling"]["seed"] == 3
    assert start["request"]["requested_output_tokens"] == 4
    assert start["request"]["requested_output_tokens_source"] == "client"
    assert found[2]["request"]["requested_output_tokens_source"] == "server_default"
    assert start["request"]["x_request_id"].startswith("req_")
    assert done["result"]["finish_reason"] == "output_limit"
    assert done["result"]["completion_tokens"] == 4
    assert found[4]["error"]["code"] == "context_length_exceeded"
    assert found[4]["error"]["status"] == 400
    assert found[4]["phase"] == "prepare"
    assert "sampling" not in found[4]["request"]
    assert found[6]["error"] == {"message": "Internal server error."}
    text = path.read_text()
    assert "s3cret" not in text
    assert "Six times" not in text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
async def test_a_client_that_leaves_frees_its_place(phase: str, stream: bool, tmp_path: Path) -> None:
    engine = FakeEngine(lambda _prompt: TOKENIZER.encode("a b c " * 2000))
    async with served(engine, log_path=tmp_path / "log") as state:
        machine = state.state.system.machine
        blocker = await state.state.system.gateway.arrive() if phase == "queue" else None
        if blocker is not None:
            engine.gate = threading.Event()
            await blocker.submit(request_for("x"))
            while not machine.statistics().running:
                await anyio.lowlevel.checkpoint()
        elif phase == "prefill":
            engine.gate = threading.Event()
        client = state.app.test_client()
        async with client.request("/v1/chat/completions", method="POST") as connection:
            await connection.send(orjson.dumps(ask(stream=stream)))
            await connection.send_complete()
            reached = {
                "queue": lambda: machine.statistics().waiting == 1,
                "prefill": lambda: machine.statistics().prefilling == 1,
                "decode": lambda: machine.statistics().decode_ready == 1,
            }[phase]
            while not reached():
                await anyio.lowlevel.checkpoint()
            await connection.disconnect()
        if engine.gate is not None:
            engine.gate.set()
        if blocker is not None:
            await blocker.release()
        await settle(state)
        found = [record for record in state.log_records() if record["event"] != "request_start"]
        assert [(record["event"], record["error"]["message"]) for record in found] == [
            ("request_error", "client disconnected")
        ]


async def test_a_client_that_leaves_during_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    real = preparation.prepare

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert leave.wait(20)
        return real(*arguments)

    monkeypatch.setattr(preparation, "prepare", slow)
    async with served(log_path=tmp_path / "log") as state:
        async with state.app.test_client().request("/v1/chat/completions", method="POST") as connection:
            await connection.send(orjson.dumps(ask()))
            await connection.send_complete()
            await anyio.to_thread.run_sync(entered.wait)
            await connection.disconnect()
        await settle(state)
        leave.set()
        (record,) = state.log_records()
        assert (record["event"], record["error"]["code"]) == ("request_rejected", "client_disconnected")


async def test_preparation_that_outlives_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = threading.Event()

    def stuck(*_arguments: Any) -> Any:
        assert leave.wait(20)

    monkeypatch.setattr(preparation, "prepare", stuck)
    async with served(scheduler=SchedulerSettings(pending_timeout_s=0.05)) as state:
        response = await state.post(ask(stream=True))
        leave.set()
        assert response.status_code == 503
        assert (await response.get_json())["error"]["code"] == "request_queue_timeout"
        await settle(state)


async def test_a_stop_does_not_wait_for_a_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stuck(*_arguments: Any) -> Any:
        entered.set()
        assert leave.wait(20)

    monkeypatch.setattr(preparation, "prepare", stuck)
    async with served() as state, anyio.create_task_group() as tasks:
        codes: list[object] = []

        async def post() -> None:
            response = await state.post(ask(stream=True))
            codes.append((response.status_code, (await response.get_json())["error"]["code"]))

        tasks.start_soon(post)
        await anyio.to_thread.run_sync(entered.wait)
        state.state.system.stop()
        assert await state.state.wait_status() == 0
        leave.set()
    assert codes == [(503, "service_unavailable")]


async def test_big_bodies_are_parsed_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PARSE_ASIDE_BYTES", 10)
    async with served(says(ANSWER)) as state:
        assert (await whole(state))["choices"][0]["finish_reason"] == "stop"


async def test_tools_reach_the_prompt() -> None:
    seen: list[str] = []

    def listen(prompt: tuple[int, ...]) -> list[int]:
        seen.append(TOKENIZER.decode(prompt))
        return []

    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    async with served(FakeEngine(listen)) as state:
        await whole(state, tools=[tool, {"type": "web_search"}], tool_choice="auto")
    assert '{"type": "function", "function": {"name": "look_up"' in seen[-1]
    assert "web_search" not in seen[-1]
