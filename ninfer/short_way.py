"""A short way for the pieces of a streamed answer through hypercorn's HTTP/1.1 and HTTP/2.

A piece that goes the server's ordinary way costs a dozen events, coroutines and timers, which is more than everything
else that is done for a token. So the state of a scope holds a function, :data:`ninfer.api.edge.WRITE_NOW`: called with
a piece of the body, it frames the piece and hands it to the transport there and then. It says False if it cannot, and
then the ordinary way is to be taken: while the head of the answer is not sent, when the peer is slow, for anything that
is not a plain chunk. Both ways write in the order of their calls, because the server's own writes do not wait for each
other any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h2.exceptions
import h11
import hypercorn.asyncio.run
import hypercorn.protocol
import hypercorn.protocol.h2
import hypercorn.protocol.h11
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from ninfer.api.edge import WRITE_NOW, WriteNow
from ninfer.http2 import TolerantProtocol


class OrderedServer(TCPServer):
    """Writes at once what it is given, so that nothing is written past something that waits, and waits afterwards."""

    async def protocol_send(self, event: Event) -> None:
        """Act on an event of the protocol."""
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        try:
            self.writer.write(event.data)
            await self.writer.drain()
        except (ConnectionError, RuntimeError):
            await self.protocol.handle(Closed())


def idle_transport(send: Callable[[Event], Any]) -> asyncio.WriteTransport | None:
    """The transport behind the `send` of a protocol, if it would take more at once."""
    server = getattr(send, "__self__", None)
    assert isinstance(server, OrderedServer), "protocols send through the server that was put in place"
    transport = server.writer.transport
    return None if transport.is_closing() or transport.get_write_buffer_size() else transport


class DirectStream(HTTPStream):
    """Tells the application of the short way."""

    async def handle(self, event: StreamEvent) -> None:
        """Take an event of the peer's."""
        if isinstance(event, Request):
            protocol = getattr(self.send, "__self__", None)
            assert isinstance(protocol, DirectProtocol | DirectStreams)
            event.state[WRITE_NOW] = protocol.way_of(self.stream_id)
        await super().handle(event)


class DirectProtocol(H11Protocol):
    """HTTP/1.1 with the short way, for answers whose body is chunked."""

    _chunked = False

    async def stream_send(self, event: StreamEvent) -> None:
        """Act on an event of the answer."""
        if isinstance(event, Response) and isinstance(self.connection, h11.Connection):
            # What h11 makes of an answer without a length to a peer that understands chunks.
            named = any(name.lower() == b"content-length" for name, _ in event.headers)
            self._chunked = not named and self.connection.their_http_version == b"1.1"
        await super().stream_send(event)

    def way_of(self, _stream_id: int) -> WriteNow:
        """The short way of the answer to the current request."""
        return self.write_now

    def write_now(self, data: bytes) -> bool:
        """See the module; `data` is not empty."""
        transport = idle_transport(self.send)
        if transport is None or not self._chunked or self.connection.our_state is not h11.SEND_BODY:
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


class DirectStreams(TolerantProtocol):
    """HTTP/2 with the short way."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._begun: set[int] = set()  # streams whose answer has a head and no end

    async def stream_send(self, event: StreamEvent) -> None:
        """Act on an event of an answer."""
        if isinstance(event, EndBody | StreamClosed):
            self._begun.discard(event.stream_id)
        await super().stream_send(event)
        if isinstance(event, Response):
            self._begun.add(event.stream_id)

    def way_of(self, stream_id: int) -> WriteNow:
        """The short way of the answer on a stream."""
        return lambda data: self._write_now(stream_id, data)

    def _write_now(self, stream_id: int, data: bytes) -> bool:
        transport, waiting = idle_transport(self.send), self.stream_buffers.get(stream_id)
        if transport is None or waiting is None or waiting.buffer or stream_id not in self._begun:
            return False
        try:
            room = min(self.connection.local_flow_control_window(stream_id), self.connection.max_outbound_frame_size)
            if len(data) > room:
                return False
            self.connection.send_data(stream_id, data)
        except h2.exceptions.ProtocolError:  # the peer has given the stream up
            return False
        transport.write(self.connection.data_to_send())
        return True


def shorten_ways() -> None:
    """Put the short ways in place; doing it again changes nothing."""
    hypercorn.asyncio.run.TCPServer = OrderedServer  # type: ignore[attr-defined]
    hypercorn.protocol.h11.HTTPStream = DirectStream  # type: ignore[attr-defined]
    hypercorn.protocol.h2.HTTPStream = DirectStream  # type: ignore[attr-defined]
    hypercorn.protocol.H11Protocol = DirectProtocol  # type: ignore[attr-defined]
    hypercorn.protocol.H2Protocol = DirectStreams  # type: ignore[assignment,attr-defined]
