"""Two faults of hypercorn's HTTP/2, mended until a release of it does without (seen in 0.17 and 0.18).

* Data for a stream whose answer was complete ends the whole connection with a KeyError, and with it every other stream
  on it: pgjones/hypercorn issue 329, pull requests 312 and 334.
* A writer that waits for a full buffer is let go although the peer has taken nothing, so that a peer that reads nothing
  is never noticed and its answer piles up: davidbrochart/anycorn pull request 61 describes the same code.
"""

from __future__ import annotations

import h2.events
import hypercorn.protocol
import hypercorn.protocol.h2
from hypercorn.protocol.h2 import BUFFER_LOW_WATER, H2Protocol, StreamBuffer


class PatientBuffer(StreamBuffer):
    """Lets its writer go on when the buffer has drained, whatever was taken last."""

    async def pop(self, max_length: int) -> bytes:
        """Take out at most that much."""
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class TolerantProtocol(H2Protocol):
    """Drops data that comes for a stream that is over."""

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await self._flush()
            else:
                await super()._handle_events([event])


def mend_http2() -> None:
    """Put the mended parts in place; doing it again changes nothing."""
    hypercorn.protocol.h2.StreamBuffer = PatientBuffer  # type: ignore[misc]
    hypercorn.protocol.H2Protocol = TolerantProtocol  # type: ignore[attr-defined]
