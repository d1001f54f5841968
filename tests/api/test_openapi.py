"""The document describes what is there: every route, every field that a parser reads, every answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from ninfer.api.chat_request import parse_chat
from ninfer.api.completions_request import parse_completion
from ninfer.api.messages_request import parse_count, parse_messages
from ninfer.api.openapi import DESCRIBED, document, routes_of
from ninfer.api.responses_request import parse_input_tokens, parse_responses
from ninfer.api.responses_store import ResponseStore
from ninfer.api.schema import chat, common, messages, operations, responses, texts
from ninfer.errors import RequestRejected
from tests.support.http import MODEL_ID, Served, ask, served

STORE = ResponseStore(8, 1 << 20)
MEMBERS: dict[str, object] = {
    "model": "m",
    "messages": [{"role": "user", "content": "q"}],
    "input": "q",
    "prompt": "p",
    "max_tokens": 4,
}


class Recording(dict[str, object]):
    """A body that remembers which of its members were asked for."""

    def __init__(self, members: dict[str, object]) -> None:
        super().__init__(members)
        self.read: set[str] = set()

    def get(self, key: str, default: object = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> object:
        self.read.add(key)
        return super().__getitem__(key)


def fields(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def members_for(kind: type[msgspec.Struct]) -> dict[str, object]:
    """A small body that the parser of this type takes."""
    needed = {field.encode_name for field in msgspec.structs.fields(kind) if field.required or field.name == "input"}
    return {name: value for name, value in MEMBERS.items() if name in needed}


@pytest.mark.parametrize(
    ("parse", "kind"),
    [
        (parse_chat, chat.ChatRequest),
        (parse_messages, messages.MessagesRequest),
        (parse_count, messages.CountRequest),
        (parse_completion, texts.CompletionRequest),
        (lambda source: parse_responses(source, STORE), responses.ResponsesRequest),
    ],
    ids=["chat", "messages", "count_tokens", "completions", "responses"],
)
def test_fields_of_a_schema_are_those_that_the_parser_reads(
    parse: Callable[[Any], object], kind: type[msgspec.Struct]
) -> None:
    body = Recording(members_for(kind))
    parse(body)
    assert body.read == fields(kind)


def test_counting_items_takes_its_own_fields_and_no_others() -> None:
    members, refused = members_for(responses.InputTokensRequest), set()
    for name in fields(responses.ResponsesRequest):
        try:
            parse_input_tokens({**members, name: {}}, STORE)
        except RequestRejected as error:
            if error.code == "unknown_parameter":
                refused.add(name)
    assert refused == fields(responses.ResponsesRequest) - fields(responses.InputTokensRequest)


def is_forbidden(body: object, kind: Any) -> bool:
    try:
        msgspec.convert(body, kind, strict=True)
    except msgspec.ValidationError:
        return True
    return False


@pytest.mark.parametrize(
    ("parse", "kind"),
    [
        (parse_chat, chat.ChatRequest),
        (parse_messages, messages.MessagesRequest),
        (parse_completion, texts.CompletionRequest),
        (lambda source: parse_responses(source, STORE), responses.ResponsesRequest),
    ],
    ids=["chat", "messages", "completions", "responses"],
)
def test_what_a_schema_forbids_is_refused(parse: Callable[[Any], object], kind: type[msgspec.Struct]) -> None:
    values: tuple[object, ...] = (-7, 1e30, 0.5, "no such word", True, [[]], {"x": [1]})
    members = members_for(kind)
    bodies = [{**members, name: value} for name in fields(kind) for value in values]
    forbidden = [body for body in bodies if is_forbidden(body, kind)]
    assert len(forbidden) > 50
    for body in forbidden:
        with pytest.raises(RequestRejected):
            parse(body)


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from references(inner)


@pytest.mark.asyncio
async def test_the_document_has_every_route_and_nothing_else() -> None:
    async with served() as state:
        response = await state.app.test_client().get("/openapi.json")
        found = await response.get_json()
        rules = {
            (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
            for rule in state.app.url_map.iter_rules()
            for method in (rule.methods or set()) - {"OPTIONS", "HEAD"}
        }
        listed = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
        assert listed - {("HEAD", "/")} == rules
        assert set(DESCRIBED) <= rules
        assert listed == set(routes_of(state.app))
    assert found["openapi"] == "3.1.0"
    names = [operation["operationId"] for methods in found["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    for reference in references(found):
        assert reference.removeprefix("#/components/schemas/") in found["components"]["schemas"]
    model = found["paths"]["/v1/models/{name}"]["get"]
    assert model["parameters"] == [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    assert found["paths"]["/health"]["get"]["security"] == [{}]
    for path, method in (("/v1/messages", "post"), ("/events", "get")):
        assert found["paths"][path][method]["responses"]["200"]["content"]["text/event-stream"] == {}
    assert set(found["paths"]["/health"]["get"]["responses"]) == {"200", "503", "4XX", "5XX"}


def test_a_route_that_nobody_described_is_there() -> None:
    found = document([("POST", "/slots/{id}")])
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    fault = {"description": "What is wrong", "content": {"application/json": error}}
    assert found["paths"] == {
        "/slots/{id}": {
            "post": {
                "summary": "POST /slots/{id}",
                "operationId": "post_slots_id",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                "responses": {
                    "200": {"description": "The answer"},
                    "4XX": fault,
                    "5XX": fault,
                },
            }
        }
    }


def assert_described(answer: Any, kind: Any) -> None:
    """The answer is of this type, and has no member that the type lacks."""
    assert_inside(answer, msgspec.to_builtins(msgspec.convert(answer, kind, strict=True)))


def assert_inside(part: Any, whole: Any) -> None:
    if isinstance(part, dict):
        assert part.keys() <= whole.keys()
        for name, value in part.items():
            assert_inside(value, whole[name])
    elif isinstance(part, list):
        assert len(part) == len(whole)
        for one, other in zip(part, whole, strict=True):
            assert_inside(one, other)
    else:
        assert part == whole


async def answer(state: Served, method: str, path: str, body: object = None) -> Any:
    client = state.app.test_client()
    response = await (state.send(path, body) if method == "POST" else client.get(path))
    return await response.get_json()


@pytest.mark.asyncio
async def test_answers_are_what_the_document_says() -> None:
    conversation = {"model": MODEL_ID, "messages": [{"role": "user", "content": "q"}], "max_tokens": 5}
    asked: list[tuple[str, str, object, Any]] = [
        ("GET", "/health", None, operations.Health),
        ("GET", "/v1/models", None, operations.ModelList),
        ("GET", f"/v1/models/{MODEL_ID}", None, operations.ModelEntry),
        ("GET", "/slots", None, list[operations.Slot]),
        ("GET", "/stats", None, operations.Stats),
        ("GET", "/props", None, operations.Props),
        ("GET", "/telemetry", None, operations.Telemetry),
        ("POST", "/v1/chat/completions", ask(), chat.ChatCompletion),
        ("GET", "/v1/load", None, operations.Load),
        ("POST", "/v1/messages", conversation, messages.Message),
        ("POST", "/v1/messages/count_tokens", conversation, messages.InputTokens),
        ("POST", "/v1/completions", {"model": MODEL_ID, "prompt": "p"}, texts.Completion),
        ("POST", "/v1/responses", {"model": MODEL_ID, "input": "q"}, responses.ResponseObject),
        ("POST", "/v1/responses/input_tokens", {"model": MODEL_ID, "input": "q"}, responses.InputTokenCount),
        ("POST", "/tokenize", {"content": "a\N{GRINNING FACE}"}, texts.TokenList),
        ("POST", "/tokenize", {"content": "a\N{GRINNING FACE}", "with_pieces": True}, texts.TokenList),
        ("POST", "/detokenize", {"tokens": [1]}, texts.Text),
        ("POST", "/apply-template", {"messages": conversation["messages"]}, texts.RenderedText),
        ("POST", "/v1/chat/completions", {}, common.Error),
        ("POST", "/v1/messages", {}, common.AnthropicError),
        ("GET", "/nope", None, common.Error),
    ]
    async with served() as state:
        for method, path, body, kind in asked:
            assert_described(await answer(state, method, path, body), kind)
        stored = (await answer(state, "POST", "/v1/responses", {"model": MODEL_ID, "input": "q"}))["id"]
        assert_described(await answer(state, "GET", f"/v1/responses/{stored}"), responses.ResponseObject)
        assert_described(await answer(state, "GET", f"/v1/responses/{stored}/input_items"), responses.ItemList)
        assert_described(await answer(state, "GET", "/requests/1"), operations.RequestTimeline)
        deleted = await state.app.test_client().delete(f"/v1/responses/{stored}")
        assert_described(await deleted.get_json(), responses.DeletedResponse)
