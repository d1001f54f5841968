"""``GET /openapi.json``: every route of the application, with the types of its bodies where we have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import orjson
from quart import Quart, Response

from ninfer.api.envelopes import Family, family_of
from ninfer.api.schema import chat, common, messages, operations, responses, texts
from ninfer.version import VERSION

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
_EVENTS = "text/event-stream"  # without a schema: readers of 3.1 differ in whether it is of the text or of each event
_OPEN: tuple[dict[str, list[str]], ...] = ({},)


@dataclass(frozen=True, slots=True)
class Described:
    """What is said of a route.

    request, answer   types of the bodies; None for a body that is not described, or that there is none
    streams           whether `stream` makes the answer a stream of events
    text              media type of an answer that is text
    statuses          of answers of this type beside 200
    is_open           whether no key is needed
    """

    summary: str
    request: object = None
    answer: object = None
    streams: bool = False
    text: str | None = None
    statuses: tuple[int, ...] = ()
    is_open: bool = False


DESCRIBED: Mapping[tuple[str, str], Described] = {
    ("GET", "/health"): Described("Whether the server serves", answer=operations.Health, statuses=(503,), is_open=True),
    ("GET", "/v1/models"): Described("The model that is served", answer=operations.ModelList),
    ("GET", "/v1/models/{name}"): Described("One model", answer=operations.ModelEntry),
    ("POST", "/v1/chat/completions"): Described(
        "Go on with a conversation", chat.ChatRequest, chat.ChatCompletion, streams=True
    ),
    ("POST", "/v1/responses"): Described(
        "Go on with items", responses.ResponsesRequest, responses.ResponseObject, streams=True
    ),
    ("POST", "/v1/responses/input_tokens"): Described(
        "Count the tokens of items", responses.InputTokensRequest, responses.InputTokenCount
    ),
    ("GET", "/v1/responses/{response_id}"): Described("A stored response", answer=responses.ResponseObject),
    ("DELETE", "/v1/responses/{response_id}"): Described("Forget a stored response", answer=responses.DeletedResponse),
    ("GET", "/v1/responses/{response_id}/input_items"): Described(
        "What was sent for a stored response", answer=responses.ItemList
    ),
    ("POST", "/v1/responses/{response_id}/cancel"): Described("Refused: nothing runs in the background"),
    ("POST", "/v1/responses/compact"): Described("Refused: there is no compaction"),
    ("POST", "/v1/messages"): Described(
        "Go on with a conversation", messages.MessagesRequest, messages.Message, streams=True
    ),
    ("POST", "/v1/messages/count_tokens"): Described(
        "Count the tokens of a conversation", messages.CountRequest, messages.InputTokens
    ),
    ("POST", "/v1/completions"): Described(
        "Go on with a text", texts.CompletionRequest, texts.Completion, streams=True
    ),
    ("POST", "/tokenize"): Described("Tokens of a text", texts.TokenizeRequest, texts.TokenList),
    ("POST", "/detokenize"): Described("Text of tokens", texts.DetokenizeRequest, texts.Text),
    ("POST", "/apply-template"): Described("The prompt of a conversation", texts.TemplateRequest, texts.RenderedText),
    ("GET", "/metrics"): Described("Metrics for Prometheus", text="text/plain"),
    ("GET", "/slots"): Described("The lanes", answer=list[operations.Slot]),
    ("GET", "/requests/{name}"): Described("What happened to a request so far", answer=operations.RequestTimeline),
    ("GET", "/stats"): Described("Counters and gauges", answer=operations.Stats),
    ("GET", "/telemetry"): Described("Everything of this moment", answer=operations.Telemetry),
    ("GET", "/props"): Described("Properties of the server", answer=operations.Props),
    ("GET", "/v1/load"): Described("Load of the server", answer=operations.Load),
    ("GET", "/events"): Described("The request log as it is written", text="text/event-stream"),
    ("GET", "/"): Described("A page for people", text="text/html"),
    ("GET", "/openapi.json"): Described("This document", answer=common.Json),
}


def add_openapi(app: Quart) -> None:
    """Add the route; the document has every route that the application has when it is first asked for."""
    made: list[bytes] = []

    @app.get("/openapi.json")
    async def openapi() -> Response:
        if not made:
            made.append(orjson.dumps(document(routes_of(app))))
        return Response(made[0], content_type=_JSON)


def routes_of(app: Quart) -> list[tuple[str, str]]:
    """Method and path of every route, paths with their parameters in braces."""
    found = []
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:[^:<>]+:)?([^<>]+)>", r"{\1}", rule.rule)
        methods = set(rule.methods or ()) - {"OPTIONS"}
        if "GET" in methods:
            methods.discard("HEAD")
        found += [(method, path) for method in methods]
    return sorted(found, key=lambda route: (route[1], route[0]))


def document(routes: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The OpenAPI document, version 3.1; a route that nobody has described stands in it with its path alone."""
    types = [kind for one in DESCRIBED.values() for kind in (one.request, one.answer) if kind is not None]
    types += [common.Error, common.AnthropicError]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, object]] = {}
    for method, path in routes:
        described = DESCRIBED.get((method, path), Described(f"{method} {path}"))
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, described, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "NInfer", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [*_OPEN, {"bearer": []}, {"key": []}],
    }


def _operation(
    method: str, path: str, described: Described, schema_of: Mapping[int, Mapping[str, object]]
) -> dict[str, object]:
    error = common.AnthropicError if family_of(path) is Family.ANTHROPIC else common.Error
    faults = {"description": "What is wrong", "content": {_JSON: {"schema": schema_of[id(error)]}}}
    responses: dict[str, object] = {
        str(status): _answer(method, described, schema_of) for status in (200, *described.statuses)
    }
    operation: dict[str, object] = {
        "summary": described.summary,
        "operationId": re.sub(r"[^A-Za-z0-9]+", "_", f"{method.lower()}{path}").strip("_"),
        "responses": {**responses, "4XX": faults, "5XX": faults},
    }
    names = re.findall(r"\{([^{}]+)\}", path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if described.request is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": schema_of[id(described.request)]}},
        }
    if described.is_open:
        operation["security"] = list(_OPEN)
    return operation


def _answer(method: str, described: Described, schema_of: Mapping[int, Mapping[str, object]]) -> dict[str, object]:
    answer: dict[str, object] = {"description": "The answer"}
    content: dict[str, object] = {}
    if described.answer is not None:
        content[_JSON] = {"schema": schema_of[id(described.answer)]}
    if described.streams:
        content[_EVENTS] = {}
    if described.text is not None:
        content[described.text] = {} if described.text == _EVENTS else {"schema": {"type": "string"}}
    if content and method != "HEAD":
        answer["content"] = content
    return answer
