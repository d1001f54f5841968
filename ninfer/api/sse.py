"""Server-sent events (serving spec, 2.6)."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def data_frame(message: Mapping[str, object]) -> bytes:
    """One frame without an event name."""
    return b"data: " + orjson.dumps(message) + b"\n\n"


def event_frame(message: Mapping[str, object]) -> bytes:
    """One frame that is named by the ``type`` of its message."""
    return b"event: " + str(message["type"]).encode() + b"\ndata: " + orjson.dumps(message) + b"\n\n"
