"""Tool calls of Chat answers, whole and streamed, and what the log says of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from ninfer.config import GenerationSettings
from tests.support.http import Served, ask, chunks, joined, says, served

pytestmark = pytest.mark.asyncio

PATH = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PATH}} for name in ("write", "read")]
READ = "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>"
CUT = "<tool_call>\n<function=write>\n<parameter=path>\nb.txt\n</parameter>\n<parameter=content>\n" + "line\n" * 20
CALL = {"type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}


async def choice_of(state: Served, **fields: object) -> dict[str, Any]:
    response = await state.post(ask(**{"tools": TOOLS, **fields}))
    assert response.status_code == 200
    return (await response.get_json())["choices"][0]  # type: ignore[no-any-return]


async def parts_of(state: Served, **fields: object) -> list[dict[str, Any]]:
    response = await state.post(ask(**{"tools": TOOLS, "stream": True, **fields}))
    assert response.status_code == 200
    return chunks(await response.get_data())


def assembled(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of a stream as a client builds them."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        for entry in part["choices"][0]["delta"].get("tool_calls", ()) if part["choices"] else ():
            if "id" in entry:
                assert entry["index"] == len(calls)
                assert entry["function"]["arguments"] == ""
                assert re.fullmatch(r"call_[0-9a-f]{16}", entry["id"])
                calls.append({"type": entry["type"], "function": dict(entry["function"])})
            else:
                assert set(entry) == {"index", "function"}
                assert set(entry["function"]) == {"arguments"}
                assert entry["function"]["arguments"]
                calls[entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
    return calls


@pytest.mark.parametrize(
    ("output", "content", "calls", "reason"),
    [
        (f"</think>\n\n{READ}", None, [CALL], "tool_calls"),
        (f"</think>\n\nLet me look.\n\n{READ}\n{READ}", "Let me look.", [CALL, CALL], "tool_calls"),
        (f"I know.\n{READ}", None, [CALL], "tool_calls"),
        ("</think>\n\n<tool_call> is a tag.", "<tool_call> is a tag.", [], "stop"),
        ("</think>\n\n", "", [], "stop"),
    ],
)
async def test_whole_and_streamed_calls(output: str, content: str | None, calls: list[object], reason: str) -> None:
    async with served(says(output)) as state:
        whole = await choice_of(state)
        parts = await parts_of(state)
    message = whole["message"]
    assert (message["content"], whole["finish_reason"]) == (content, reason)
    shown = [{key: value for key, value in call.items() if key != "id"} for call in message.get("tool_calls", [])]
    assert shown == calls
    assert all(re.fullmatch(r"call_[0-9a-f]{16}", call["id"]) for call in message.get("tool_calls", []))
    assert ("tool_calls" in message) == bool(calls)
    assert joined(parts, "content") == (content or "")
    assert joined(parts, "reasoning_content") == message.get("reasoning_content", "")
    assert assembled(parts) == calls
    assert parts[-1]["choices"][0]["finish_reason"] == reason


async def test_a_cut_call_stays_open_and_is_a_limit() -> None:
    async with served(says(f"</think>\n\n{READ}\n{CUT}")) as state:
        whole = await choice_of(state, max_tokens=200)
        parts = await parts_of(state, max_tokens=200)
    calls = whole["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["read", "write"]
    assert calls[1]["function"]["arguments"].startswith('{"path": "b.txt", "content": "line\\nline')
    with pytest.raises(ValueError, match="Unterminated string"):
        json.loads(calls[1]["function"]["arguments"])
    assert whole["finish_reason"] == parts[-1]["choices"][0]["finish_reason"] == "length"
    assert [call["function"] for call in assembled(parts)] == [call["function"] for call in calls]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None},
        {"tool_choice": "none"},
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOLS[0]]}}},
    ],
)
async def test_calls_of_what_may_not_be_called_are_text(fields: dict[str, object]) -> None:
    async with served(says(f"</think>\n\n{READ}")) as state:
        choice = await choice_of(state, **fields)
    assert (choice["message"]["content"], choice["finish_reason"]) == (READ, "stop")
    assert "tool_calls" not in choice["message"]


async def test_tolerance_is_a_setting_of_the_server() -> None:
    output = f"</think>\n\n{READ.replace('<function=read>', '<=read>')}"
    async with served(says(output)) as state:
        assert "tool_calls" not in (await choice_of(state))["message"]
    async with served(says(output), generation=GenerationSettings(tolerant_tool_calls=True)) as state:
        assert (await choice_of(state))["finish_reason"] == "tool_calls"


async def test_the_log_says_what_was_seen_and_nothing_of_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with served(says(f"</think>\n\n{READ}\nnonsense"), log_path=path) as state:
        await choice_of(state)
        await choice_of(state, tools=None)
    results = [orjson.loads(line)["result"] for line in path.read_bytes().splitlines() if b'"request_done"' in line]
    assert [result["tool_call_count"] for result in results] == [1, 0]
    assert results[1]["tool_call_parse"] is None
    assert results[0]["tool_call_parse"] == {
        "marker_seen": True,
        "structured_call_count": 1,
        "empty_arguments_omitted": 0,
        "schema_mismatch_arguments": 0,
        "duplicate_parameters_repaired": 0,
        "discarded_bytes": len("nonsense"),
        "incomplete_calls": 0,
        "fallback_reason": "none",
        "recovered_from_reasoning": False,
        "tolerant_recovered": False,
    }
    assert b"a.txt" not in path.read_bytes()


async def test_progress_and_timings_leave_call_chunks_alone() -> None:
    async with served(says(f"</think>\n\nSo.\n{READ}")) as state:
        parts = await parts_of(state, timings_per_token=True, stream_options={"include_usage": True})
    for part in parts:
        delta = part["choices"][0]["delta"] if part["choices"] else {}
        assert ("timings" in part) == ("content" in delta and "role" not in delta) or part is parts[-1]
