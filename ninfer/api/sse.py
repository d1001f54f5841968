"""Server-sent events (serving spec, 2.6)."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def data_frame(message: Mapping[str, object]) -> bytes:
    """One frame without an event name."""
    return b"data: " + orjson.dumps(message) + b"\n\n"
