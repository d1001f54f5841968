"""The application: routes, error envelopes, and the edge around them (serving spec, 2 to 5)."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import structlog
from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge

from ninfer.actors.gateway import NOT_YET, Gateway
from ninfer.api.chat import chat_completion
from ninfer.api.dashboard import add_dashboard
from ninfer.api.edge import Edge, exchange_of
from ninfer.api.envelopes import Fault, body_for, family_of, fault_of, headers_for, status_for
from ninfer.api.events import add_events
from ninfer.api.messages import count_tokens, create_message
from ninfer.api.openapi import add_openapi
from ninfer.api.operations import Operations
from ninfer.api.operations_routes import add_operations, add_stats
from ninfer.api.preparation import Model
from ninfer.api.responses_routes import add_responses
from ninfer.api.service import Service
from ninfer.api.text_routes import add_texts
from ninfer.api.web import Found, WebFolder, add_web_folder
from ninfer.config import HttpSettings
from ninfer.errors import ModelNotFound, NinferError, RequestTooLarge
from ninfer.scheduler.transitions import Lifecycle
from ninfer.version import VERSION

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")

log = structlog.get_logger(__name__)


def create_app(service: Service, operations: Operations) -> Quart:
    """The ASGI application over one gateway."""
    settings, gateway = operations.settings.http, service.gateway
    app = _bare_app(settings, gateway)
    if settings.web_dir is None:
        add_dashboard(app)
    else:
        _answer_unrouted(app, add_web_folder(app, WebFolder(settings.web_dir)))

    @app.get("/health")
    async def health() -> Response:
        return _health(gateway)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [model_object(service.model, gateway.ready_at)]})

    @app.get("/v1/models/<path:name>")
    async def model(name: str) -> Response:
        if name != service.model.public_id:
            raise ModelNotFound(name)
        return _json(model_object(service.model, gateway.ready_at))

    @app.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return await chat_completion(service, await _body(), exchange_of(request.scope))

    add_responses(app, service, settings, _body)

    @app.post("/v1/messages")
    async def messages() -> Response:
        return await create_message(service, await _body(), exchange_of(request.scope))

    @app.post("/v1/messages/count_tokens")
    async def messages_count_tokens() -> Response:
        return await count_tokens(service, await _body())

    @app.route("/", methods=["HEAD"])
    async def root() -> Response:
        return Response(b"", content_type="application/json")  # agents ask whether anybody is there

    add_texts(app, service, _body)
    add_operations(app, operations, gateway, service.request_log, service.unix_time)
    add_events(app, service.request_log.feed)
    add_openapi(app)
    return app


def create_stats_app(service: Service, operations: Operations) -> Quart:
    """The application of a listener of its own, on which the snapshot for monitors waits behind nothing (4.7)."""
    app = _bare_app(operations.settings.http, service.gateway)
    add_stats(app, operations, service.gateway, service.unix_time)
    return app


def _bare_app(settings: HttpSettings, gateway: Gateway) -> Quart:
    """An application without routes: limits, errors, the edge around it."""
    app = Quart("ninfer", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_request_bytes
    app.config["BODY_TIMEOUT"] = None
    app.config["RESPONSE_TIMEOUT"] = None
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = True

    @app.errorhandler(Exception)
    async def failed(error: Exception) -> Response:
        if isinstance(error, RequestEntityTooLarge):
            return _fault(fault_of(RequestTooLarge(settings.max_request_bytes)))
        if isinstance(error, HTTPException):
            response = _fault(_routing_fault(error))
            if isinstance(error, MethodNotAllowed) and error.valid_methods:
                response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
            return response
        if not isinstance(error, NinferError) or fault_of(error).status == 500:
            log.exception("a request failed", path=request.path, x_request_id=exchange_of(request.scope).request_id)
        return _fault(fault_of(error))

    app.asgi_app = Edge(app.asgi_app, settings, lambda: gateway.lifecycle in NOT_YET)  # type: ignore[method-assign,assignment,arg-type]
    return app


def _answer_unrouted(app: Quart, found: Found) -> None:
    """Let `found` answer where no route does, if it can."""

    @app.errorhandler(NotFound)
    async def unrouted(error: NotFound) -> Response:
        return await found() or _fault(_routing_fault(error))


async def _body() -> bytes:
    body = await request.get_data(cache=False, as_text=False)
    assert isinstance(body, bytes), "as it was asked for"
    return body


def model_object(model: Model, ready_at: float | None) -> Mapping[str, object]:
    """The entry of a model in the list of models (serving spec, 4.3)."""
    return {
        "id": model.public_id,
        "object": "model",
        "created": int(ready_at or 0),
        "owned_by": "ninfer",
        "context_window": model.max_context_tokens,
        "max_model_len": model.max_context_tokens,
        "context_length": model.max_context_tokens,
        "modalities": {"vision": False},
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "supported_endpoints": list(ENDPOINTS),
    }


def _health(gateway: Gateway) -> Response:
    serving = gateway.lifecycle is Lifecycle.SERVING
    return _json({"status": "ok" if serving else "unavailable", "version": VERSION}, 200 if serving else 503)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status=status, content_type="application/json")


def _routing_fault(error: HTTPException) -> Fault:
    if error.code == 405:
        message = f"{request.method} is not allowed on {request.path}."
        return Fault(405, "invalid_request_error", "method_not_allowed", None, message)
    if error.code == 404:
        return Fault(404, "invalid_request_error", "not_found", None, f"There is nothing at {request.path}.")
    code = error.code if error.code is not None and 400 <= error.code < 500 else 400
    return Fault(code, "invalid_request_error", None, None, error.name)


def _fault(fault: Fault) -> Response:
    family = family_of(request.path)
    body = body_for(fault, family, exchange_of(request.scope).request_id)
    response = Response(body, status=status_for(fault, family), content_type="application/json")
    for name, value in headers_for(fault):
        response.headers[name.decode()] = value.decode()
    return response
