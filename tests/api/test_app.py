"""Routes and refusals over a running system: shapes, codes, order of checks."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ninfer.api.envelopes import Family, body_for, fault_of, status_for
from ninfer.config import GenerationSettings, HttpSettings, SchedulerSettings
from ninfer.errors import DeviceFault, Overloaded, QueueTimeout
from ninfer.scheduler.transitions import Lifecycle
from ninfer.text.template import ChatTemplate
from ninfer.version import VERSION
from tests.support.http import MODEL_ID, UNIX_TIME, Served, ask, model, served, settle

pytestmark = pytest.mark.asyncio


async def get(state: Served, path: str, method: str = "GET") -> tuple[int, Any, Any]:
    response = await state.app.test_client().open(path, method=method)
    return response.status_code, await response.get_json(force=True), response.headers


async def refusal(state: Served, body: object, **headers: str) -> tuple[int, str | None, str | None]:
    response = await state.post(body, **headers)
    error = (await response.get_json(force=True))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"], error["param"]


async def test_health() -> None:
    async with served() as state:
        status, body, headers = await get(state, "/health")
        assert (status, body) == (200, {"status": "ok", "version": VERSION})
        assert headers["content-type"] == "application/json"


async def test_the_list_of_models() -> None:
    async with served() as state:
        entry = {
            "id": MODEL_ID,
            "object": "model",
            "created": int(UNIX_TIME),
            "owned_by": "ninfer",
            "context_window": 8192,
            "max_model_len": 8192,
            "context_length": 8192,
            "modalities": {"vision": False},
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "supported_endpoints": ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"],
        }
        assert (await get(state, "/v1/models"))[:2] == (200, {"object": "list", "data": [entry]})
        assert (await get(state, "/v1/models/tiny/model"))[:2] == (200, entry)
        assert (await get(state, "/v1/models/tiny%2Fmodel"))[:2] == (200, entry)
        status, body, _ = await get(state, "/v1/models/other")
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/models/", 404, "not_found"),
        ("TRACE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("OPTIONS", "/health", 405, "method_not_allowed"),
        ("OPTIONS", "/nope", 404, "not_found"),
    ],
)
async def test_unknown_routes(method: str, path: str, status: int, code: str) -> None:
    async with served() as state:
        found, body, headers = await get(state, path, method)
        assert (found, body["error"]["code"]) == (status, code)
        assert body["error"]["type"] == "invalid_request_error"
        assert headers["x-request-id"].startswith("req_")
        assert ("allow" in headers) == (status == 405)


async def test_a_method_that_is_not_allowed_is_answered_with_those_that_are() -> None:
    async with served() as state:
        _, _, headers = await get(state, "/v1/models", "TRACE")
        assert headers["allow"] == "GET, HEAD"
        _, _, headers = await get(state, "/v1/chat/completions")
        assert headers["allow"] == "POST"


async def test_unknown_routes_of_the_other_protocol() -> None:
    async with served() as state:
        status, body, headers = await get(state, "/v1/messages/nope", "POST")
        assert (status, body["type"], body["error"]["type"]) == (404, "error", "not_found_error")
        assert body["request_id"] == headers["request-id"]


async def test_bodies_at_fault() -> None:
    async with served(http=HttpSettings(max_request_bytes=200)) as state:
        assert await refusal(state, b"{") == (400, None, None)
        assert await refusal(state, b"[]") == (400, None, None)
        assert await refusal(state, b'{"model": "' + b"x" * 200 + b'"}') == (413, "request_too_large", None)
        chunked = state.app.test_client().request("/v1/chat/completions", method="POST")
        async with chunked as connection:
            for _ in range(3):
                await connection.send(b" " * 100)
            await connection.send_complete()
        response = await connection.as_response()
        assert response.status_code == 413
        assert not state.state.system.machine.requests


async def test_the_order_of_checks() -> None:
    async with served(
        scheduler=SchedulerSettings(max_pending=1), http=HttpSettings(api_keys=("k",), max_request_bytes=10_000)
    ) as state:
        held = [await state.state.system.gateway.arrive() for _ in range(2)]
        key = {"x-api-key": "k"}
        image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
        too_long = ask("word " * 9000)
        assert await refusal(state, too_long) == (401, "invalid_api_key", None)
        assert await refusal(state, too_long, **key) == (413, "request_too_large", None)
        assert await refusal(state, b"{", **key) == (400, None, None)
        assert await refusal(state, {**ask(image), "model": "x", "n": 9}, **key) == (400, None, "n")
        assert await refusal(state, {**ask(image), "model": "x"}, **key) == (404, "model_not_found", "model")
        assert await refusal(state, ask(image), **key) == (400, "vision_disabled", "messages")
        response = await state.post(ask("q", stream=True), **key)
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        error = (await response.get_json())["error"]
        assert (error["code"], error["type"]) == ("server_overloaded", "rate_limit_error")
        for ticket in held:
            await ticket.release()


async def test_prompts_at_fault_give_their_capacity_back() -> None:
    async with served(the_model=model(max_context_tokens=100), scheduler=SchedulerSettings(max_pending=1)) as state:
        for _ in range(4):
            response = await state.post(ask("word " * 200, stream=True))
            error = (await response.get_json())["error"]
            assert (response.status_code, error["code"], error["param"]) == (
                400,
                "context_length_exceeded",
                "messages",
            )
            assert "100 tokens" in error["message"]
        await settle(state)


async def test_effort_and_prefill_are_checked_against_the_template() -> None:
    async with served() as state:
        both = ask(enable_thinking=True, reasoning_effort="none")
        assert await refusal(state, both) == (400, "conflicting_template_option", "reasoning_effort")
        prefill = ask()
        prefill["messages"] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        assert await refusal(state, prefill) == (400, "assistant_prefill_not_supported", "messages")
        assert (await state.post({**prefill, "enable_thinking": False})).status_code == 200
    async with served(generation=GenerationSettings(thinking=False)) as state:
        assert (await state.post(prefill)).status_code == 200
        calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        prefill["messages"] = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": calls}]
        assert await refusal(state, prefill) == (400, "assistant_prefill_not_supported", "messages")


async def test_our_own_faults_say_nothing() -> None:
    async with served() as state:
        state.state.engine.fail_next = DeviceFault("secret detail")
        response = await state.post(ask())
        assert response.status_code == 500
        assert await response.get_json() == {
            "error": {"message": "Internal server error.", "type": "internal_error", "param": None, "code": None}
        }
        await settle(state)


async def test_an_unexpected_exception_is_an_internal_error() -> None:
    async with served() as state:

        @state.app.get("/broken")
        async def broken() -> str:
            raise ValueError("secret detail")

        status, body, _ = await get(state, "/broken")
        assert (status, body["error"]["type"]) == (500, "internal_error")
        assert "secret" not in str(body)


@pytest.mark.parametrize(
    ("error", "openai", "anthropic", "kind"),
    [
        (Overloaded("x"), 429, 529, "overloaded_error"),
        (QueueTimeout(), 503, 504, "timeout_error"),
        (ValueError("secret"), 500, 500, "api_error"),
    ],
)
async def test_statuses_of_both_families(error: Exception, openai: int, anthropic: int, kind: str) -> None:
    fault = fault_of(error)
    assert (status_for(fault, Family.OPENAI), status_for(fault, Family.ANTHROPIC)) == (openai, anthropic)
    body = body_for(fault, Family.ANTHROPIC, "req_1")
    assert f'"{kind}"'.encode() in body
    assert b"secret" not in body


async def test_a_lost_engine_is_told_to_everybody() -> None:
    async with served(scheduler=SchedulerSettings(exit_on_failure=False)) as state:
        engine, gateway = state.state.engine, state.state.system.gateway
        engine.fail_next, engine.fail_reset = DeviceFault("x"), DeviceFault("y")
        assert (await state.post(ask())).status_code == 500
        while gateway.lifecycle is not Lifecycle.FAILED:
            await anyio.lowlevel.checkpoint()
        status, body, _ = await get(state, "/health")
        assert (status, body["status"]) == (503, "unavailable")
        response = await state.post(ask())
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        error = (await response.get_json())["error"]
        assert (error["code"], error["type"]) == ("service_unavailable", "server_error")


async def test_a_server_that_loads_says_so() -> None:
    async with served(serving=False) as state:
        response = await state.post(ask())
        assert (response.status_code, response.headers["Retry-After"]) == (503, "2")
        assert (await response.get_json())["error"]["code"] == "model_loading"
        await state.state.wait_serving()
        assert (await state.post(ask())).status_code == 200


async def test_a_template_that_writes_nothing_is_a_prompt_at_fault() -> None:
    async with served(the_model=model(template=ChatTemplate("{{ messages[0].content }}"))) as state:
        assert await refusal(state, ask("")) == (400, "invalid_prompt", "messages")
        assert (await state.post(ask("word", max_tokens=1))).status_code == 200
        await settle(state)
