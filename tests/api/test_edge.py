"""The outermost layer: ids, key, CORS, size, loading, slow and vanishing peers; no framework needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import anyio
import orjson
import pytest

from ninfer.api import edge
from ninfer.api.edge import Edge, Message, exchange_of
from ninfer.config import HttpSettings
from ninfer.version import VERSION

pytestmark = pytest.mark.asyncio


class Client:
    """One request, fed and read as an ASGI server does."""

    def __init__(self, method: str = "POST", path: str = "/v1/x", body: list[bytes] | None = None,
                 gone: bool = False, **headers: str) -> None:  # fmt: skip
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }
        parts = body if body is not None else [b""]
        self.messages = [
            {"type": "http.request", "body": part, "more_body": n < len(parts) - 1} for n, part in enumerate(parts)
        ]
        if gone:
            self.messages = [{"type": "http.disconnect"}]
        self.received = 0
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        if self.received == len(self.messages):
            await anyio.sleep_forever()
        self.received += 1
        return self.messages[self.received - 1]

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def call(self, app: Edge) -> Client:
        await app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> Any:
        return orjson.loads(b"".join(message["body"] for message in self.sent[1:]))

    @property
    def is_complete(self) -> bool:
        return not self.sent[-1]["more_body"]


async def hello(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
    await send({"type": "http.response.body", "body": b'"hello"', "more_body": False})


async def never(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("the request was let through")


def over(app: Any = hello, is_loading: Callable[[], bool] = lambda: False, **settings: Any) -> Edge:
    return Edge(app, HttpSettings(**settings), is_loading)


async def test_every_answer_has_an_id_and_the_version() -> None:
    app = over()
    first, second = await Client().call(app), await Client(path="/v1/messages").call(app)
    found = re.fullmatch(r"req_([0-9a-f]{32})_1", first.headers["x-request-id"])
    assert found
    assert second.headers["x-request-id"] == f"req_{found[1]}_2"
    assert second.headers["request-id"] == second.headers["x-request-id"]
    assert "request-id" not in first.headers
    assert first.headers["x-ninfer-version"] == VERSION
    assert (first.headers["x"], first.body) == ("y", "hello")
    assert not any(name.startswith("access-control") for name in first.headers)


async def test_other_processes_have_other_ids() -> None:
    ids = {(await Client().call(over())).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nope"])
async def test_everything_is_loading_at_first(method: str, path: str) -> None:
    app = over(never, lambda: True, api_keys=("k",), cors=True)
    client = await Client(method, path).call(app)
    assert client.status == 503
    assert client.headers["retry-after"] == "2"
    assert client.headers["content-type"] == "application/json"
    assert (client.body["error"]["code"], client.body["error"]["type"]) == ("model_loading", "service_unavailable")


async def test_loading_in_the_other_protocol() -> None:
    client = await Client(path="/v1/messages").call(over(never, lambda: True))
    assert client.body["type"] == "error"
    assert client.body["error"]["type"] == "api_error"
    assert client.body["request_id"] == client.headers["request-id"]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer k\u00e9y"},
        {"x_api_key": "k\u00e9y"},
        {"Authorization": "Bearer wrong", "X_Api_Key": "k\u00e9y"},
    ],
)
async def test_the_key_passes_in_either_header(headers: dict[str, str]) -> None:
    assert (await Client(**headers).call(over(api_keys=("k\u00e9y",)))).status == 200


@pytest.mark.parametrize(("key", "status"), [("a", 200), ("bb", 200), ("c", 200), ("ab", 401), ("", 401)])
async def test_any_of_several_keys_passes(key: str, status: int) -> None:
    for headers in ({"x_api_key": key}, {"authorization": f"Bearer {key}"}):
        assert (await Client(**headers).call(over(api_keys=("a", "bb", "c")))).status == status


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "key"},
        {"authorization": "bearer key"},
        {"authorization": "Bearer key "},
        {"authorization": "Bearer ke"},
        {"x_api_key": "Bearer key"},
    ],
)
async def test_anything_else_does_not(headers: dict[str, str]) -> None:
    client = await Client(path="/nope", **headers).call(over(never, api_keys=("key",)))
    assert client.status == 401
    error = client.body["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    other = await Client(path="/v1/messages/count_tokens", **headers).call(over(never, api_keys=("key",)))
    assert (other.status, other.body["error"]["type"]) == (401, "authentication_error")


async def test_health_and_options_need_no_key() -> None:
    app = over(api_keys=("key",))
    assert (await Client("GET", "/health").call(app)).status == 200
    assert (await Client("OPTIONS", "/v1/models").call(app)).status == 200
    assert (await Client("POST", "/health").call(app)).status == 401


async def test_cross_origin_calls() -> None:
    app = over(cors=True, api_keys=("key",))
    preflight = await Client("OPTIONS", "/anything").call(app)
    assert (preflight.status, preflight.sent[1]["body"]) == (204, b"")
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert "X-Stainless-Runtime-Version" in preflight.headers["access-control-allow-headers"]
    refused = await Client("GET", "/v1/models").call(app)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "*")


async def test_a_declared_size_is_enough_to_refuse() -> None:
    app = over(never, max_request_bytes=10)
    client = await Client(content_length="11").call(app)
    assert (client.status, client.body["error"]["code"]) == (413, "request_too_large")
    other = await Client(path="/v1/messages", content_length="11").call(app)
    assert (other.status, other.body["error"]["type"]) == (413, "request_too_large")
    assert (await Client(content_length="10").call(over(max_request_bytes=10))).status == 200


async def test_an_early_answer_is_whole_before_the_rest_of_the_request_is_read() -> None:
    client = Client(body=[b"x"] * 50, content_length="50")
    await client.call(over(never, max_request_bytes=10))
    assert client.is_complete
    assert client.received == 50


async def test_an_application_that_answers_early_waits_for_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "LINGER_S", 30.0)
    client = Client(body=[b"x"] * 3)

    async def early(_scope: Any, receive: Any, send: Any) -> None:
        async def read() -> None:
            for _ in range(3):
                await receive()

        await send({"type": "http.response.start", "status": 404, "headers": []})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await send({"type": "http.response.body", "body": b"1", "more_body": False})
        assert client.received == 3

    await client.call(over(early))
    assert client.is_complete


async def test_a_request_that_never_ends_does_not_hold_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "LINGER_S", 0.01)
    client = Client(body=[b"x", b"y"], content_length="1000000")
    client.messages.pop()
    await client.call(over(never, max_request_bytes=10))
    assert client.is_complete


async def test_whatever_was_begun_is_let_go_at_the_end() -> None:
    closed: list[str] = []

    def closer(name: str) -> Any:
        async def close() -> None:
            await anyio.lowlevel.checkpoint()
            closed.append(name)

        return close

    async def begins(scope: Any, receive: Any, send: Any) -> None:
        exchange_of(scope).on_close(closer("first"))
        exchange_of(scope).on_close(closer("second"))
        await hello(scope, receive, send)

    async def fails(scope: Any, _receive: Any, _send: Any) -> None:
        exchange_of(scope).on_close(closer("failed"))
        raise ValueError

    await Client().call(over(begins))
    assert closed == ["second", "first"]
    with pytest.raises(ValueError):
        await Client().call(over(fails))
    assert closed[-1] == "failed"


async def test_cancellation_lets_go_too() -> None:
    closed = anyio.Event()

    async def close() -> None:
        await anyio.lowlevel.checkpoint()
        closed.set()

    async def waits(scope: Any, _receive: Any, _send: Any) -> None:
        exchange_of(scope).on_close(close)
        await anyio.sleep_forever()

    with anyio.move_on_after(0.01):
        await Client().call(over(waits))
    assert closed.is_set()


async def test_a_peer_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "SLOW_PEER_S", 0.01)
    client = Client()
    closed = anyio.Event()

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()
        client.sent.append(message)

    async def close() -> None:
        closed.set()

    async def streams(scope: Any, receive: Any, send: Any) -> None:
        exchange_of(scope).on_close(close)
        await hello(scope, receive, send)

    await over(streams)(client.scope, client.receive, stuck)
    assert closed.is_set()
    assert [message["type"] for message in client.sent] == ["http.response.start"]


async def test_other_kinds_of_connection_go_straight_through() -> None:
    seen: list[str] = []

    async def lifespan(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    client = Client()
    await over(lifespan, lambda: True)({"type": "lifespan"}, client.receive, client.send)
    assert seen == ["lifespan"]


async def test_a_websocket_is_refused_like_any_unknown_route() -> None:
    for settings, status, code in (({}, 404, "not_found"), ({"api_keys": ("k",)}, 401, "invalid_api_key")):
        client = Client(path="/v1/models")
        client.scope["type"] = "websocket"
        del client.scope["method"]
        await client.call(over(never, **settings))
        assert [message["type"] for message in client.sent] == [
            "websocket.http.response.start",
            "websocket.http.response.body",
        ]
        assert (client.status, client.body["error"]["code"]) == (status, code)
        assert client.headers["content-length"] == str(len(client.sent[1]["body"]))
        assert client.headers["x-ninfer-version"] == VERSION


async def test_a_key_is_compared_as_bytes() -> None:
    app = over(hello, api_keys=("grün",))
    client = Client()
    client.scope["headers"] = [(b"x-api-key", "grün".encode())]
    assert (await client.call(app)).status == 200
