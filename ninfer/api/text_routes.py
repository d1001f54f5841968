"""The routes that know no conversation: raw completions, and what the server makes of texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quart import Quart, Response, request

from ninfer.api import tokens
from ninfer.api.completions import completion
from ninfer.api.edge import exchange_of
from ninfer.api.service import Service


def add_texts(app: Quart, service: Service, body: Callable[[], Awaitable[bytes]]) -> None:
    """Add them to the application; `body` reads the body of the request."""

    @app.post("/v1/completions")
    async def completions() -> Response:
        return await completion(service, await body(), exchange_of(request.scope))

    @app.post("/tokenize")
    async def tokenize() -> Response:
        return await tokens.tokenize(service, await body())

    @app.post("/detokenize")
    async def detokenize() -> Response:
        return await tokens.detokenize(service, await body())

    @app.post("/apply-template")
    async def apply_template() -> Response:
        return await tokens.apply_template(service, await body())
