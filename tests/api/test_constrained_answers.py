"""Constrained answers over the three protocols, whole and streamed, with a model that would say something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from ninfer.config import GenerationSettings
from ninfer.constraints.matcher import EARLY_CLOSE
from tests.support.http import MODEL_ID, Served, model, says, served
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

MESSAGES = [{"role": "user", "content": "Which?"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "out", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}
PLAIN = {"model": MODEL_ID, "messages": MESSAGES, "enable_thinking": False, "max_tokens": 200}
REPORTED = {"branch", "complete", "terminated", "cache", "mask_positions", "mask_upload_bytes", "timings_seconds"}


async def post(state: Served, path: str, **fields: object) -> dict[str, Any]:
    response = await state.send(path, fields)
    body = await response.get_data()
    assert response.status_code == 200, body
    parsed: dict[str, Any] = orjson.loads(body)
    return parsed


async def events(state: Served, path: str, **fields: object) -> list[dict[str, Any]]:
    data = await (await state.send(path, {**fields, "stream": True})).get_data()
    lines = [line[6:] for line in data.splitlines() if line.startswith(b"data: {")]
    return [orjson.loads(line) for line in lines]


async def test_chat_answers_with_json_of_the_schema_whole_and_streamed() -> None:
    async with served(says("Well, "), the_model=model(enforces=True)) as state:
        body = await post(state, "/v1/chat/completions", **PLAIN, response_format=FORMAT)
        chunks = await events(state, "/v1/chat/completions", **PLAIN, response_format=FORMAT)
    content = body["choices"][0]["message"]["content"]
    assert orjson.loads(content)["a"] in ("x", "y")
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["constraint"].keys() == REPORTED
    assert (body["constraint"]["terminated"], body["constraint"]["cache"]) == (True, "built")
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == content
    assert [chunk["constraint"]["cache"] for chunk in chunks if "constraint" in chunk] == ["hit"]
    assert "constraint" in chunks[-1]


async def test_thinking_comes_first_and_is_free() -> None:
    async with served(says("Hm, {x}?</think>\n\nWell, "), the_model=model(enforces=True)) as state:
        fields = {**PLAIN, "enable_thinking": True}
        body = await post(state, "/v1/chat/completions", **fields, response_format=FORMAT)
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm, {x}?"
    assert orjson.loads(message["content"])["a"] in ("x", "y")


async def test_a_budget_of_messages_ends_the_thinking_of_a_free_answer() -> None:
    async with served(says("on and on " * 900), the_model=model(enforces=True)) as state:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        body = await post(state, "/v1/messages", **{**PLAIN, "max_tokens": 1400, "thinking": thinking})
    block, answer = body["content"]
    assert block["thinking"].endswith("based on the thinking directly now.")
    assert answer["type"] == "text"
    assert len(TOKENIZER.encode(block["thinking"])) < 1100


async def test_a_budget_of_the_server_is_for_requests_that_name_none_and_think(tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, object]]] = [
        ("/v1/chat/completions", {"enable_thinking": True}),
        ("/v1/chat/completions", {"enable_thinking": True, "thinking_budget": 6}),
        ("/v1/chat/completions", {"enable_thinking": False}),
        ("/v1/responses", {"input": "q", "reasoning": {"effort": "high"}, "max_output_tokens": 120}),
        ("/v1/messages", {"max_tokens": 1400, "thinking": {"type": "adaptive"}}),
        ("/v1/messages", {"max_tokens": 1400, "thinking": {"type": "enabled", "budget_tokens": 1100}}),
    ]
    log = tmp_path / "log.jsonl"
    generation = GenerationSettings(thinking_budget=5)
    engine = says("on and on " * 900)
    async with served(engine, the_model=model(enforces=True), generation=generation, log_path=log) as state:
        for path, fields in asked:
            body = {"model": MODEL_ID} if "input" in fields else PLAIN
            await post(state, path, **{**body, **fields})
        records = [record for record in state.log_records() if record["event"] == "request_done"]
    assert [record["request"]["thinking_budget"] for record in records] == [5, 6, None, 5, 5, 1100]
    assert [record["result"]["effective_thinking_budget"] for record in records] == [5, 6, None, 5, 5, 1100]
    assert [record["result"]["model_thinking_tokens"] for record in records] == [5, 6, 0, 5, 5, 1100]
    assert all(
        record["result"]["thinking_control_applied"] for record in records if record["request"]["enable_thinking"]
    )


async def test_a_budget_ends_the_thinking(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with served(says("on and on " * 50), the_model=model(enforces=True), log_path=log) as state:
        fields = {**PLAIN, "enable_thinking": True, "thinking_budget": 4}
        body = await post(state, "/v1/chat/completions", **fields, response_format=FORMAT)
        await post(state, "/v1/chat/completions", **{**PLAIN, "thinking_budget": 4}, response_format=FORMAT)
        quiet = {**PLAIN, "enable_thinking": True, "max_tokens": 2, "thinking_budget": 400}
        await post(state, "/v1/chat/completions", **quiet, response_format=FORMAT)
        records = [record for record in state.log_records() if record["event"] == "request_done"]
    first, unthinking, short = (record["result"] for record in records)
    assert [record["request"]["thinking_budget"] for record in records] == [4, None, 400]
    assert (first["thinking_budget"], first["effective_thinking_budget"]) == (4, 4)
    assert first["model_thinking_tokens"] == 4
    assert first["thinking_control_applied"]
    control = TOKENIZER.encode_with_control(EARLY_CLOSE)
    assert first["thinking_control_tokens"] == len(control)
    of_thinking = control.index(TOKENIZER.control_id("</think>")) + 1
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4 + of_thinking
    assert (unthinking["effective_thinking_budget"], unthinking["thinking_control_applied"]) == (None, False)
    assert (short["effective_thinking_budget"], short["thinking_control_tokens"]) == (400, 0)
    message = body["choices"][0]["message"]
    assert message["reasoning_content"].endswith("based on the thinking directly now.")
    assert orjson.loads(message["content"])["a"] in ("x", "y")


async def test_a_forced_strict_call_on_every_protocol() -> None:
    async with served(says("No."), the_model=model(enforces=True)) as state:
        chat = await post(state, "/v1/chat/completions", **PLAIN, tools=[TOOL], tool_choice=TOOL)
        flat = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}
        responses = await post(
            state, "/v1/responses", model=MODEL_ID, input="Which?", tools=[flat], tool_choice="required",
            chat_template_kwargs={"enable_thinking": False}, parallel_tool_calls=False,
        )  # fmt: skip
        tools = [{"name": "look", "input_schema": SCHEMA, "strict": True}]
        choice = {"type": "any", "disable_parallel_tool_use": True}
        fields = {"model": "m", "max_tokens": 200, "messages": MESSAGES, "thinking": {"type": "disabled"}}
        messages = await post(state, "/v1/messages", **fields, tools=tools, tool_choice=choice)
        stream = await events(state, "/v1/messages", **fields, tools=tools, tool_choice=choice)
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    assert chat["choices"][0]["finish_reason"] == "tool_calls"
    assert orjson.loads(call["function"]["arguments"])["a"] in ("x", "y")
    assert chat["constraint"]["branch"] == "tools"
    (item,) = responses["output"]
    assert (item["type"], responses["status"]) == ("function_call", "completed")
    assert responses["constraint"]["complete"]
    assert messages["stop_reason"] == "tool_use"
    assert messages["content"][0]["input"]["a"] in ("x", "y")
    (delta,) = [event for event in stream if event["type"] == "message_delta"]
    assert delta["constraint"].keys() == REPORTED


async def test_json_or_a_call_as_the_model_begins() -> None:
    call = "<tool_call>\n<function=look>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"
    fields = {**PLAIN, "tools": [TOOL], "response_format": FORMAT}
    async with served(says(call), the_model=model(enforces=True)) as state:
        called = await post(state, "/v1/chat/completions", **fields)
    text = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "maxLength": 200}}}
    async with served(says(f'"{call}"'.replace("\n", "\\n")), the_model=model(enforces=True)) as state:
        answered = await post(state, "/v1/chat/completions", **{**fields, "response_format": text})
    assert called["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
    assert called["choices"][0]["message"]["content"] is None
    assert "tool_calls" not in answered["choices"][0]["message"]
    assert isinstance(orjson.loads(answered["choices"][0]["message"]["content"]), str)


async def test_what_cannot_be_enforced_is_refused_before_anything_else_and_free_answers_say_nothing() -> None:
    async with served(says("Hi."), the_model=model(enforces=True)) as state:
        schema = {"properties": {"a": {"format": "date"}}}
        wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
        for stream in (False, True):
            refused = await state.post({**PLAIN, "response_format": wanted, "stream": stream})
            error = orjson.loads(await refused.get_data())["error"]
            assert (refused.status_code, error["code"]) == (400, "unsupported_json_schema")
            assert error["param"] == "response_format.json_schema.schema/properties/a/format"
        assert "constraint" not in await post(state, "/v1/chat/completions", **PLAIN)
        await post(state, "/v1/chat/completions", **PLAIN, structured_outputs={"choice": ["a", "b"]})
        metrics = await (await state.app.test_client().get("/metrics")).get_data(as_text=True)
    assert 'ninfer:constraint_requests_total{outcome="completed"} 1\n' in metrics
    assert 'ninfer:constraint_requests_total{outcome="rejected"} 2\n' in metrics
    assert 'ninfer:constraint_cache_total{result="built"} 1\n' in metrics


async def test_an_engine_without_masks_checks_constraints_and_does_not_keep_to_them() -> None:
    async with served(says("Well, ")) as state:
        body = await post(state, "/v1/chat/completions", **PLAIN, response_format=FORMAT)
        bad = await state.post({**PLAIN, "structured_outputs": {"regex": "("}})
    assert body["choices"][0]["message"]["content"] == "Well, "
    assert "constraint" not in body
    assert bad.status_code == 400
