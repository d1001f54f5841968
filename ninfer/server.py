"""One serving process: artifact, actors, HTTP server, signals and periodic records, wired together (serving spec 1)."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import time
from asyncio import InvalidStateError
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskStatus
from hypercorn.asyncio import serve as serve_http
from hypercorn.config import Config
from quart import Quart

from ninfer.actors.eventlog import EventLog
from ninfer.actors.gateway import Gateway
from ninfer.actors.system import System
from ninfer.api.app import create_app, create_stats_app
from ninfer.api.operations import Operations
from ninfer.api.service import Service
from ninfer.api.web import WebFolder
from ninfer.artifact.container import Artifact
from ninfer.config import EngineSettings, Settings
from ninfer.constraints.compiler import Compiler
from ninfer.engine.devices import with_device
from ninfer.errors import StartupError
from ninfer.keys import with_keys
from ninfer.listener import GRACEFUL_S, base_url, bind_socket, server_config, start_listening
from ninfer.requestlog import records
from ninfer.requestlog.records import Guessing, Picture
from ninfer.requestlog.start import StartFacts, server_start
from ninfer.requestlog.writer import RequestLog
from ninfer.scheduler.records import EngineRecord
from ninfer.sensors import ReadSensors, sensors_of
from ninfer.served import (
    Builder,
    Served,
    builder_of,
    disk_folder,
    environment_of,
    open_served,
    settle_memory,
    slot_folder,
    with_host_pages,
)
from ninfer.snapshots.folder import clean_folder, lock, opened_folder
from ninfer.tracing import Tracing, open_tracing

# A worker thread that prepares a long prompt gives the interpreter back to the event loop this soon; the default is all
# of the 5 ms for which the loop may stand still.
SWITCH_INTERVAL_S = 0.001
STARTUP_STATUS = 1

log = structlog.get_logger(__name__)


def run_server(settings: Settings, listener: socket.socket, cuda_sync: str) -> int:
    """Serve on a bound socket until told to stop; returns the exit status.

    raises ArtifactError or StartupError for what keeps the server from starting
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with ExitStack() as open_things:
        if settings.default_artifact:
            log.info("no model was named: this is the embedded one, small and good at few things (README)")
        settings = replace(settings, engine=_engine_settings(settings), http=with_keys(settings.http))
        server_config(settings.http)  # what is wrong with it is said now, and with the folder too
        if settings.http.web_dir is not None:
            WebFolder(settings.http.web_dir)
        stats_listener = None
        if settings.http.stats_port:
            stats_listener = open_things.enter_context(bind_socket(settings.http.host, settings.http.stats_port))
        artifact = open_things.enter_context(_open_artifact(settings.artifact))
        served = open_served(artifact, settings)
        settings = with_host_pages(settings, served)
        prepare_slot_folder(settings)
        settings = open_things.enter_context(with_disk_folder(settings))
        request_log = _open_request_log(settings)
        open_things.callback(request_log.close)
        event_log = open_things.enter_context(open_event_log(settings, served))
        tracing = open_tracing(settings.log.otlp_endpoint, os.environ, time.time)
        if tracing is not None:
            open_things.callback(tracing.close)
        server = Server(settings, served, event_log, request_log, listener, stats_listener, cuda_sync, tracing)
        status, why = anyio.run(server.run, backend="asyncio")
        if status == STARTUP_STATUS:
            raise StartupError(why)
        if status:
            log.critical(why)
        return status


def _engine_settings(settings: Settings) -> EngineSettings:
    """With the device that is there. A scripted engine uses none."""
    engine = settings.engine
    return with_device(engine) if settings.script is None else replace(engine, device="cpu")


def prepare_slot_folder(settings: Settings) -> None:
    """Make the folder of slot files, and free it of what an earlier process has left half written."""
    folder = settings.slot_folder
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        removed = clean_folder(folder)
    except OSError as error:
        raise StartupError(_unusable("--slot-save-path", folder, error)) from None
    if removed:
        log.info("files that an earlier process left half written are removed", folder=str(folder), files=removed)


def _unusable(option: str, folder: Path, error: OSError) -> str:
    # Making a folder where a file is fails with "File exists", which tells nobody what to do.
    why = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror or error
    return f"{option} {folder} cannot be used: {why}"


