"""``GET /requests/{id}``: what happened to a request so far (docs/serving.md). Waits for nothing."""

from __future__ import annotations

from dataclasses import asdict

from ninfer.actors.gateway import Gateway
from ninfer.errors import RequestNotFound


def request_timeline(gateway: Gateway, wanted: str, unix_time: float) -> dict[str, object]:
    """The document of one request, by its number or its ``x-request-id``; raises RequestNotFound."""
    timeline = gateway.timeline(wanted)
    if timeline is None:
        raise RequestNotFound(wanted)
    members = asdict(timeline)
    return {
        "object": "ninfer.request",
        "id": members.pop("request_id"),
        "x_request_id": members.pop("name"),
        "arrived_unix_ms": int(1000 * (unix_time - timeline.age_s)),
        "prefix_reuse_path": members.pop("way"),
        **members,
    }
