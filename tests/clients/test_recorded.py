"""What the agent programs send, as it was recorded: each is led through its task again, request by request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ninfer.config import SchedulerSettings
from ninfer.engine.scripted import Script, read_script
from tests.clients.agents import AGENTS, NOTE, SAID, Agent
from tests.clients.redact import FOLDER, Redaction
from tests.clients.run import RECORDED
from tests.support.engines import FakeEngine
from tests.support.http import MODEL_ID, chunks, events, model, served, settle
from tests.support.system import TOKENIZER

CONTEXT = 32768
Call = tuple[str, Any]


def recorded(agent: Agent) -> list[dict[str, Any]]:
    found = json.loads((RECORDED / f"{agent.name}.json").read_text())
    assert (found["client"], found["version"]) == (agent.name, agent.version)
    return list(found["requests"])


def script(agent: Agent, tmp_path: Path) -> Script:
    path = tmp_path / "script.jsonl"
    path.write_text(json.dumps(agent.script_line(Path(FOLDER) / NOTE)))
    return Script(read_script(path), TOKENIZER)


def answer_of(path: str, body: bytes) -> tuple[str, list[Call]]:
    """Text and calls of a streamed answer."""
    if path.startswith("/v1/messages"):
        return _message(events(body))
    if path.startswith("/v1/responses"):
        last = events(body)[-1]
        assert last["type"] == "response.completed"
        items = last["response"]["output"]
        text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
        return text, list(_calls_of_items(items))
    found = [part["choices"][0]["delta"] for part in chunks(body) if part["choices"]]
    pieces = [piece for delta in found for piece in delta.get("tool_calls") or ()]
    names = {piece["index"]: piece["function"]["name"] for piece in pieces if "name" in piece["function"]}
    arguments = dict.fromkeys(names, "")
    for piece in pieces:
        arguments[piece["index"]] += piece["function"].get("arguments") or ""
    text = "".join(delta.get("content") or "" for delta in found)
    return text, [(name, json.loads(arguments[index])) for index, name in names.items()]


def _message(found: list[dict[str, Any]]) -> tuple[str, list[Call]]:
    text, names, arguments = "", {}, {}
    for event in found:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            names[event["index"]], arguments[event["index"]] = event["content_block"]["name"], ""
        elif event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                arguments[event["index"]] += event["delta"]["partial_json"]
    assert found[-1]["type"] == "message_stop"
    return text, [(name, json.loads(arguments[index])) for index, name in names.items()]


def _calls_of_items(items: list[dict[str, Any]]) -> Iterator[Call]:
    for item in items:
        if item["type"] == "function_call":
            yield item["name"], json.loads(item["arguments"])


def history_calls(body: dict[str, Any]) -> list[Call]:
    """Calls that the client sends back."""
    if "input" in body:
        return list(_calls_of_items(body["input"]))
    found: list[Call] = []
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            found.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
        if message["role"] == "assistant" and isinstance(message["content"], list):
            found += [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
async def test_the_requests_of_a_program_lead_through_its_task(agent: Agent, tmp_path: Path) -> None:
    said = script(agent, tmp_path)
    engine = FakeEngine(lambda prompt: list(said.answer(prompt).token_ids))
    answers = []
    requests = recorded(agent)
    settings = SchedulerSettings(max_context_tokens=CONTEXT, prefix_reuse=False)
    async with served(engine, the_model=model(CONTEXT), scheduler=settings) as state:
        client: Any = state.app.test_client()
        for request in requests:
            body = request["body"]
            data = json.dumps({**body, "model": MODEL_ID}) if body is not None else None
            response = await client.open(
                request["path"], method=request["method"], headers=request["headers"], data=data
            )
            content = await response.get_data()
            assert response.status_code == 200, content
            if body is not None:
                answers.append(answer_of(request["path"], content))
        await settle(state)
    call = next(calls for _, calls in answers if calls)
    assert [name for name, _ in call] == [agent.tool]
    assert history_calls(requests[-1]["body"]) == call  # what the program understood then is what we say now
    assert answers[-1] == (SAID, [])


def test_the_records_tell_nothing_of_a_person() -> None:
    for agent in AGENTS:
        text = (RECORDED / f"{agent.name}.json").read_text()
        folders = {word for word in text.split('"') if word.startswith("/") and len(PurePosixPath(word).parts) > 3}
        assert all(word.startswith((FOLDER, "/v1/")) for word in folders), folders
        assert "authorization" not in text.lower()
        assert "api-key" not in text.lower()


def test_a_redaction_keeps_the_structure() -> None:
    redaction = Redaction("/tmp/here", ("go",))
    identifier = "01a22b35-d435-76a0-9f46-7fd1f9c529cc"
    body = {
        "text": "x" * 49,
        "description": "short",
        "content": ["go", '"go"\n', "a\nb", 7, None],
        "id": identifier,
        "thread": f"{identifier}:0",
        "arguments": '{"file_path": "/tmp/here/note.txt", "content": "some more words"}',
        "billing": "x-anthropic-billing-header: " + "y" * 60,
    }
    assert redaction.body(body) == {
        "text": "a text of 49 characters",
        "description": "a text of 5 characters",
        "content": ["go", '"go"\n', "a text of 3 characters", 7, None],
        "id": "id-1",
        "thread": "id-1:0",
        "arguments": '{"file_path": "/home/user/task/note.txt", "content": "some more words"}',
        "billing": "x-anthropic-billing-header: a text of 88 characters",
    }
    assert redaction.headers({"user-agent": "x", "x-api-key": "y"}) == {"user-agent": "x"}
