"""``GET /requests/{id}`` over a running system."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ninfer.config import SchedulerSettings
from tests.support.http import UNIX_TIME, Served, ask, served, settle
from tests.support.system import request_for

pytestmark = pytest.mark.asyncio


async def get(state: Served, wanted: str, status: int = 200) -> Any:
    response = await state.app.test_client().get(f"/requests/{wanted}")
    assert response.status_code == status
    return await response.get_json()


async def test_an_answer_can_be_looked_up_by_the_id_that_came_with_it() -> None:
    async with served() as state:
        response = await state.post(ask())
        found = await get(state, response.headers["x-request-id"])
        assert found["object"] == "ninfer.request"
        assert (found["id"], found["x_request_id"]) == (1, response.headers["x-request-id"])
        assert (found["state"], found["finish_reason"]) == ("ended", "stop_token")
        assert (found["prefix_reuse_path"], found["lane"]) == ("full_reset", 0)
        usage = (await response.get_json())["usage"]
        assert found["read_tokens"] == found["prompt_tokens"] == usage["prompt_tokens"]
        assert found["drawn_tokens"] == usage["completion_tokens"] == found["rounds"] + 1
        times = [found[f"{name}_s"] for name in ("prepared", "admitted", "first_token", "last_token", "ended", "age")]
        assert times == sorted(times)
        assert found["arrived_unix_ms"] <= UNIX_TIME * 1000
        await settle(state)
        assert (await get(state, "1"))["released_s"] is not None


async def test_requests_that_wait_say_where() -> None:
    async with served(scheduler=SchedulerSettings(max_pending=4)) as state:
        gateway = state.state.system.gateway
        tickets = [await gateway.arrive(f"req_{number}") for number in range(3)]
        for ticket in tickets:
            await ticket.submit(request_for("a long prompt " * 20, max_tokens=4000, stop_ids=()))
        with anyio.fail_after(10):
            while (await get(state, "req_0"))["state"] != "decoding" or (await get(state, "3"))["position"] is None:
                await anyio.lowlevel.checkpoint()
        assert [(await get(state, f"req_{number}"))["position"] for number in range(3)] == [None, 0, 1]
        assert (await get(state, "2"))["state"] == "waiting"
        for ticket in tickets:
            await ticket.release()


async def test_what_is_not_known_is_not_found() -> None:
    async with served() as state:
        error = (await get(state, "req_nobody", 404))["error"]
        assert error == {
            "message": "There is no request 'req_nobody' under way or among the last ones.",
            "type": "invalid_request_error",
            "param": "id",
            "code": "request_not_found",
        }
        await get(state, "1", 404)
