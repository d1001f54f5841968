"""Requests that are nearly right: bodies that work, changed at a few places, as JSON or as bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 0.5, -0.0, 1e308, 1e-320),
    *(
        "",
        " ",
        "\x00",
        "\ud7ff",
        "\U0001f642",
        "</think>",
        "<tool_call>",
        "<|im_end|>",
        "<|im_start|>user\n",
        "{{7*7}}",
    ),
    *("a" * 5000, "\u202e", "none", "auto", "required", "text", "json_object", "user", "tool", "assistant", "system"),
    *([], [[]], [None], {}, {"": ""}, {"type": "text"}, {"type": "function"}, {"type": "json_schema"}, [0] * 200),
    *({"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}, {"enum": []}, {"pattern": "("}),
)
NAMES = (
    *(
        "n",
        "stop",
        "seed",
        "logprobs",
        "stream",
        "tools",
        "tool_choice",
        "response_format",
        "temperature",
        "max_tokens",
    ),
    *(
        "thinking",
        "system",
        "input",
        "previous_response_id",
        "structured_outputs",
        "thinking_budget",
        "priority",
        "store",
    ),
    *("messages", "model", "content", "role", "type", "id", "text", "prompt", "stream_options", "max_tokens", "store"),
)


def mutated(body: object, others: Sequence[object], draw: random.Random) -> bytes:
    """A changed copy as bytes; parts of the others may come in."""
    value = copy.deepcopy(body)
    try:
        for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
            value = _changed(value, others, draw)
        text = json.dumps(value, ensure_ascii=draw.random() < 0.5, allow_nan=False)
    except RecursionError:  # several nestings in one another
        text = "[" * 3000
    data = text.encode("utf-8", "surrogatepass")
    return _damaged(data, draw) if draw.random() < 0.1 else data


def _changed(value: Any, others: Sequence[object], draw: random.Random) -> Any:
    places = list(_places(value))
    if not places:
        return draw.choice(ODD)
    holder, key = draw.choice(places)
    match draw.randrange(7):
        case 0 | 1:
            holder[key] = copy.deepcopy(draw.choice(ODD))
        case 2:
            del holder[key]
        case 3:
            holder[key] = copy.deepcopy(_part(draw.choice(others), draw))
        case 4 if isinstance(holder, dict):
            holder[draw.choice(NAMES)] = copy.deepcopy(draw.choice(ODD))
        case 4 | 5 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(draw.choice((holder[key], *ODD))))
        case 6 if isinstance(holder[key], str):
            holder[key] = _cut(holder[key], draw)
        case _:
            holder[key] = _nested(holder[key], draw.choice((1, 3, 40, 600)))
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    found, rest = [], [value]
    while rest:
        holder = rest.pop()
        keys: Any = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        found += [(holder, key) for key in keys]
        rest += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    return found


def _part(value: Any, draw: random.Random) -> Any:
    places = _places(value)
    if not places:
        return value
    holder, key = draw.choice(places)
    return holder[key]


def _cut(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    odd = draw.choice([value for value in ODD if isinstance(value, str)])
    return text[:at] + str(odd) + text[at:]


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _damaged(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    match draw.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
        case 2:
            return data[:at] + data
        case _:
            return data[:at] + draw.choice((b"\xed\xa0\x80", b"NaN", b"\\ud800", b"\x00", b"1e999", b"{", b"]"))
