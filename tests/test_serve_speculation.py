"""A server that guesses tokens, as an operator uses it: slot files saved, restored after a restart and refused, and
answers that are held to a schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.process import Process

SPECULATING = ("--spec", "mtp", "--draft-tokens", "3", "--ngram-draft-tokens", "5")
QUESTION = "Repeat this list twice: " + ", ".join(["alpha", "beta", "gamma", "delta"] * 6) + "."


def start(folder: Path, *options: str) -> Process:
    return Process("--greedy", "--slot-save-path", str(folder), *options)


@contextmanager
def serving(process: Process) -> Iterator[httpx.Client]:
    process.wait_for("ready: ")
    try:
        with httpx.Client(base_url=process.url.removesuffix("/v1"), timeout=60) as client:
            yield client
    finally:
        process.process.terminate()
        assert process.end() == 0


def answer(client: httpx.Client, messages: list[dict[str, str]], seed: int | None = None) -> dict[str, Any]:
    """Greedy, or with a seed drawn."""
    body = {"model": "ninfer-embedded", "messages": messages, "max_tokens": 24}
    if seed is not None:
        body |= {"temperature": 1.0, "seed": seed}
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def held_answer(client: httpx.Client) -> dict[str, Any]:
    """Thinking up to a budget, then a value of a schema."""
    schema = {"type": "object", "properties": {"repeated": {"type": "boolean"}}, "required": ["repeated"],
              "additionalProperties": False}  # fmt: skip
    body = {
        "model": "ninfer-embedded",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 120,
        "chat_template_kwargs": {"enable_thinking": True},
        "thinking_budget": 12,
        "response_format": {"type": "json_schema", "json_schema": {"name": "r", "strict": True, "schema": schema}},
    }
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def forced_call(client: httpx.Client) -> list[Any]:
    """The call of a strict tool that has to come, and how many guesses there were."""
    schema = {"type": "object", "properties": {"way": {"enum": ["read only", "read and write"]}}, "required": ["way"],
              "additionalProperties": False}  # fmt: skip
    body = {
        "model": "ninfer-embedded",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 60,
        "tools": [{"type": "function", "function": {"name": "open_the_file", "parameters": schema, "strict": True}}],
        "tool_choice": "required",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    (call,) = reply.json()["choices"][0]["message"]["tool_calls"]
    return [call["function"], reply.json()["usage"]["completion_tokens"], reply.json()["timings"].get("draft_n")]


def text(reply: dict[str, Any]) -> tuple[str | None, str | None, str, int]:
    (choice,) = reply["choices"]
    message = choice["message"]
    tokens = reply["usage"]["completion_tokens"]
    return message.get("reasoning_content"), message["content"], choice["finish_reason"], tokens


def test_a_session_goes_on_from_its_file_after_a_restart_and_only_where_guesses_are_made(tmp_path: Path) -> None:
    plain = start(tmp_path)
    first = [{"role": "user", "content": QUESTION}]
    with serving(start(tmp_path, *SPECULATING)) as client:
        said = answer(client, first)
        assert said["timings"]["draft_n"] > 0
        saved = client.post("/slots/0?action=save", json={"filename": "a.bin"})
        assert saved.status_code == 200, saved.text
        second = [*first, {"role": "assistant", "content": said["choices"][0]["message"]["content"] or "?"}]
        second.append({"role": "user", "content": "And the same list once more."})
        unsaved = answer(client, second)
        drawn = answer(client, second, seed=7)
        held = held_answer(client)
        assert held["timings"]["draft_n"] > 8
        assert held["constraint"]["complete"]
        called = forced_call(client)
        assert called[-1] > 8
    with serving(start(tmp_path, *SPECULATING)) as client:
        restored = client.post("/slots/0?action=restore", json={"filename": "a.bin"})
        assert restored.status_code == 200, restored.text
        assert restored.json()["n_restored"] == saved.json()["n_saved"]
        told = answer(client, second)
        assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
        assert text(told) == text(unsaved)
        assert told["timings"]["draft_n"] > 0
    with serving(plain) as client:
        refused = client.post("/slots/0?action=restore", json={"filename": "a.bin"})
        assert refused.status_code == 400, refused.text
        assert "speculative configuration does not match the server" in refused.json()["error"]["message"]
        unguessed = answer(client, second)
        assert text(unguessed) == text(unsaved)
        assert "draft_n" not in unguessed["timings"]
        assert text(answer(client, second, seed=7)) == text(drawn)
        assert text(held_answer(client)) == text(held)
        assert forced_call(client) == [*called[:-1], None]
        assert text(held)[0]
