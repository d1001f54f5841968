"""Events and commands as plain dictionaries and back, for the log and its replay.

A record is the fields of the dataclass plus ``type``, its class name. Tuples become lists, enums their names; the field
types say how to turn them back, so nothing is written down twice.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from typing import Any

from ninfer.config import EngineSettings
from ninfer.scheduler import commands, events
from ninfer.step import Transfer

# What the first line of an event log says: the log writes it, the replay demands it.
FORMAT = "ninfer_event_log"
FORMAT_VERSION = 6


@dataclasses.dataclass(frozen=True, slots=True)
class EngineRecord:
    """What the first line says of the engine behind the scheduler, for a replay that runs it again.

    artifact_id, target, weights_id   of the model's artifact
    """

    settings: EngineSettings
    artifact_id: str
    target: str
    weights_id: str


_TYPES: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (*typing.get_args(events.Event), *typing.get_args(commands.Command))
}


# Members of a union inside a message: their names are written with them.
_TRANSFERS: dict[str, type[Any]] = {cls.__name__: cls for cls in typing.get_args(Transfer)}


class BadRecord(ValueError):
    """A record that is not one of ours."""


def to_record(message: events.Event | commands.Command) -> dict[str, Any]:
    """The record of an event or a command."""
    return {"type": type(message).__name__, **_fields(message)}


def from_record(record: dict[str, Any]) -> Any:
    """The event or command of a record; raises :class:`BadRecord`."""
    fields = dict(record)
    cls = _TYPES.get(fields.pop("type", ""))
    if cls is None:
        raise BadRecord(f"unknown type {record.get('type')!r}")
    return _build(cls, fields)


def build(cls: type[Any], record: dict[str, Any]) -> Any:
    """A dataclass of known type from the dictionary of its fields; raises :class:`BadRecord`."""
    return _build(cls, record)


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of any frozen dataclass, ready for JSON."""
    return _fields(value)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        kind = {"type": type(value).__name__} if type(value).__name__ in _TRANSFERS else {}
        return {**kind, **_fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name
    return value


_HINTS: dict[type[Any], dict[str, Any]] = {}


def _hints(cls: type[Any]) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _build(cls: type[Any], fields: dict[str, Any]) -> Any:
    hints = _hints(cls)
    if set(hints) != set(fields):
        raise BadRecord(f"{cls.__name__} has the fields {sorted(hints)}, the record has {sorted(fields)}")
    return cls(**{name: _typed(hints[name], value) for name, value in fields.items()})


def _typed(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        if value is None:
            return None
        if hint == Transfer:
            return _transfer(value)
        (hint,) = (choice for choice in typing.get_args(hint) if choice is not types.NoneType)
        return _typed(hint, value)
    if origin is tuple:
        item, *others = typing.get_args(hint)
        if others != [Ellipsis]:
            return tuple(_typed(part, element) for part, element in zip((item, *others), value, strict=True))
        return tuple(_typed(item, element) for element in value)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise BadRecord(f"expected {hint.__name__}, found {value!r}")
    return value


def _transfer(value: Any) -> Any:
    fields = dict(value)
    name = fields.pop("type", None)
    cls = _TRANSFERS.get(name)
    if cls is None:
        raise BadRecord(f"unknown transfer {name!r}")
    return _build(cls, fields)
