"""``ninfer-bench token-cost``: where the processor time of a streamed token goes, part by part, without a model.

Each part is measured by itself, in processor time of the one thread that does it, over many tokens, and the least of
several repeats counts: other work on the machine only ever adds. The parts:

  parse     bytes of a token to text, reasoning, stop strings and calls: what a lane does with a token
  encode    the text to a chunk of Chat Completions, as JSON in an event
  write     from the reply to the socket, over the real HTTP server and sockets, with a reader in another process;
            `ordinary` is the way of a piece that cannot be written at once
  system    of that, the system calls alone
  actors    everything else on the event loop: scheduler, lanes and the gateway to the device, with the scripted engine
  server    a whole server's event loop with as many clients; it holds all of the above, and readers that are woken for
            every token

What HTTP, parsing and detokenising add to a token is ``parse + encode + write``, or ``server - actors``, which also has
what the parts do to each other.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
from anyio.lowlevel import checkpoint
from hypercorn.asyncio import serve
from quart import Quart, Response, request

from ninfer.actors.eventlog import EventLog
from ninfer.actors.gateway import Ticket
from ninfer.actors.messages import Finished, GenerationRequest, TextDelta
from ninfer.actors.system import System
from ninfer.api.chat import _ChatStream
from ninfer.api.chat_request import ChatRequest
from ninfer.api.chat_response import Envelope
from ninfer.api.choices import Choices
from ninfer.api.edge import WRITE_NOW, Edge, exchange_of
from ninfer.api.envelopes import Fault
from ninfer.api.streams import event_stream
from ninfer.artifact.container import Artifact
from ninfer.bench.child import server, wait_ready
from ninfer.bench.clients import CHAT, served_model
from ninfer.bench.http_client import Target
from ninfer.bench.load import PREDICTED, metrics
from ninfer.bench.report import Json, Output, Parser, add_output, columns, head
from ninfer.config import HttpSettings, Settings
from ninfer.embedded import ARTIFACT
from ninfer.engine.scripted import Script, ScriptedEngine, ScriptLine
from ninfer.listener import bind_socket, server_config, start_listening
from ninfer.served import ScriptedBuilder, open_served
from ninfer.text.output import ContentDelta, OutputParser
from ninfer.text.tokenizer import Tokenizer
from ninfer.types import Sampling

GREEDY = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)

# What this kind of machine is to spend on HTTP, parsing and detokenising (issue 6).
WANTED_US = 60.0
TEXT = "The quick brown fox jumps over the lazy dog, and then it thinks about 1234 other things.\n"
FRAME_BYTES = 210
START_S = 120.0
WINDOW_S = 1.5
READER = """
import selectors, socket, sys
port, paths = int(sys.argv[1]), sys.argv[2:]
selector = selectors.DefaultSelector()
for path in paths:
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(f"POST {path} HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: 0\\r\\n\\r\\n".encode())
    selector.register(link, selectors.EVENT_READ)
while selector.get_map():
    for key, _ in selector.select():
        try:
            if key.fileobj.recv(65536):
                continue
        except OSError:
            pass
        selector.unregister(key.fileobj)
"""


def _parser() -> Parser:
    parser = Parser("ninfer-bench token-cost [options]", __doc__)
    add = parser.add_argument
    add("--streams", type=int, default=8, metavar="N", help="streams at once (8)")
    add("--tokens", type=int, default=1000, metavar="N", help="tokens of each stream in a repeat (1000)")
    add("--repeats", type=int, default=7, metavar="N", help="repeats, of which the least counts (7)")
    add_output(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises NinferError or OSError."""
    options = _parser().parse_args(argv)
    output = Output.of(options)
    settings = Settings(ARTIFACT)
    settings = replace(settings, scheduler=replace(settings.scheduler, lanes=options.streams))
    with Artifact.open(ARTIFACT) as artifact:
        served = open_served(artifact, settings)
        tokenizer = served.model.tokenizer
        sizes = (options.streams, options.tokens, options.repeats)
        ordinary, short = anyio.run(_write, *sizes, backend="asyncio")
        actors = anyio.run(_actors, settings, served.bound.text, tokenizer, *sizes, backend="asyncio")
    parse = _least(options.repeats, lambda: _parse(tokenizer, options.tokens))
    encode = _least(options.repeats, lambda: _encode(tokenizer, options.tokens))
    parts = {
        "parse": parse,
        "encode": encode,
        "write": short,
        "ordinary": ordinary,
        "system": _least(options.repeats, lambda: _system(*sizes[:2])),
        "actors": actors - parse,
        "server": anyio.run(_server, options.streams, options.repeats),
    }
    adds = parse + encode + short
    report: Json = {
        **head("ninfer_token_cost_report", argv),
        "settings": {"streams": options.streams, "tokens": options.tokens, "repeats": options.repeats},
        "us_per_token": parts,
        "adds_us": adds,
        "adds_by_difference_us": parts["server"] - parts["actors"],
        "wanted_us": WANTED_US,
    }
    output.deliver(report, lambda: table(report))
    return 0


