"""``--prefill-progress``: every stream shows life from its beginning, in the way of its protocol."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from ninfer.config import GenerationSettings, SchedulerSettings
from tests.support.http import MODEL_ID, chunks, events, frames, says, served

pytestmark = pytest.mark.asyncio

SETTINGS = SchedulerSettings(prefill_chunk_tokens=128)
ON = GenerationSettings(prefill_progress=True)
LONG = "word " * 200
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
CONVERSATION = {"model": MODEL_ID, "messages": [{"role": "user", "content": LONG}], "max_tokens": 9}
BODIES: Mapping[str, Mapping[str, object]] = {
    "/v1/chat/completions": CONVERSATION,
    "/v1/messages": CONVERSATION,
    "/v1/responses": {"model": MODEL_ID, "input": LONG},
    "/v1/completions": {"model": MODEL_ID, "prompt": LONG, "max_tokens": 9},
}


async def stream(path: str, generation: GenerationSettings = ON) -> bytes:
    async with served(says("</think>Yes"), scheduler=SETTINGS, generation=generation) as state:
        response = await state.send(path, {**BODIES[path], "stream": True})
        data = await response.get_data()
        assert isinstance(data, bytes)
        return data


def check(progress: list[Any]) -> None:
    processed = [entry["processed"] for entry in progress]
    assert processed == sorted(set(processed))
    assert processed[0] == progress[0]["cache"] == 0
    assert processed[-1] == progress[-1]["total"] > 500
    assert len(processed) > 4


def text(parts: list[Any]) -> str:
    choices = [choice for part in parts for choice in part["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_chunks_say_how_far_the_prompt_is_read(path: str) -> None:
    parts = chunks(await stream(path))
    check([part["prompt_progress"] for part in parts if "prompt_progress" in part])
    last = max(index for index, part in enumerate(parts) if "prompt_progress" in part)
    assert not text(parts[: last + 1])
    assert text(parts[last + 1 :]).endswith("Yes")
    times = [part["prompt_progress"]["time_ms"] for part in parts if "prompt_progress" in part]
    assert times[0] == 0.0
    assert times == sorted(times)


async def test_events_of_a_response_say_it_too() -> None:
    parts = events(await stream("/v1/responses"))
    check([part["prompt_progress"] for part in parts if "prompt_progress" in part])
    assert [part["sequence_number"] for part in parts] == list(range(len(parts)))


async def test_a_message_begins_with_a_ping_and_has_one_when_it_is_admitted() -> None:
    kinds = [part["type"] for part in events(await stream("/v1/messages"))]
    assert kinds[:3] == ["ping", "message_start", "ping"]
    assert kinds.count("ping") == 2


async def test_a_completion_begins_with_a_comment() -> None:
    assert frames(await stream("/v1/completions"))[0] == ": keep-alive"


@pytest.mark.parametrize("path", sorted(BODIES))
async def test_the_first_frame_waits_for_nobody(path: str) -> None:
    engine = says("Yes")
    scheduler = SchedulerSettings(prefill_chunk_tokens=128, max_pending=4)
    async with served(engine, scheduler=scheduler, generation=ON, keep_alive_comment_s=3600.0) as state:
        engine.gate = threading.Event()
        client = state.app.test_client()
        async with client.request(path, method="POST") as first, client.request(path, method="POST") as queued:
            for connection in (first, queued):
                await connection.send(orjson.dumps({**BODIES[path], "stream": True}))
                await connection.send_complete()
                assert await connection.receive()
            engine.gate.set()


@pytest.mark.parametrize("path", sorted(BODIES))
async def test_without_the_option_and_without_a_stream_nothing_is_added(path: str) -> None:
    data = await stream(path, GenerationSettings())
    assert b"prompt_progress" not in data
    assert PING not in data
    assert not data.startswith(b":")
    async with served(says("</think>Yes"), scheduler=SETTINGS, generation=ON) as state:
        assert b"prompt_progress" not in await (await state.send(path, BODIES[path])).get_data()
