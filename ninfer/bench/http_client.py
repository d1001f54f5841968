"""A small HTTP/1.1 client for streams: one connection per request, and the moment at which each event arrived."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio
import h11
from anyio.abc import ByteStream

from ninfer.errors import NinferError
from ninfer.options import OptionError

READ_BYTES = 1 << 16


class Refused(NinferError):
    """The server answered with another status than 200, or not in HTTP."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server: where it listens, and the key it wants. `path` is what stands before ``/v1``."""

    host: str
    port: int
    tls: bool
    path: str
    api_key: str | None

    @classmethod
    def of(cls, url: str, api_key: str | None) -> Target:
        """From a URL with or without ``/v1`` at its end; raises OptionError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise OptionError(f"--url '{url}': {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(f"--url '{url}' must begin with http:// or https:// and name a host")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), tls, path, api_key)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[ByteStream]:
        if self.tls:
            async with await anyio.connect_tcp(
                self.host, self.port, tls=True, ssl_context=ssl.create_default_context()
            ) as stream:
                yield stream
        else:
            async with await anyio.connect_tcp(self.host, self.port) as stream:
                yield stream

    def _request(self, method: str, path: str, body: bytes) -> h11.Request:
        headers = [("host", f"{self.host}:{self.port}"), ("connection", "close"), ("content-length", str(len(body)))]
        if body:
            headers.append(("content-type", "application/json"))
        if self.api_key is not None:
            headers.append(("authorization", f"Bearer {self.api_key}"))
        return h11.Request(method=method, target=self.path + path, headers=headers)

    async def parts(self, method: str, path: str, body: bytes = b"") -> AsyncGenerator[bytes, None]:
        """The body of a response, as it arrives. Raises Refused, or OSError for a connection that fails."""
        connection = h11.Connection(h11.CLIENT)
        async with self._connected() as stream:
            await stream.send(connection.send(self._request(method, path, body)) or b"")
            if body:
                await stream.send(connection.send(h11.Data(data=body)) or b"")
            await stream.send(connection.send(h11.EndOfMessage()) or b"")
            status, refusal = 200, b""
            while True:
                try:
                    event = connection.next_event()
                except h11.RemoteProtocolError as error:
                    raise Refused(f"what {self.host}:{self.port} says is no HTTP: {error}") from None
                if event is h11.NEED_DATA:
                    try:
                        connection.receive_data(await stream.receive(READ_BYTES))
                    except anyio.EndOfStream:
                        connection.receive_data(b"")
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    if status == 200:
                        yield bytes(event.data)
                    else:
                        refusal += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
        if status != 200:
            text = refusal.decode(errors="replace").strip()
            raise Refused(f"{method} {path} was answered with {status}: {text[:500]}")

    async def get(self, path: str) -> bytes:
        """The body of a page."""
        return b"".join([part async for part in self.parts("GET", path)])

    async def events(self, path: str, body: bytes) -> AsyncGenerator[tuple[float, bytes], None]:
        """The data of the server-sent events that answer a POST, each with the moment (monotonic seconds) at which it
        was whole. Comments are left out.
        """
        rest = b""
        async with aclosing(self.parts("POST", path, body)) as parts:
            async for part in parts:
                now = time.perf_counter()
                *whole, rest = (rest + part).split(b"\n\n")
                for event in whole:
                    if event.startswith(b"data: "):
                        yield now, event[len(b"data: ") :]
