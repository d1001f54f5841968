"""The Responses routes over a running system: answers, continuation, the store, errors, the log."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from ninfer.config import GenerationSettings, HttpSettings, SchedulerSettings
from ninfer.errors import DeviceFault
from tests.support.engines import FakeEngine
from tests.support.http import MODEL_ID, UNIX_TIME, Served, ask, events, model, says, served, settle
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

PATH = "/v1/responses"
ANSWER = "think hard\n</think>\n\nSix times seven is 42, grüß dich \U0001f642."


def body(said: object = "Hi", **fields: object) -> dict[str, object]:
    return {"model": MODEL_ID, "input": said, **fields}


async def whole(state: Served, said: object = "Hi", **fields: Any) -> dict[str, Any]:
    response = await state.send(PATH, body(said, **fields))
    assert response.status_code == 200
    return await response.get_json()  # type: ignore[no-any-return]


async def streamed(state: Served, said: object = "Hi", **fields: Any) -> list[dict[str, Any]]:
    response = await state.send(PATH, body(said, stream=True, **fields))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    parts = events(await response.get_data())
    assert [part["sequence_number"] for part in parts] == list(range(len(parts)))
    assert [part["type"] for part in parts[:2]] == ["response.created", "response.in_progress"]
    return parts


async def call(state: Served, method: str, path: str, **query: object) -> tuple[int, Any]:
    client: Any = state.app.test_client()
    response = await client.open(path, method=method, query_string=query or None)
    return response.status_code, await response.get_json(force=True)


async def refused(state: Served, sent: object, path: str = PATH, **headers: str) -> tuple[int, Any, Any]:
    response = await state.send(path, sent, **headers)
    error = (await response.get_json(force=True))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"], error["param"]


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    output = [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]
    return {**response, "id": "", "output": output}


def listening(answer: str = "") -> tuple[FakeEngine, list[str]]:
    """An engine that notes its prompts."""
    seen: list[str] = []

    def words(prompt: tuple[int, ...]) -> list[int]:
        seen.append(TOKENIZER.decode(prompt))
        return TOKENIZER.encode_with_control(answer)

    return FakeEngine(words), seen


async def test_a_whole_response() -> None:
    async with served(says(ANSWER)) as state:
        response = await whole(state, instructions="I", metadata={"a": "b"}, reasoning={"effort": "low"}, temperature=0)
        assert response["id"].startswith("resp_")
        assert len(response["id"]) == 37
        assert response["usage"] == {
            "input_tokens": response["usage"]["input_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": len(TOKENIZER.encode_with_control(ANSWER)) + 1,
            "output_tokens_details": {
                "reasoning_tokens": response["usage"]["output_tokens_details"]["reasoning_tokens"]
            },
            "total_tokens": response["usage"]["input_tokens"] + response["usage"]["output_tokens"],
        }
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
        rest = {name: value for name, value in response.items() if name not in ("id", "output", "usage")}
        assert rest == {
            "object": "response",
            "created_at": int(UNIX_TIME),
            "completed_at": int(UNIX_TIME),
            "status": "completed",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": "I",
            "max_output_tokens": None,
            "max_tool_calls": None,
            "metadata": {"a": "b"},
            "model": MODEL_ID,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "reasoning": {"effort": "low", "summary": None},
            "service_tier": "default",
            "store": True,
            "temperature": 0.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": 0.95,
            "truncation": "disabled",
        }


@pytest.mark.parametrize(
    "fields",
    [{}, {"max_output_tokens": 3}, {"max_output_tokens": 0}, {"chat_template_kwargs": {"enable_thinking": False}}],
)
async def test_streamed_and_whole_responses_are_equal(fields: dict[str, object]) -> None:
    async with served(says(ANSWER)) as state:
        response = await whole(state, **fields)
        parts = await streamed(state, **fields)
        last = parts[-1]
        assert last["type"] == f"response.{response['status']}"
        assert without_ids(last["response"]) == without_ids(response)
        done = [part["item"] for part in parts if part["type"] == "response.output_item.done"]
        assert last["response"]["output"] == done
        for part in parts[:2]:
            assert (part["response"]["status"], part["response"]["output"]) == ("in_progress", [])
            assert part["response"]["usage"] is None
            assert part["response"]["id"] == last["response"]["id"]
        # What was told as final can be had again, and is the same.
        assert await call(state, "GET", f"{PATH}/{last['response']['id']}") == (200, last["response"])


def calls(*markup: tuple[str, str, str]) -> str:
    """The markup of calls: name, parameter, value."""
    text = "\n".join(
        f"<tool_call>\n<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        for name, key, value in markup
    )
    return f"hm\n</think>\n\nI act.\n\n{text}"


TOOLS = [
    {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "crew", "tools": [{"type": "function", "name": "go"}]},
]


async def test_calls_of_all_kinds_whole_and_streamed() -> None:
    said = calls(("read", "path", "a.c"), ("patch", "input", 'one "two"\n  \\three ü'), ("crew__go", "n", "3"))
    async with served(says(said)) as state:
        response = await whole(state, tools=TOOLS)
        items = response["output"]
        assert [item["type"] for item in items] == [
            *("reasoning", "message", "function_call", "custom_tool_call", "function_call")
        ]
        assert (items[2]["name"], orjson.loads(items[2]["arguments"])) == ("read", {"path": "a.c"})
        assert (items[3]["name"], items[3]["input"]) == ("patch", 'one "two"\n  \\three ü')
        assert (items[4]["namespace"], items[4]["name"]) == ("crew", "go")
        assert orjson.loads(items[4]["arguments"]) == {"n": 3}
        last = (await streamed(state, tools=TOOLS))[-1]["response"]
        for item in (*items, *last["output"]):
            item.pop("call_id", None)
        assert without_ids(last) == without_ids(response)


async def test_calls_and_their_results_go_on_in_a_chain() -> None:
    engine, seen = listening(calls(("patch", "input", "raw"), ("crew__go", "n", "3")))
    async with served(engine) as state:
        first = await whole(state, "act", tools=TOOLS)
        patch, go = first["output"][2:]
        results = [
            {"type": "function_call_output", "call_id": go["call_id"], "output": "went"},
            {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "patched"},
        ]
        await whole(state, results, tools=TOOLS, previous_response_id=first["id"])
        history = [{"role": "user", "content": "act"}, *first["output"], *results]
        await whole(state, history, tools=TOOLS, store=False)
    assert seen[-1] == seen[-2]
    assert "<function=patch>\n<parameter=input>\nraw\n</parameter>" in seen[-1]
    assert seen[-1].index("patched") < seen[-1].index("went")


async def test_at_most_one_call() -> None:
    async with served(says(calls(("read", "path", "a.c"), ("read", "path", "b.c")))) as state:
        response = await whole(state, tools=TOOLS, parallel_tool_calls=False)
        assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]
        assert (response["status"], response["parallel_tool_calls"]) == ("completed", False)
        last = (await streamed(state, tools=TOOLS, parallel_tool_calls=False))[-1]["response"]
        assert len(last["output"]) == 3


async def test_a_call_that_is_cut_is_no_call_of_a_history() -> None:
    engine, seen = listening(calls(("read", "path", "a.c"), ("read", "path", "b" * 200)))
    async with served(engine) as state:
        response = await whole(state, tools=TOOLS, max_output_tokens=150)
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [item["status"] for item in response["output"]] == ["completed"] * 3 + ["incomplete"]
        assert not response["output"][3]["arguments"].endswith("}")
        result = {"type": "function_call_output", "call_id": response["output"][2]["call_id"], "output": "r"}
        await whole(state, [result], tools=TOOLS, previous_response_id=response["id"])
    assert seen[-1].count("<function=read>") == 1


async def test_a_limit_makes_it_incomplete() -> None:
    async with served(says("</think>\n\na b c d e f g h"), generation=GenerationSettings(thinking=False)) as state:
        response = await whole(state, max_output_tokens=5)
        assert (response["status"], response["completed_at"]) == ("incomplete", None)
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["max_output_tokens"] == 5
        assert response["output"][0]["status"] == "incomplete"


async def test_progress_of_the_prompt() -> None:
    async with served(says(ANSWER), scheduler=SchedulerSettings(prefill_chunk_tokens=128)) as state:
        parts = await streamed(state, "word " * 200, return_progress=True)
        progress = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
        assert {part["type"] for part in parts if "prompt_progress" in part} == {"response.in_progress"}
        processed = [entry["processed"] for entry in progress]
        assert processed == sorted(set(processed))
        assert (processed[0], processed[-1]) == (progress[0]["cache"], progress[0]["total"])
        assert len(processed) > 3
        assert not any("prompt_progress" in part for part in await streamed(state, "word " * 200))


async def test_the_same_prompt_as_in_chat() -> None:
    engine, seen = listening()
    async with served(engine) as state:
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        tool = {"name": "read", "description": "Read", "parameters": schema}
        await whole(state, instructions="Be brief.", tools=[{"type": "function", **tool}], reasoning={"effort": "low"})
        chat = ask(reasoning_effort="low", tools=[{"type": "function", "function": tool}])
        chat["messages"] = [{"role": "developer", "content": "Be brief."}, *chat["messages"]]  # type: ignore[misc]
        await state.post(chat)
    assert seen[-1] == seen[-2]


async def test_a_chain_of_responses() -> None:
    engine, seen = listening("hm\n</think>\n\nOK.")
    async with served(engine) as state:
        first = await whole(state, "The pass word is LINDEN.", instructions="End with ##.")
        (created, *_, last) = await streamed(state, "Say it.", previous_response_id=first["id"])
        second = last["response"]
        assert created["response"]["previous_response_id"] == first["id"]
        assert seen[-1].count("LINDEN") == seen[-1].count("OK.") == 1
        assert "##" not in seen[-1]
        await whole(state, "A branch.", previous_response_id=first["id"])
        assert "Say it." not in seen[-1]
        assert (await call(state, "DELETE", f"{PATH}/{first['id']}"))[1] == {
            "id": first["id"],
            "object": "response.deleted",
            "deleted": True,
        }
        gone = body("x", previous_response_id=first["id"])
        assert await refused(state, gone) == (400, "previous_response_not_found", "previous_response_id")
        await whole(state, "Again.", previous_response_id=second["id"])
        assert seen[-1].count("LINDEN") == 1
        assert seen[-1].index("LINDEN") < seen[-1].index("Say it.") < seen[-1].index("Again.")


async def test_a_stored_item_may_be_referred_to() -> None:
    engine, seen = listening("hm\n</think>\n\nOK.")
    async with served(engine) as state:
        first = await whole(state, "q")
        said = first["output"][1]["id"]
        history = [
            {"role": "user", "content": "r"},
            {"type": "item_reference", "id": said},
            {"role": "user", "content": "s"},
        ]
        await whole(state, history)
        assert seen[-1].count("OK.") == 1
        gone = body([*history[:1], {"type": "item_reference", "id": "msg_x"}])
        assert await refused(state, gone) == (404, "item_not_found", "input")


async def test_what_is_not_stored_is_not_found() -> None:
    async with served(says(ANSWER)) as state:
        response = await whole(state, store=False)
        assert response["store"] is False
        for method in ("GET", "DELETE"):
            status, answer = await call(state, method, f"{PATH}/{response['id']}")
            assert (status, answer["error"]["code"], answer["error"]["param"]) == (
                404,
                "response_not_found",
                "response_id",
            )
        assert (await call(state, "GET", f"{PATH}/{response['id']}/input_items"))[0] == 404


async def test_queries_of_stored_responses() -> None:
    async with served(says(ANSWER)) as state:
        path = f"{PATH}/{(await whole(state))['id']}"
        assert (await call(state, "GET", path, include=""))[0] == 200
        for method, query in (("GET", {"stream": "true"}), ("GET", {"include": "x"}), ("DELETE", {"include": ""})):
            status, answer = await call(state, method, path, **query)
            assert (status, answer["error"]["code"]) == (400, "parameter_not_supported")
        status, answer = await call(state, "POST", f"{path}/cancel")
        assert (status, answer["error"]["code"]) == (400, "background_not_supported")
        status, answer = await call(state, "POST", f"{PATH}/compact")
        assert (status, answer["error"]["code"]) == (400, "compaction_not_supported")


async def test_pages_of_input_items() -> None:
    async with served(says(ANSWER)) as state:
        sent = [{"role": "user", "content": str(n), "id": f"msg_{n}"} for n in range(25)]
        path = f"{PATH}/{(await whole(state, sent))['id']}/input_items"

        async def page(**query: object) -> tuple[list[str], object, object, bool]:
            status, answer = await call(state, "GET", path, **query)
            assert (status, answer["object"]) == (200, "list")
            ids = [item["id"] for item in answer["data"]]
            return ids, answer["first_id"], answer["last_id"], answer["has_more"]

        down = [f"msg_{n}" for n in reversed(range(25))]
        assert await page() == (down[:20], "msg_24", "msg_5", True)
        assert await page(after="msg_5") == (down[20:], "msg_4", "msg_0", False)
        assert await page(order="asc", limit=2, after="msg_3") == (["msg_4", "msg_5"], "msg_4", "msg_5", True)
        assert await page(after="msg_0") == ([], None, None, False)
        assert await page(limit=100, include="message.input_image.image_url") == (down, "msg_24", "msg_0", False)
        queries: tuple[dict[str, object], ...] = (
            {"limit": 0},
            {"limit": 101},
            {"limit": "x"},
            {"order": "up"},
            {"after": "no"},
            {"before": "x"},
            {"include": "x"},
        )
        for query in queries:
            status, answer = await call(state, "GET", path, **query)
            assert (status, answer["error"]["code"]) == (400, "invalid_pagination")
        assert (await call(state, "GET", f"{path}?limit=1&limit=2"))[1]["error"]["code"] == "invalid_pagination"


async def test_the_store_is_bounded() -> None:
    async with served(says(ANSWER), http=HttpSettings(response_store_max_records=2)) as state:
        ids = [(await whole(state))["id"] for _ in range(3)]
        assert [(await call(state, "GET", f"{PATH}/{name}"))[0] for name in ids] == [404, 200, 200]


async def test_a_response_that_cannot_be_stored_is_not_told_as_final() -> None:
    async with served(says(ANSWER), http=HttpSettings(response_store_max_bytes=100)) as state:
        assert await refused(state, body()) == (507, "response_store_capacity_exceeded", None)
        parts = await streamed(state)
        assert parts[-1]["type"] == "response.failed"
        assert parts[-1]["response"]["status"] == "failed"
        assert parts[-1]["response"]["error"]["code"] == "response_store_capacity_exceeded"
        done = [part["item"] for part in parts if part["type"] == "response.output_item.done"]
        assert [item["type"] for item in done] == ["reasoning"]  # the message was never closed
        assert (await whole(state, store=False))["status"] == "completed"
        await settle(state)


async def test_a_count_equals_the_later_usage() -> None:
    async with served(says(ANSWER), scheduler=SchedulerSettings(max_pending=1)) as state:
        parent = (await whole(state))["id"]
        await settle(state)
        fields: dict[str, Any] = {
            "instructions": "I",
            "previous_response_id": parent,
            "tools": [{"type": "custom", "name": "patch"}],
            "reasoning": {"effort": "low"},
        }
        held = [await state.state.system.gateway.arrive() for _ in range(2)]  # counting needs no capacity
        response = await state.send(f"{PATH}/input_tokens", body(**fields))
        counted = await response.get_json()
        for ticket in held:
            await ticket.release()
        assert counted == {
            "object": "response.input_tokens",
            "input_tokens": (await whole(state, **fields))["usage"]["input_tokens"],
        }
        assert await refused(state, body(stream=False), f"{PATH}/input_tokens") == (400, "unknown_parameter", "stream")


async def test_refusals_and_their_order() -> None:
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    http = HttpSettings(api_keys=("k",))
    small = model(max_context_tokens=300)
    async with served(scheduler=SchedulerSettings(max_pending=1), http=http, the_model=small) as state:
        key = {"x-api-key": "k"}
        held = [await state.state.system.gateway.arrive() for _ in range(2)]
        assert await refused(state, body()) == (401, "invalid_api_key", None)
        assert await refused(state, b"{", **key) == (400, None, None)
        assert await refused(state, {**body(picture), "model": "x", "n": 1}, **key) == (400, "unknown_parameter", "n")
        assert await refused(state, {**body(picture), "model": "x"}, **key) == (404, "model_not_found", "model")
        assert await refused(state, body(picture), **key) == (400, "vision_disabled", "input")
        assert await refused(state, body(stream=True), **key) == (429, "server_overloaded", None)
        for ticket in held:
            await ticket.release()
        assert await refused(state, body("word " * 400, stream=True), **key) == (
            400,
            "context_length_exceeded",
            "input",
        )
        await settle(state)


async def test_faults() -> None:
    engine = says(ANSWER)
    async with served(engine) as state:
        engine.fail_next = DeviceFault("secret")
        response = await state.send(PATH, body())
        assert response.status_code == 500
        assert (await response.get_json())["error"] == {
            "message": "Internal server error.",
            "type": "server_error",
            "param": None,
            "code": None,
        }
        await settle(state)
        engine.fail_next = DeviceFault("secret")
        last = (await streamed(state))[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"] == {"code": "server_error", "message": "Internal server error."}
        assert (await call(state, "GET", f"{PATH}/{last['response']['id']}"))[0] == 404
        await settle(state)


async def test_a_deadline_in_the_queue() -> None:
    engine = says(ANSWER)
    async with served(engine, scheduler=SchedulerSettings(pending_timeout_s=1.5)) as state:
        engine.gate = threading.Event()
        found: list[dict[str, Any]] = []

        async def send() -> None:
            found.extend(await streamed(state))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(whole, state)
            while not state.state.system.machine.statistics().running:
                await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as late:
                late.start_soon(send)
            engine.gate.set()
        assert [part["type"] for part in found] == ["response.created", "response.in_progress", "response.failed"]
        assert found[-1]["response"]["error"]["code"] == "request_queue_timeout"
        await settle(state)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_leaves_no_record(stream: bool, tmp_path: Path) -> None:
    engine = FakeEngine(lambda _prompt: TOKENIZER.encode("a b c " * 2000))
    async with served(engine, log_path=tmp_path / "log") as state:
        async with state.app.test_client().request(PATH, method="POST") as connection:
            await connection.send(orjson.dumps(body(stream=stream)))
            await connection.send_complete()
            while not state.state.system.machine.statistics().decode_ready:
                await anyio.lowlevel.checkpoint()
            seen = await connection.receive() if stream else b""
            await connection.disconnect()
        await settle(state)
        assert [record["event"] for record in state.log_records()] == ["request_start", "request_error"]
        if stream:
            name = events(seen[: seen.rindex(b"\n\n") + 2])[0]["response"]["id"]
            assert (await call(state, "GET", f"{PATH}/{name}"))[0] == 404


async def test_the_log_of_requests(tmp_path: Path) -> None:
    async with served(says(ANSWER), log_path=tmp_path / "log") as state:
        first = await whole(state, preserve_thinking=True, max_output_tokens=4)
        await whole(state, previous_response_id=first["id"])
        await whole(state, previous_response_id=first["id"], preserve_thinking=False)
        await settle(state)
        starts = [record["request"] for record in state.log_records() if record["event"] == "request_start"]
    assert {start["protocol"] for start in starts} == {"openai_responses"}
    assert [start["preserve_thinking"] for start in starts] == [True, True, False]
    assert [start["preserve_thinking_semantic_change"] for start in starts] == [False, False, True]
    assert starts[0]["requested_output_tokens"] == 4


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_of_the_server_is_told(stream: bool) -> None:
    engine = FakeEngine(lambda _prompt: TOKENIZER.encode("a b c " * 2000))
    async with served(engine, scheduler=SchedulerSettings(drain_s=0.01)) as state:
        found: list[tuple[int, bytes]] = []

        async def send() -> None:
            response = await state.send(PATH, body(stream=stream))
            found.append((response.status_code, await response.get_data()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            while not state.state.system.machine.statistics().decode_ready:
                await anyio.lowlevel.checkpoint()
            state.state.system.stop()
    ((status, data),) = found
    if stream:
        last = events(data)[-1]
        assert (status, last["type"]) == (200, "response.failed")
        assert last["response"]["error"]["code"] == "service_unavailable"
    else:
        assert (status, orjson.loads(data)["error"]["code"]) == (503, "service_unavailable")
