"""The outermost layer of the HTTP side, between the server and the framework (serving spec, 2.2 to 2.5).

Here stands what holds for every request before anybody looks at what it asks for: ids and headers, the answer while the
model loads, CORS, the key, the declared size. Here, too, ends every exchange: whatever was begun for it is let go when
the answer is written or the peer is gone.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import structlog

from ninfer.api.envelopes import Family, Fault, body_for, family_of, fault_of, headers_for, status_for
from ninfer.config import HttpSettings
from ninfer.errors import ModelLoading, RequestTooLarge
from ninfer.version import VERSION

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
WriteNow = Callable[[bytes], bool]

# Where the state of a scope has the server's short way for a piece of the answer's body (:mod:`ninfer.short_way`).
WRITE_NOW = "ninfer.write_now"
# A peer that takes no byte for so long while output waits counts as gone (serving spec, 2.6).
SLOW_PEER_S = 60.0
# How long an answer that was ready before its request was read waits for the rest of the request. Closing sooner would
# reset the connection, and with it an answer that the client has not read yet.
LINGER_S = 5.0

_BEARER = b"Bearer "
_EXCHANGE = "ninfer.exchange"
_INVALID_KEY = Fault(401, "invalid_request_error", "invalid_api_key", None, "The API key is missing or wrong.")
_NO_WEBSOCKETS = Fault(404, "invalid_request_error", "not_found", None, "There are no websockets here.")
_CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, OpenAI-Organization, OpenAI-Project, X-API-Key, Anthropic-Version, "
        b"Anthropic-Beta, X-Stainless-Arch, X-Stainless-Lang, X-Stainless-OS, X-Stainless-Package-Version, "
        b"X-Stainless-Retry-Count, X-Stainless-Runtime, X-Stainless-Runtime-Version",
    ),
    (b"access-control-expose-headers", b"x-request-id, request-id, Retry-After"),
    (b"access-control-max-age", b"86400"),
)

log = structlog.get_logger(__name__)


class PeerStalled(Exception):
    """The peer takes no output any more."""


class Exchange:
    """One request and its answer; `request_id` is what the client sees as ``x-request-id``, `trace_parent` its own
    ``traceparent``.
    """

    def __init__(
        self,
        request_id: str,
        receive: Receive,
        send: Send,
        headers: list[tuple[bytes, bytes]],
        write_now: WriteNow | None = None,
        trace_parent: str = "",
    ) -> None:
        self.request_id = request_id
        self.trace_parent = trace_parent
        self._write_now = write_now
        self._receive = receive
        self._send = send
        self._headers = headers
        self._request_read = anyio.Event()
        self._closers: list[Callable[[], Awaitable[None]]] = []

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Call this when the answer is completely written or the peer is gone."""
        self._closers.append(closer)

    async def close(self) -> None:
        """The exchange is over, in whatever way."""
        with anyio.CancelScope(shield=True):
            while self._closers:
                await self._closers.pop()()

    async def receive(self) -> Message:
        """The next message of the request."""
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._request_read.set()
        return message

    async def send(self, message: Message) -> None:
        """A message of the answer; raises PeerStalled."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            with anyio.move_on_after(LINGER_S):
                await self._request_read.wait()
        with anyio.move_on_after(SLOW_PEER_S) as scope:
            await self._send(message)
        if scope.cancelled_caught:
            raise PeerStalled

    def write_now(self, data: bytes) -> bool:
        """Give the peer a piece of the answer's body without waiting; False if it has to be sent instead.

        Only while nothing of the answer is on its way through :meth:`send`.
        """
        return self._write_now is not None and self._write_now(data)

    async def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer without the framework; what is left of the request is read and dropped."""
        length = [(b"content-length", str(len(body)).encode())] if status != 204 else []
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        with anyio.move_on_after(LINGER_S):
            while not self._request_read.is_set():
                await self.receive()
        self._request_read.set()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


