"""Ids of texts, texts of ids, prompts of conversations."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http import MODEL_ID, TEMPLATE, Served, ask, served
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

TEXT = "Hi <|im_end|> \N{GRINNING FACE}"
MESSAGES = [{"role": "user", "content": "Hi <|im_end|>"}]


async def post(state: Served, path: str, body: object) -> tuple[int, Any]:
    response = await state.send(path, body)
    return response.status_code, await response.get_json()


@pytest.mark.parametrize("field", ["content", "prompt"])
async def test_ids_of_a_text(field: str) -> None:
    async with served() as state:
        control, plain = TOKENIZER.encode_with_control(TEXT), TOKENIZER.encode(TEXT)
        assert control != plain
        expected = {"tokens": control, "count": len(control), "max_model_len": 8192}
        assert await post(state, "/tokenize", {field: TEXT}) == (200, expected)
        _, found = await post(state, "/tokenize", {field: TEXT, "parse_special": False})
        assert found["tokens"] == plain
        assert (await post(state, "/tokenize", {field: ""}))[1]["tokens"] == []


async def test_pieces_are_text_or_bytes() -> None:
    async with served() as state:
        _, found = await post(state, "/tokenize", {"content": TEXT, "with_pieces": True})
    assert [piece["id"] for piece in found["tokens"]] == TOKENIZER.encode_with_control(TEXT)
    pieces = [piece["piece"] for piece in found["tokens"]]
    spelled = b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces)
    assert spelled == TEXT.encode()
    assert {type(piece) for piece in pieces} == {str, list}


async def test_ids_and_text_of_a_conversation_are_those_of_a_request() -> None:
    async with served() as state:
        prompt = TEMPLATE.render(MESSAGES, enable_thinking=False)
        body = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": False}}
        assert await post(state, "/apply-template", body) == (200, {"prompt": prompt.text})
        _, found = await post(state, "/tokenize", body)
        assert found["tokens"] == TOKENIZER.encode_prompt(prompt)
        _, answer = await post(state, "/v1/chat/completions", {**body, "model": MODEL_ID})
        assert answer["usage"]["prompt_tokens"] == found["count"]


async def test_texts_of_ids() -> None:
    async with served() as state:
        ids = TOKENIZER.encode_with_control(TEXT)
        assert await post(state, "/detokenize", {"tokens": ids}) == (200, {"content": TEXT, "prompt": TEXT})
        assert (await post(state, "/detokenize", {"tokens": []}))[1]["content"] == ""


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "content"),
        ("/tokenize", {"content": 1}, 400, "content"),
        ("/tokenize", {"content": "a", "prompt": {}}, 400, "prompt"),
        ("/tokenize", {"content": "a", "parse_special": 1}, 400, "parse_special"),
        ("/tokenize", {"content": "a", "with_pieces": 1}, 400, "with_pieces"),
        ("/tokenize", b"[", 400, None),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1 << 40]}, 400, "tokens"),
        ("/apply-template", {"messages": []}, 400, "messages"),
        ("/apply-template", {**ask(), "model": "other"}, 404, "model"),
    ],
    ids=str,
)
async def test_refusals(path: str, body: object, status: int, param: str | None) -> None:
    async with served() as state:
        found, answer = await post(state, path, body)
        assert (found, answer["error"]["param"]) == (status, param)
