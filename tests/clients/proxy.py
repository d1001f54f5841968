"""Stands between a client and the server and keeps what the client sends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HOP = ("connection", "host", "keep-alive", "transfer-encoding", "accept-encoding")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and the status of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int


@dataclass
class Proxy:
    """Where it listens, and what it has seen."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy in front of a server on this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            upstream = HTTPConnection("127.0.0.1", port, timeout=120)
            kept = {name: value for name, value in headers.items() if name not in _HOP}
            upstream.request(self.command, self.path, body, kept)
            response = upstream.getresponse()
            answer = response.read()
            upstream.close()
            found = json.loads(body) if body else None
            seen.exchanges.append(Exchange(self.command, self.path, headers, found, response.status))
            self.send_response(response.status)
            self.send_header("content-type", response.headers.get("content-type", "application/json"))
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """The exchanges are kept instead."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen = Proxy(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
