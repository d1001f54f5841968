"""The routes of the Responses API (serving spec, 8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quart import Quart, Response, request

from ninfer.api import responses_stored as stored
from ninfer.api.edge import exchange_of
from ninfer.api.responses import count_input_tokens, create_response
from ninfer.api.responses_store import ResponseStore
from ninfer.api.service import Service
from ninfer.config import HttpSettings


def add_responses(app: Quart, service: Service, settings: HttpSettings, body: Callable[[], Awaitable[bytes]]) -> None:
    """Add them to the application, with a store of their own; `body` reads the body of the request."""
    store = ResponseStore(settings.response_store_max_records, settings.response_store_max_bytes)

    @app.post("/v1/responses")
    async def responses() -> Response:
        return await create_response(service, store, await body(), exchange_of(request.scope))

    @app.post("/v1/responses/input_tokens")
    async def responses_input_tokens() -> Response:
        return await count_input_tokens(service, store, await body())

    @app.post("/v1/responses/compact")
    async def responses_compact() -> Response:
        raise stored.refuse_compact()

    @app.get("/v1/responses/<response_id>")
    async def response(response_id: str) -> Response:
        return stored.get_response(store, response_id, _query())

    @app.delete("/v1/responses/<response_id>")
    async def deleted(response_id: str) -> Response:
        return stored.delete_response(store, response_id, _query())

    @app.get("/v1/responses/<response_id>/input_items")
    async def input_items(response_id: str) -> Response:
        return stored.list_input_items(store, response_id, _query())

    @app.post("/v1/responses/<response_id>/cancel")
    async def cancel(response_id: str) -> Response:
        raise stored.refuse_cancel()


def _query() -> stored.Query:
    return list(request.args.items(multi=True))