@contextmanager
def with_disk_folder(settings: Settings) -> Iterator[Settings]:
    """With a name for the files that this process writes into the disk cache, whose folder is its own meanwhile."""
    folder = settings.disk_folder
    if folder is None:
        yield settings
        return
    with ExitStack() as held:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            owned = lock(held.enter_context(opened_folder(folder)))
            clean_folder(folder)
        except OSError as error:
            raise StartupError(_unusable("--disk-kv-cache-dir", folder, error)) from None
        if not owned:
            raise StartupError(f"--disk-kv-cache-dir {folder} is in use by another server")
        yield replace(settings, scheduler=replace(settings.scheduler, disk_name=f"kv-{secrets.token_hex(4)}"))


async def _warm(compiler: Compiler) -> None:
    """Beside the start, on a worker thread that nobody waits for."""
    await to_thread.run_sync(compiler.warm, abandon_on_cancel=True)


def _open_artifact(path: Path) -> Artifact:
    try:
        return Artifact.open(path)
    except OSError as error:
        raise StartupError(f"the model {path} cannot be read: {error.strerror or error}") from None


def open_event_log(settings: Settings, served: Served) -> EventLog:
    """The log that the settings name, if any; raises StartupError. A scripted engine is no model's, and not named."""
    bound, engine = served.bound, None
    if settings.script is None:
        engine = EngineRecord(settings.engine, bound.artifact.artifact_id, bound.target, bound.weights_id)
    return EventLog.open(settings.log.event_log, settings.log.log_content, engine)


def _open_request_log(settings: Settings) -> RequestLog:
    path = settings.log.request_log
    if path is not None and path.resolve() == settings.artifact.resolve():
        raise StartupError(f"--request-log-jsonl {path} is the model itself")
    event_log = settings.log.event_log
    if path is not None and event_log is not None and path.resolve() == event_log.resolve():
        raise StartupError(f"--request-log-jsonl and --event-log name the same file, {path}")
    started_us = time.time_ns() // 1000
    return RequestLog(
        path,
        instance_id=f"serve-{os.getpid()}-{started_us}",
        unix_time=time.time,
        max_bytes=settings.log.request_log_max_bytes,
        keep=settings.log.request_log_keep,
    )


@dataclass(slots=True)
class HttpTask:
    """The HTTP server on a bound socket; ends when `stopped` is set, and sets `closed` at its end.

    error   why it could not listen
    """

    app: Quart
    listener: socket.socket
    config: Config
    stopped: anyio.Event
    closed: anyio.Event = field(default_factory=anyio.Event)
    error: OSError | None = None

    async def run(self, may_listen: anyio.Event, give_up: Callable[[], None]) -> None:
        """Serve from when it may listen on; `give_up` is called when the port turns out to be taken after all."""
        await may_listen.wait()
        try:
            start_listening(self.listener, self.config)
        except OSError as error:
            self.error = error
            self.closed.set()
            give_up()
            return
        try:
            await serve_http(self.app, self.config, shutdown_trigger=self.stopped.wait)
        except InvalidStateError:
            # Called off while peers have still not answered the end of their TLS connections, the HTTP server asks for
            # an outcome that there is not yet (hypercorn 0.17 and 0.18, asyncio/run.py).
            if not self.stopped.is_set():
                raise
        finally:
            self.closed.set()


@dataclass(slots=True)
class _Learnt:
    """What a start has found out; nothing before the server is ready."""

    facts: StartFacts | None = None
    read_gpu: ReadSensors = field(default_factory=sensors_of)


