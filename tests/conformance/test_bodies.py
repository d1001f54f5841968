"""Nearly right bodies over every route that takes one: each is answered in the form of its protocol, none is our fault.

A longer run with `make conformance`.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ninfer.config import GenerationSettings, SchedulerSettings
from tests.clients.agents import AGENTS
from tests.clients.run import RECORDED
from tests.conformance.mutations import mutated
from tests.support.engines import FakeEngine
from tests.support.http import MODEL_ID, Served, chunks, events, model, served, settle
from tests.support.system import TOKENIZER

SECONDS = float(os.environ.get("NINFER_FUZZ_S", "4"))
SEEDS = int(os.environ.get("NINFER_FUZZ_SEEDS", "1"))
CALL = '<tool_call>\n<function=f>\n<parameter=a>\n{"x": [1]}\n</parameter>\n</function>\n</tool_call>'
TEXTS = ("Well.</think>\n\nYes.", CALL, f"So.</think>\n\n{CALL}")
ANSWERS = tuple(
    TOKENIZER.encode_with_control(text) for text in ("Well.</think>\n\nYes.", CALL, f"So.</think>\n\n{CALL}")
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
TALK = [{"role": "user", "content": "Hi"}]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


def seeds() -> list[tuple[str, dict[str, Any]]]:
    """Bodies that work, with their routes."""
    text, named = {"type": "text", "text": "Hi"}, {"name": "f", "input_schema": SCHEMA}
    made: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": TALK, "stop": ["x"], "seed": 1, "temperature": 0.5, "stream": True}),
        ("/v1/chat/completions", {"messages": TALK, "tools": [FUNCTION], "tool_choice": "auto"}),
        ("/v1/chat/completions", {"messages": TALK, "structured_outputs": {"regex": "[ab]+"}, "thinking_budget": 3}),
        (
            "/v1/chat/completions",
            {
                "messages": TALK,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
            },
        ),
        (
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": 3, "stream_options": {"include_usage": True}, "stream": True},
        ),
        ("/v1/messages", {"messages": TALK, "max_tokens": 9, "system": [text], "tools": [named], "stream": True}),
        (
            "/v1/messages",
            {"messages": TALK, "max_tokens": 9, "stop_sequences": ["x"], "thinking": {"type": "disabled"}},
        ),
        ("/v1/messages/count_tokens", {"messages": TALK}),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "custom", "name": "f"}], "stream": True}),
        ("/v1/responses", {"input": TALK, "text": {"format": {"type": "json_object"}}, "store": True}),
        ("/v1/responses/input_tokens", {"input": "Hi"}),
        ("/tokenize", {"content": "Hi", "with_pieces": True}),
        ("/detokenize", {"tokens": [1, 2]}),
        ("/apply-template", {"messages": TALK}),
    ]
    for agent in AGENTS:
        record = json.loads((RECORDED / f"{agent.name}.json").read_text())
        made += [(one["path"].partition("?")[0], one["body"]) for one in record["requests"] if one["body"]]
    return [(path, {"model": MODEL_ID, **body} | {"model": MODEL_ID}) for path, body in made]


def check(path: str, data: bytes, status: int, kind: str, content: bytes) -> None:
    """The answer has the form of its protocol."""
    assert status < 500 or status in (503, 504, 529), (path, data, status, content)
    if kind == "text/event-stream":
        assert path in STREAMED
        parts: Sequence[dict[str, Any]] = chunks(content) if "completions" in path else events(content)
        assert parts[-1].get("type") != "error", (path, data, parts[-1])
        assert "error" not in parts[-1] or parts[-1].get("type") == "response.completed", (path, data, parts[-1])
        return
    body = json.loads(content)
    if status == 200:
        return
    assert 400 <= status < 500, (path, data, status)
    error = body["error"]
    if path.startswith("/v1/messages"):
        assert (body["type"], set(error)) == ("error", {"type", "message"})
    else:
        assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


async def send(state: Served, path: str, data: bytes) -> int:
    response = await state.send(path, data)
    content = await response.get_data()
    check(path, data, response.status_code, response.mimetype, content)
    return int(response.status_code)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
async def test_nearly_right_bodies_are_answered_in_form(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(seed)
    found = seeds()
    bodies = [body for _, body in found]
    engine = FakeEngine(lambda prompt: ANSWERS[len(prompt) % len(ANSWERS)])
    settings = SchedulerSettings(max_context_tokens=16384, prefix_reuse=False)
    generation = GenerationSettings(max_output_tokens=64)
    statuses: dict[int, int] = {}
    worst = 0.0
    end = time.monotonic() + SECONDS
    rest = list(found)
    async with served(engine, the_model=model(16384), scheduler=settings, generation=generation) as state:
        for path, body in found:  # as they are
            assert await send(state, path, json.dumps(body).encode()) == 200, (path, body)
        while time.monotonic() < end or rest:
            path, body = rest.pop() if rest else draw.choice(found)
            data = mutated(body, bodies, draw)
            begin = time.monotonic()
            status = await send(state, path, data)
            worst = max(worst, time.monotonic() - begin)
            statuses[status] = statuses.get(status, 0) + 1
            capsys.readouterr()  # the console would grow with every request
        await settle(state)
    assert statuses[200] > 3
    assert statuses[400] > 3
    with capsys.disabled():
        if SEEDS > 1:
            print(f"{sum(statuses.values())} bodies, {statuses}, the slowest took {worst:.2f} s")
