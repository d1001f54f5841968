"""Cache markers of the Messages API: checked, without effect in this build (serving spec, 9.1 and 14.8)."""

from __future__ import annotations

from ninfer.api.fields import Object, refusal, text, word, wrong


def check_cache_control(source: Object, where: str = "") -> None:
    """The ``cache_control`` of a request, a block or a tool; raises RequestRejected."""
    value = source.get("cache_control")
    if value is None:
        return
    param = f"{where}.cache_control" if where else "cache_control"
    if not isinstance(value, dict) or set(value) - {"type", "ttl"}:
        message = f"{param} must be an object with the members type and ttl"
        raise refusal("parameter_not_supported", message, param)
    if word(value, "type", ("ephemeral",), f"{param}.type") is None:
        raise wrong(f"{param}.type", "'ephemeral'")
    text(value, "ttl", f"{param}.ttl")