def _least(repeats: int, measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(repeats))


def _parse(tokenizer: Tokenizer, tokens: int) -> float:
    ids = tokenizer.encode(TEXT)
    parser = OutputParser(tokenizer.text_bytes, stop_ids=frozenset(tokenizer.stop_ids), opens_think=True)
    parser.feed(tokenizer.encode_with_control("so\n</think>\n\n"))
    batches = [(ids[at % len(ids)],) for at in range(tokens)]
    begun = time.thread_time()
    for batch in batches:
        parser.feed(batch)
    return 1e6 * (time.thread_time() - begun) / tokens


def _encode(tokenizer: Tokenizer, tokens: int) -> float:
    session = cast(Choices, SimpleNamespace(sessions=(None,)))
    asked = cast(ChatRequest, SimpleNamespace(include_usage=False, logprobs=None, timings_per_token=False))
    writer = _ChatStream(asked, session, Envelope("chatcmpl-0123456789abcdef", 1_790_000_000, "embedded"), tokenizer)
    replies = [TextDelta((ContentDelta(f" word{at % 10}"),), at, 0.0, 1.0) for at in range(tokens)]
    begun = time.thread_time()
    for reply in replies:
        writer.frames_of((0, reply))
    return 1e6 * (time.thread_time() - begun) / tokens


def _system(streams: int, tokens: int) -> float:
    """The system calls that write, one to each stream in turn."""
    data = b"x" * FRAME_BYTES
    with socket.create_server(("127.0.0.1", 0)) as listener, _reader(listener.getsockname()[1], streams):
        links = [listener.accept()[0] for _ in range(streams)]
        spent = 0.0
        for _ in range(tokens):
            begun = time.thread_time()
            for link in links:
                link.sendall(data)
            spent += time.thread_time() - begun
            time.sleep(0)  # for the reader
        for link in links:
            link.close()
    return 1e6 * spent / tokens / streams


class _reader:  # noqa: N801
    """A process that reads so many streams to their ends."""

    def __init__(self, port: int, streams: int) -> None:
        paths = [f"/{at}" for at in range(streams)]
        self._process = subprocess.Popen([sys.executable, "-c", READER, str(port), *paths])

    def __enter__(self) -> None:
        return

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()


class _Feed:
    """A source whose replies are frames."""

    is_over = False

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.begun = anyio.Event()
        self._news: Callable[[], None] | None = None

    def notice(self, news: Callable[[], None] | None) -> None:
        self._news = news
        self.begun.set()

    def reply_at_hand(self) -> bytes | None:
        return self.waiting.popleft() if self.waiting else None

    def fail(self, message: str) -> None:
        raise AssertionError(message)

    def leave(self, frame: bytes) -> None:
        self.waiting.append(frame)
        if self._news is not None:
            self._news()


class _Frames:
    keep_alive = b""

    def opening(self) -> bytes:
        return b"x"

    def frames_of(self, reply: bytes) -> bytes:
        return reply

    def failure(self, fault: Fault) -> bytes:
        raise AssertionError(fault)


async def _write(streams: int, tokens: int, repeats: int) -> tuple[float, float]:
    """On the ordinary way, and on the short one."""
    frame = b"data: " + b"x" * (FRAME_BYTES - 8) + b"\n\n"
    found = []
    for short in (False, True):
        async with _streaming(streams, short) as feeds:
            spent = []
            for _ in range(repeats):
                begun = time.thread_time()
                for _ in range(tokens):
                    for feed in feeds:
                        feed.leave(frame)
                    await checkpoint()
                    while any(feed.waiting for feed in feeds):
                        await checkpoint()
                spent.append(1e6 * (time.thread_time() - begun) / tokens / streams)
        found.append(min(spent))
    return found[0], found[1]


@asynccontextmanager
async def _streaming(streams: int, short: bool) -> AsyncIterator[list[_Feed]]:
    feeds = [_Feed() for _ in range(streams)]
    app = Quart("cost")

    @app.post("/<int:number>")
    async def stream(number: int) -> Response:
        return event_stream(feeds[number], _Frames(), exchange_of(request.scope), 3600.0)

    edge = Edge(app.asgi_app, HttpSettings(), lambda: False)  # type: ignore[arg-type]

    async def framework(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if not short:
            scope.get("state", {}).pop(WRITE_NOW, None)
        await edge(scope, receive, send)

    app.asgi_app = framework  # type: ignore[method-assign,assignment]
    listener = bind_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = server_config(HttpSettings())
    config.graceful_timeout = 0.1
    start_listening(listener, config)
    stopped = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve(app, config, shutdown_trigger=stopped.wait))
        with _reader(port, streams):
            for feed in feeds:
                await feed.begun.wait()
            yield feeds
        stopped.set()


