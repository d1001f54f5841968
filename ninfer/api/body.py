"""A request body as JSON (serving spec, 2.5)."""

from __future__ import annotations

import orjson

from ninfer.api.fields import Object
from ninfer.errors import MalformedField

NESTING_MAX = 512


def parse_object(body: bytes) -> Object:
    """The one JSON object of a body; members keep their order, of a repeated key the last value counts.

    raises MalformedField
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise MalformedField("request body is not valid JSON") from None
    # Without that many opening brackets it cannot be nested too deeply, and strings only make the count larger.
    if body.count(b"[") + body.count(b"{") > NESTING_MAX and _depth_exceeds(value, NESTING_MAX):
        raise MalformedField("request body is not valid JSON")
    if not isinstance(value, dict):
        raise MalformedField("request body must be a JSON object")
    return value


def _depth_exceeds(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return False
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    return True