def exchange_of(scope: Mapping[str, Any]) -> Exchange:
    """The exchange that the edge has opened for this request."""
    exchange = scope[_EXCHANGE]
    assert isinstance(exchange, Exchange)
    return exchange


class Edge:
    """The layer itself, an ASGI application around another.

    is_loading   whether the model is not resident yet
    """

    def __init__(self, app: App, settings: HttpSettings, is_loading: Callable[[], bool]) -> None:
        self._app = app
        self._settings = settings
        self._is_loading = is_loading
        self._process = secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._keys = [_digest(key.encode()) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._refuse_websocket({**scope, "method": "GET"}, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        family = family_of(scope["path"])
        request_id = self._next_id()
        write_now = scope.get("state", {}).get(WRITE_NOW)
        headers = self._headers(request_id, family)
        exchange = Exchange(request_id, receive, send, headers, write_now, _trace_parent(scope))
        scope[_EXCHANGE] = exchange
        try:
            await self._handle(scope, exchange, family)
        except PeerStalled:
            log.info("peer takes no output", x_request_id=request_id, seconds=SLOW_PEER_S)
        finally:
            await exchange.close()

    def _next_id(self) -> str:
        return f"req_{self._process}_{next(self._numbers)}"

    async def _refuse_websocket(self, scope: Scope, send: Send) -> None:
        family, request_id = family_of(scope["path"]), self._next_id()
        fault = self._fault(scope) or _NO_WEBSOCKETS
        body = body_for(fault, family, request_id)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [*headers_for(fault), *self._headers(request_id, family)]
        start = {"type": "websocket.http.response.start", "status": status_for(fault, family), "headers": headers}
        await send(start)
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})

    async def _handle(self, scope: Scope, exchange: Exchange, family: Family) -> None:
        fault = self._fault(scope)
        if fault is not None:
            headers = [(b"content-type", b"application/json"), *headers_for(fault)]
            body = body_for(fault, family, exchange.request_id)
            await exchange.respond(status_for(fault, family), headers, body)
        elif self._settings.cors and scope["method"] == "OPTIONS":
            await exchange.respond(204, [], b"")
        else:
            await self._app(scope, exchange.receive, exchange.send)

    def _headers(self, request_id: str, family: Family) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", request_id.encode()), (b"x-ninfer-version", VERSION.encode())]
        if family is Family.ANTHROPIC:
            headers.append((b"request-id", request_id.encode()))
        if self._settings.cors:
            headers.extend(_CORS)
        return headers

    def _fault(self, scope: Scope) -> Fault | None:
        if self._is_loading():
            return fault_of(ModelLoading())
        if not self._is_authorised(scope):
            return _INVALID_KEY
        declared = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"")
        if declared.isdigit() and int(declared) > self._settings.max_request_bytes:
            return fault_of(RequestTooLarge(self._settings.max_request_bytes))
        return None

    def _is_authorised(self, scope: Scope) -> bool:
        if not self._keys or scope["method"] == "OPTIONS":
            return True
        if scope["path"] == "/health" and scope["method"] in ("GET", "HEAD"):
            return True
        allowed = False
        for name, value in scope["headers"]:
            key = _sent_key(name.lower(), value)
            if key is not None:
                sent = _digest(key)
                for expected in self._keys:
                    allowed |= hmac.compare_digest(sent, expected)  # all of them, whichever fits
        return allowed


def _trace_parent(scope: Scope) -> str:
    """The trace that a client says it is part of (W3C Trace Context), or nothing."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"traceparent"), "")


def _sent_key(name: bytes, value: bytes) -> bytes | None:
    """The key that a header brings."""
    if name == b"x-api-key":
        return value
    return value.removeprefix(_BEARER) if name == b"authorization" and value.startswith(_BEARER) else None


def _digest(key: bytes) -> bytes:
    """What is compared instead of a key, so that neither its length nor its beginning shows in the time it takes."""
    return hashlib.sha256(key).digest()