async def _actors(
    settings: Settings, config: Any, tokenizer: Tokenizer, streams: int, tokens: int, repeats: int
) -> float:
    """Processor time of the event loop's thread for a token of a request that nobody serves over HTTP."""
    output = "</think>\n\n" + TEXT * (tokens // 10)
    with tempfile.TemporaryDirectory(prefix="ninfer-bench-") as folder:
        engine = ScriptedEngine(Script([ScriptLine("", output)], tokenizer), Path(folder) / "log", streams)
        builder = ScriptedBuilder(engine, config, settings.engine)
        system = System(settings.scheduler, builder, tokenizer, EventLog(None), time.time)
        async with anyio.create_task_group() as tasks:
            ready = anyio.Event()
            tasks.start_soon(system.run, lambda: None, ready.set)
            await ready.wait()
            spent = [await _round_of(system, tokenizer, streams, tokens) for _ in range(repeats)]
            system.stop()
    return min(spent)


async def _round_of(system: System, tokenizer: Tokenizer, streams: int, tokens: int) -> float:
    prompt = tuple(tokenizer.encode_with_control("<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n<think>\n"))
    wanted = GenerationRequest(prompt, True, GREEDY, tokens, (), tuple(tokenizer.stop_ids))
    listeners = [_Listener(await system.gateway.arrive()) for _ in range(streams)]
    before, begun = system.machine.statistics().totals.decode_tokens, time.thread_time()
    for listener in listeners:
        await listener.ticket.submit(wanted)
    for listener in listeners:
        await listener.ended.wait()
    spent = time.thread_time() - begun
    drawn = system.machine.statistics().totals.decode_tokens - before
    for listener in listeners:
        await listener.ticket.release()
    return 1e6 * spent / drawn


class _Listener:
    """Takes the replies to a request as they come, and does nothing with them."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.ended = anyio.Event()
        ticket.notice(self._hear)

    def _hear(self) -> None:
        if not self.ended.is_set() and isinstance(self.ticket.replies.receive_nowait(), Finished):
            self.ended.set()


async def _server(streams: int, repeats: int) -> float:
    """Processor time of a server's first thread, which runs the event loop, for each streamed token."""
    with tempfile.TemporaryDirectory(prefix="ninfer-bench-") as folder:
        script = Path(folder) / "script.jsonl"
        script.write_text(json.dumps({"match": "", "output": "</think>\n\n" + "one two three four " * 1000}) + "\n")
        own = ["--engine", "scripted", "--script", str(script), "--max-concurrency", str(streams)]
        with server(own, Path(folder) / "requests.jsonl", None) as (process, target):
            await wait_ready(target, process, START_S)
            body = {"model": str((await served_model(target))["id"]), "stream": True}
            asked = json.dumps({**body, "messages": [{"role": "user", "content": "Go."}]}).encode()
            async with anyio.create_task_group() as tasks:
                for _ in range(streams):
                    tasks.start_soon(_stream_on, target, asked)
                await anyio.sleep(1)
                found = [await _window(target, process.pid) for _ in range(repeats)]
                tasks.cancel_scope.cancel()
    return min(found)


async def _stream_on(target: Target, asked: bytes) -> None:
    while True:
        async with aclosing(target.parts("POST", CHAT, asked)) as parts:
            async for _ in parts:
                pass


async def _window(target: Target, pid: int) -> float:
    tokens, spent = (await metrics(target))[PREDICTED], thread_seconds(pid)
    await anyio.sleep(WINDOW_S)
    tokens, spent = (await metrics(target))[PREDICTED] - tokens, thread_seconds(pid) - spent
    return 1e6 * spent / tokens


def thread_seconds(pid: int) -> float:
    """Processor time of a process's first thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def table(report: Mapping[str, Any]) -> str:
    """One part per line."""
    rows = [(name, f"{value:.1f} µs") for name, value in report["us_per_token"].items()]
    rows.append(("parse + encode + write", f"{report['adds_us']:.1f} µs"))
    rows.append(("server - actors", f"{report['adds_by_difference_us']:.1f} µs"))
    rows.append(("wanted", f"{report['wanted_us']:.1f} µs"))
    return columns(rows)
