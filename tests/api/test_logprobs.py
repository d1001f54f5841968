"""Log-probabilities in the three protocols of OpenAI, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.api.chat_request import parse_chat
from ninfer.api.completions_request import parse_completion
from ninfer.api.logprobs import CompletionLogprobs, entries
from ninfer.api.responses_request import parse_responses
from ninfer.api.responses_store import ResponseStore
from ninfer.step import TokenLogprobs
from tests.support.engines import told_of
from tests.support.http import MODEL_ID, Served, ask, chunks, events, says, served
from tests.support.system import TOKENIZER

TEXT = "Six times seven is 42, grüß dich \U0001f642."
ANSWER = f"think hard\n</think>\n\n{TEXT}"
IDS = TOKENIZER.encode_with_control(ANSWER)


def expected(count: int, text: str = TEXT) -> list[dict[str, object]]:
    """What is told of the tokens of the answer, up to the one that completes this text."""
    end = len(IDS)
    while text != TEXT and text in TOKENIZER.decode(IDS[: end - 1]):
        end -= 1
    start = next(n for n in range(len(IDS)) if TEXT not in TOKENIZER.decode(IDS[n + 1 :]))
    return entries([told_of(IDS[n], n, count)[0] for n in range(start, end)], TOKENIZER)


def test_who_asks_for_what() -> None:
    def chat(**fields: object) -> int | None:
        return parse_chat({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}).logprobs

    def responses(**fields: object) -> int | None:
        return parse_responses({"model": "m", "input": "Hi", **fields}, ResponseStore(1, 1 << 20)).logprobs

    def completion(**fields: object) -> int | None:
        return parse_completion({"model": "m", "prompt": "Hi", **fields}).logprobs

    assert [chat(), chat(logprobs=False, top_logprobs=0), chat(logprobs=True)] == [None, None, 0]
    assert chat(logprobs=True, top_logprobs=20) == 20
    assert [completion(), completion(logprobs=None), completion(logprobs=0), completion(logprobs=5)] == [
        None, None, 0, 5,
    ]  # fmt: skip
    include = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert [responses(), responses(top_logprobs=0), responses(include=include[:1])] == [None, None, None]
    assert [responses(include=include), responses(top_logprobs=7)] == [0, 7]


def test_tokens_that_are_no_text_by_themselves() -> None:
    smile = TOKENIZER.encode("\U0001f642")
    assert len(smile) > 1
    (first,) = entries([TokenLogprobs(smile[0], -0.5, ((10**6, -1.5),))], TOKENIZER)
    assert bytes(first["bytes"]) == TOKENIZER.token_bytes(smile[0])  # type: ignore[call-overload]
    assert first["token"] == TOKENIZER.token_bytes(smile[0]).decode(errors="replace")
    assert first["top_logprobs"] == [{"token": "", "logprob": -1.5, "bytes": []}]  # no token of the tokenizer
    told = CompletionLogprobs(TOKENIZER).more(
        [TokenLogprobs(token, -1.0) for token in (*smile, *TOKENIZER.encode("a"))]
    )
    names = ["bytes:" + "".join(f"\\x{byte:02x}" for byte in TOKENIZER.token_bytes(token)) for token in smile]
    assert told == {
        "tokens": [*names, "a"],
        "token_logprobs": [-1.0] * (len(smile) + 1),
        "top_logprobs": None,
        "text_offset": [0] * len(smile) + [1],
    }


async def whole(state: Served, path: str, body: dict[str, object]) -> Any:
    response = await state.send(path, {"model": MODEL_ID, **body})
    assert response.status_code == 200, await response.get_data()
    return await (response.get_data() if body.get("stream") else response.get_json())


@pytest.mark.asyncio
@pytest.mark.parametrize(("fields", "text"), [({}, TEXT), ({"stop": [" 42"]}, "Six times seven is")])
async def test_chat(fields: dict[str, object], text: str) -> None:
    async with served(says(ANSWER)) as state:
        body = ask(logprobs=True, top_logprobs=3, **fields)
        choice = (await whole(state, "/v1/chat/completions", body))["choices"][0]
        parts = chunks(await whole(state, "/v1/chat/completions", {**body, "stream": True}))
        bare = await whole(state, "/v1/chat/completions", ask(logprobs=True))
    assert choice["message"]["content"] == text
    assert choice["logprobs"] == {"content": expected(3, text), "refusal": None}
    streamed = [part["choices"][0] for part in parts]
    told = [one for part in streamed for one in (part["logprobs"] or {"content": []})["content"]]
    assert told == expected(3, text)
    for part in streamed:
        assert (part["logprobs"] is not None) == bool(part["delta"].get("content"))
    assert bare["choices"][0]["logprobs"]["content"] == expected(0)


@pytest.mark.asyncio
async def test_an_answer_of_calls_alone_has_none() -> None:
    said = "</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    async with served(says(said)) as state:
        body = ask(logprobs=True, top_logprobs=3, tools=[tool])
        choice = (await whole(state, "/v1/chat/completions", body))["choices"][0]
        parts = chunks(await whole(state, "/v1/chat/completions", {**body, "stream": True}))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["logprobs"] == {"content": [], "refusal": None}
    assert not any((part["choices"][0]["logprobs"] or {}).get("content") for part in parts)


@pytest.mark.asyncio
async def test_completions() -> None:
    async with served(says(ANSWER)) as state:
        body: dict[str, object] = {"prompt": "Once", "max_tokens": 100, "logprobs": 2}
        choice = (await whole(state, "/v1/completions", body))["choices"][0]
        parts = chunks(await whole(state, "/v1/completions", {**body, "stream": True}))
    told = choice["logprobs"]
    assert told["token_logprobs"] == [-(n + 1) / 64 for n in range(len(IDS))]
    for at, (offset, name) in enumerate(zip(told["text_offset"], told["tokens"], strict=True)):
        assert name.startswith("bytes:") or choice["text"][offset:].startswith(name)
        assert told["top_logprobs"][at][name] == told["token_logprobs"][at]
    streamed = [part["choices"][0]["logprobs"] for part in parts if part["choices"][0]["logprobs"]]
    for member in told:
        assert [one for part in streamed for one in part[member]] == told[member]


@pytest.mark.asyncio
async def test_responses_and_what_they_are_continued_with() -> None:
    async with served(says(ANSWER)) as state:
        body: dict[str, object] = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
        response = await whole(state, "/v1/responses", body)
        stream = events(await whole(state, "/v1/responses", {**body, "stream": True}))
        item = response["output"][-1]
        assert response["top_logprobs"] == 2
        assert item["content"][0]["logprobs"] == expected(2)
        deltas = [event for event in stream if event["type"] == "response.output_text.delta"]
        assert [one for event in deltas for one in event["logprobs"]] == expected(2)
        ends = {event["type"]: event for event in stream}
        assert ends["response.output_text.done"]["logprobs"] == expected(2)
        assert ends["response.content_part.added"]["part"].get("logprobs", []) == []
        assert ends["response.completed"]["response"]["output"][-1]["content"][0]["logprobs"] == expected(2)
        again = [{"role": "user", "content": "Hi"}, *response["output"], {"role": "user", "content": "And?"}]
        sent = await whole(state, "/v1/responses", {"input": again})
        stored = await whole(state, "/v1/responses", {"input": "And?", "previous_response_id": response["id"]})
        assert sent["usage"]["input_tokens"] == stored["usage"]["input_tokens"]
        assert sent["output"][-1]["content"][0]["logprobs"] == []
