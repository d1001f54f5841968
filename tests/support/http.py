"""The HTTP side over a running system with a fake engine, driven through the framework's test client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson
from quart import Quart

from ninfer.api.app import create_app
from ninfer.api.operations import Operations
from ninfer.api.preparation import Model
from ninfer.api.presets import presets_for
from ninfer.api.service import Service
from ninfer.config import GenerationSettings, HttpSettings, SchedulerSettings, Settings
from ninfer.constraints.compiler import Compiler
from ninfer.requestlog.start import StartFacts
from ninfer.requestlog.writer import RequestLog
from ninfer.scheduler.transitions import DeviceState
from ninfer.sensors import ReadSensors, sensors_of
from ninfer.text.template import ChatTemplate, builtin_source
from ninfer.tracing import Ended
from tests.support.engines import FakeEngine
from tests.support.system import TOKENIZER, Running, running

MODEL_ID = "tiny/model"
TEMPLATE = ChatTemplate(builtin_source("qwen3_8"), tuple(TOKENIZER.control_ids))
UNIX_TIME = 1_790_000_000.0
NO_GPU = sensors_of()
FACTS = StartFacts(
    public_id=MODEL_ID,
    artifact_path="tiny.ninfer",
    artifact_bytes=7,
    target="qwen3_8_27b",
    weights_id="plain",
    tensor_count=12,
    resource_count=4,
    load_s=0.25,
    pages=4096,
    max_pages=8192,
    memory_groups={"weights": 100, "kv": 50, "state": 20, "replay": 5, "workspace": 30, "graphs": 0},
    required_bytes=205,
    available_bytes=1000,
    headroom_bytes=0,
    thinks_by_default=True,
    presets={},
    environment={},
)


def model(max_context_tokens: int = 8192, template: ChatTemplate = TEMPLATE, *, enforces: bool = False) -> Model:
    presets = presets_for("qwen3_8_27b", {})
    return Model(MODEL_ID, max_context_tokens, TOKENIZER, template, presets, Compiler(TOKENIZER), enforces=enforces)


def says(text: str) -> FakeEngine:
    """An engine whose model answers every prompt with this text."""
    ids = TOKENIZER.encode_with_control(text)
    return FakeEngine(lambda _prompt: ids)


@dataclass
class Served:
    """An application and what is behind it."""

    app: Quart
    state: Running
    log: RequestLog
    log_path: Path | None

    async def post(self, body: object, **headers: str) -> Any:
        return await self.send("/v1/chat/completions", body, **headers)

    async def send(self, path: str, body: object, **headers: str) -> Any:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        return await self.app.test_client().post(path, data=data, headers=headers)

    def log_records(self) -> list[dict[str, Any]]:
        assert self.log_path is not None
        return [orjson.loads(line) for line in self.log_path.read_bytes().splitlines()]


@asynccontextmanager
async def served(
    engine: FakeEngine | None = None,
    *,
    http: HttpSettings | None = None,
    scheduler: SchedulerSettings | None = None,
    generation: GenerationSettings | None = None,
    log_path: Path | None = None,
    serving: bool = True,
    keep_alive_comment_s: float = 5.0,
    the_model: Model | None = None,
    trace: Callable[[Ended], None] | None = None,
    read_gpu: ReadSensors = NO_GPU,
) -> AsyncIterator[Served]:
    async with running(scheduler, engine=engine or says("</think>\n\nHello."), serving=serving) as state:
        limits = scheduler or SchedulerSettings()
        log = RequestLog(log_path, instance_id="serve-1-1", unix_time=lambda: UNIX_TIME)
        service = Service(
            gateway=state.system.gateway,
            model=the_model or model(),
            generation=generation or GenerationSettings(),
            request_log=log,
            keep_alive_comment_s=keep_alive_comment_s,
            unix_time=lambda: UNIX_TIME,
            most_requests=limits.lanes + limits.max_pending,
            trace=trace,
        )
        settings = Settings(
            artifact=Path("tiny.ninfer"),
            http=http or HttpSettings(),
            generation=service.generation,
            scheduler=scheduler or SchedulerSettings(prefix_reuse=False),  # what is reused has tests of its own
        )
        operations = Operations(settings, service.model, service.observed, lambda: FACTS, read_gpu)
        try:
            yield Served(create_app(service, operations), state, log, log_path)
        finally:
            log.close()


async def settle(state: Served) -> None:
    """Until nothing is left of any request, and the device rests."""
    machine = state.state.system.machine
    with anyio.fail_after(20):
        while machine.requests or machine.device is not DeviceState.IDLE:
            await anyio.lowlevel.checkpoint()
    machine.audit()


def ask(content: object = "Hi", **fields: object) -> dict[str, object]:
    return {"model": MODEL_ID, "messages": [{"role": "user", "content": content}], **fields}


def frames(body: bytes) -> list[str]:
    """The frames of a stream, without their blank lines."""
    text = body.decode()
    assert text.endswith("\n\n")
    return text[:-2].split("\n\n")


def chunks(body: bytes) -> list[dict[str, Any]]:
    """The JSON chunks of a stream that ended with [DONE]; keep-alive comments are left out."""
    found = [frame for frame in frames(body) if not frame.startswith(":")]
    assert found[-1] == "data: [DONE]"
    return [orjson.loads(frame.removeprefix("data: ")) for frame in found[:-1]]


def events(body: bytes) -> list[dict[str, Any]]:
    """The messages of a stream whose frames are named by them; keep-alive comments are left out."""
    found = []
    for frame in frames(body):
        if frame.startswith(":"):
            continue
        name, _, data = frame.partition("\n")
        found.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def joined(parts: Sequence[dict[str, Any]], member: str) -> str:
    """One kind of text of a stream."""
    return "".join(part["choices"][0]["delta"].get(member) or "" for part in parts if part["choices"])
