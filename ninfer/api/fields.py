"""Checked reading of the members of a JSON object; every complaint names its field (serving spec, 5.1).

A member that is null counts as not given.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from ninfer.errors import MalformedField, RequestRejected

Object = Mapping[str, object]


def wrong(param: str, what: str) -> MalformedField:
    """The complaint that a field is not what it has to be."""
    return MalformedField(f"{param} must be {what}", param=param)


def refusal(code: str, message: str, param: str | None = None) -> RequestRejected:
    """The refusal of a request with a code of the catalogue."""
    return RequestRejected(message, code=code, param=param)


def boolean(source: Object, name: str, param: str | None = None) -> bool | None:
    """A boolean or None."""
    value = source.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(param or name, "a boolean")
    return value


def text(source: Object, name: str, param: str | None = None) -> str | None:
    """A string or None."""
    value = source.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong(param or name, "a string")
    return value


def integer(source: Object, name: str, low: int, high: int | None = None) -> int | None:
    """An integer of ``[low, high]`` or None."""
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) >= 2**63:
        raise MalformedField(f"{name} is out of range", param=name)  # too long for the JSON parser's integers
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, "an integer")
    if value < low or (high is not None and value > high):
        raise MalformedField(f"{name} is out of range", param=name)
    return value


def number(source: Object, name: str, low: float, high: float) -> float | None:
    """A finite number of ``[low, high]`` or None."""
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, "a number")
    if not math.isfinite(value) or not low <= value <= high:
        raise wrong(name, f"in [{low:g},{high:g}]")
    return float(value)


def mapping(source: Object, name: str, param: str | None = None) -> Object | None:
    """An object or None."""
    value = source.get(name)
    if value is not None and not isinstance(value, dict):
        raise wrong(param or name, "an object")
    return value


def array(source: Object, name: str, param: str | None = None) -> Sequence[object] | None:
    """An array or None."""
    value = source.get(name)
    if value is not None and not isinstance(value, list):
        raise wrong(param or name, "an array")
    return value


def word(source: Object, name: str, words: Collection[str], param: str | None = None) -> str | None:
    """One of a set of words or None; `invalid_value` for another string."""
    value = text(source, name, param)
    if value is not None and value not in words:
        raise refusal("invalid_value", f"{param or name} must be one of {', '.join(words)}", param or name)
    return value