@dataclass(frozen=True, slots=True)
class Server:
    """Everything one process runs: the actors, the HTTP server, the signals, the periodic records."""

    settings: Settings
    served: Served
    event_log: EventLog
    request_log: RequestLog
    listener: socket.socket
    stats_listener: socket.socket | None
    cuda_sync: str
    tracing: Tracing | None = None
    learnt: _Learnt = field(default_factory=_Learnt)

    async def run(self) -> tuple[int, str]:
        """Run to the end; returns the exit status and, if it is not 0, why. Raises StartupError."""
        settings, model = self.settings, self.served.model
        builder = builder_of(self.served, settings)
        system = System(
            settings.scheduler,
            builder,
            model.tokenizer,
            self.event_log,
            time.time,
            slots=slot_folder(self.served, settings),
            disk=disk_folder(self.served, settings),
            copy_min_match=settings.copy_min_match,
        )
        # Asked for now, because the file may be gone once it is loaded.
        artifact_bytes = settings.artifact.stat().st_size
        begun = time.monotonic()
        service = Service(
            gateway=system.gateway,
            model=model,
            generation=settings.generation,
            request_log=self.request_log,
            keep_alive_comment_s=settings.http.keep_alive_comment_s,
            unix_time=time.time,
            guessing=Guessing.of(settings),
            most_requests=settings.scheduler.lanes + settings.scheduler.max_pending,
            trace=self.tracing.record if self.tracing is not None else None,
        )
        may_listen, stopped = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._stop_on_signals, system)
            learnt = self.learnt
            operations = Operations(settings, model, service.observed, lambda: learnt.facts, lambda: learnt.read_gpu())
            http = [HttpTask(create_app(service, operations), self.listener, server_config(settings.http), stopped)]
            if self.stats_listener is not None:
                stats = create_stats_app(service, operations)
                http.append(HttpTask(stats, self.stats_listener, server_config(settings.http), stopped))
            for task in http:
                tasks.start_soon(task.run, may_listen, system.stop)
            if settings.log.stats_interval_s:
                tasks.start_soon(self._report_throughput, system.gateway)
            tasks.start_soon(_warm, model.compiler)
            status = await system.run(
                may_listen.set, lambda: self._announce(builder, artifact_bytes, time.monotonic() - begun)
            )
            # Connections that are cut off from here on are no faults, though asyncio would report each as one.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
            self.request_log.feed.end()
            stopped.set()
            if may_listen.is_set():
                with anyio.move_on_after(2 * GRACEFUL_S):
                    for task in http:
                        await task.closed.wait()
            tasks.cancel_scope.cancel()
        for error in (task.error for task in http if task.error is not None):
            raise StartupError(f"cannot listen: {error.strerror or error}")
        return status, system.last_words

    async def _stop_on_signals(self, system: System, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                log.info(f"{number.name}: stopping")
                system.stop()

    def _announce(self, builder: Builder, artifact_bytes: int, load_s: float) -> None:
        settle_memory()
        settings, model, bound = self.settings, self.served.model, self.served.bound
        plan = builder.memory
        assert plan is not None, "a system serves only after its builder has planned and loaded"
        for line in plan.table().splitlines():
            log.info(line)
        directory = bound.artifact.directory
        environment = environment_of(settings.engine.device)
        tensors = sum(hasattr(stored, "format") for stored in directory.objects)
        facts = StartFacts(
            public_id=model.public_id,
            artifact_path=str(settings.artifact),
            artifact_bytes=artifact_bytes,
            target=bound.target,
            weights_id=bound.weights_id,
            tensor_count=tensors,
            resource_count=len(directory.objects) - tensors,
            load_s=load_s,
            pages=plan.pages,
            max_pages=plan.max_pages,
            memory_groups=dict(plan.groups),
            required_bytes=plan.required,
            available_bytes=plan.available,
            headroom_bytes=plan.headroom,
            thinks_by_default=model.template.traits.thinks_by_default,
            presets={"thinking": asdict(model.presets.thinking), "non_thinking": asdict(model.presets.non_thinking)},
            environment=environment,
        )
        uuid = environment["gpu_uuid"]
        self.learnt.facts, self.learnt.read_gpu = facts, sensors_of(str(uuid) if uuid is not None else None)
        self.request_log.write("server_start", server_start(settings, facts))
        kind = " (the embedded model)" if settings.default_artifact else ""
        scripted = f" engine=scripted script={settings.script}" if settings.script is not None else ""
        log.info(f"ready: {base_url(settings.http)} model={model.public_id}{kind}{scripted} cuda_sync={self.cuda_sync}")

    async def _report_throughput(self, gateway: Gateway) -> None:
        """A record for every interval in which something happened, and one for the rest at the end."""

        def picture() -> Picture:
            return Picture(gateway.statistics(), gateway.kept())

        before, since = picture(), anyio.current_time()
        try:
            while True:
                await anyio.sleep(self.settings.log.stats_interval_s)
                now = picture()
                if not records.is_idle(before, now):
                    self._write_throughput(records.throughput(before, now, anyio.current_time() - since))
                    before, since = now, anyio.current_time()
        finally:
            now = picture()
            if not records.is_idle(before, now):
                self._write_throughput(records.throughput(before, now, anyio.current_time() - since))

    def _write_throughput(self, record: records.Record) -> None:
        self.request_log.write("throughput", record)
        log.info(records.throughput_line(record))
