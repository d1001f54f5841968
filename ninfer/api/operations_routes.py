"""The routes of operators and monitors (serving spec, 4.4 to 4.10). None of them waits for the device."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from anyio import move_on_after, to_thread
from quart import Quart, Response, request

from ninfer import sensors
from ninfer.actors.gateway import Gateway
from ninfer.api import operations as documents
from ninfer.api.exposition import CONTENT_TYPE
from ninfer.api.metrics import metrics
from ninfer.api.operations import Operations
from ninfer.api.requests import request_timeline
from ninfer.api.slots import act_on_slot
from ninfer.api.telemetry import telemetry
from ninfer.requestlog.writer import RequestLog


def add_operations(
    app: Quart, operations: Operations, gateway: Gateway, request_log: RequestLog, unix_time: Callable[[], float]
) -> None:
    """Add them to the application; `unix_time` is the wall clock in seconds."""

    add_stats(app, operations, gateway, unix_time)

    @app.get("/metrics")
    async def read_metrics() -> Response:
        body = metrics(gateway.statistics(), gateway.kept(), operations.observed, gateway.ready_at)
        return Response(body, content_type=CONTENT_TYPE)

    @app.get("/slots")
    async def read_slots() -> Response:
        views = await gateway.describe_slots()
        speculative = operations.settings.scheduler.guesses > 0
        return _json(
            documents.slots(gateway.statistics(), views, operations.model.max_context_tokens, speculative=speculative)
        )

    @app.post("/slots/<slot>")
    async def change_slot(slot: str) -> Response:
        body = await request.get_data(cache=False, as_text=False)
        assert isinstance(body, bytes), "as it was asked for"
        settings = operations.settings
        action = request.args.get("action")
        answer = await act_on_slot(
            gateway, slot, action, body, lanes=settings.scheduler.lanes, enabled=settings.slot_folder is not None
        )
        return _json(answer)

    async def gpu() -> documents.Record:
        with move_on_after(sensors.SECONDS):
            return await to_thread.run_sync(operations.read_gpu, abandon_on_cancel=True)
        return sensors.unavailable("the sensors do not answer")

    @app.get("/telemetry")
    async def read_telemetry() -> Response:
        seen, views = await gpu(), await gateway.describe_slots()
        now = gateway.statistics(), gateway.kept(), views, seen, request_log, gateway.ready_at, unix_time()
        return _json(telemetry(operations, *now))

    @app.get("/props")
    async def read_props() -> Response:
        return _json(documents.props(operations))

    @app.get("/v1/load")
    async def read_load() -> Response:
        return _json(documents.load(operations, gateway.statistics(), gateway.kept(), gateway.ready_at, unix_time()))


def add_stats(app: Quart, operations: Operations, gateway: Gateway, unix_time: Callable[[], float]) -> None:
    """Add the snapshot for monitors."""

    @app.get("/requests/<name>")
    async def read_request(name: str) -> Response:
        return _json(request_timeline(gateway, name, unix_time()))

    @app.get("/stats")
    async def read_stats() -> Response:
        return _json(documents.stats(operations, gateway.statistics(), gateway.kept(), unix_time()))


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), content_type="application/json")
