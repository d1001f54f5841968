"""Items of the Responses API as the turns that templates take (serving spec, 8.3). Pure.

Neighbouring items of the assistant are one turn, in the order reasoning, text, calls; everything else ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ninfer.api.conversation import Conversation, Turn, assemble
from ninfer.api.fields import Object, refusal
from ninfer.api.responses_items import Item, arguments_of, namespace_of
from ninfer.api.responses_tools import CUSTOM_PARAMETER, declared_name

_REASONING, _CONTENT, _CALLS = range(3)
_PART_JOINT = "\n\n"


def conversation_of(instructions: str | None, items: Sequence[Item], message_count: int) -> Conversation:
    """The conversation of a request with all that it continues; raises RequestRejected.

    instructions    a turn of the developer before everything else
    message_count   items as they were sent
    """
    turns: list[Turn] = [{"role": "system", "content": instructions}] if instructions is not None else []
    group: _AssistantTurn | None = None
    media = 0
    for item in items:
        wire = item.wire
        kind = wire["type"]
        if kind in ("reasoning", "function_call", "custom_tool_call") or wire.get("role") == "assistant":
            group = group or _AssistantTurn()
            media += group.add(wire)
            continue
        if group is not None:
            turns.append(group.turn())
            group = None
        content, pictures = _joined(wire["content"] if kind == "message" else wire["output"])
        media += pictures
        if kind == "message":
            role = "user" if wire["role"] == "user" else "system"
            turns.append({"role": role, "content": content})
        else:
            turns.append({"role": "tool", "content": content, "tool_call_id": wire["call_id"]})
    if group is not None:
        turns.append(group.turn())
    return assemble(turns, media_items=media, message_count=message_count, field="input")


def has_query(items: Sequence[Item]) -> bool:
    """Whether a user has said anything."""
    return any(item.wire.get("role") == "user" for item in items)


def _joined(content: object) -> tuple[str, int]:
    """The text of a content, and its number of pictures."""
    if isinstance(content, str):
        return content, 0
    assert isinstance(content, list), "the normal form of items"
    pictures = sum(part["type"] in ("input_image", "input_video") for part in content)
    return "".join(part.get("text") or part.get("refusal") or "" for part in content), pictures


class _AssistantTurn:
    """Collects one turn."""

    def __init__(self) -> None:
        self._stage = _REASONING
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[Mapping[str, object]] = []

    def add(self, wire: Object) -> int:
        """Take an item; returns its number of pictures."""
        kind = wire["type"]
        stage = {"reasoning": _REASONING, "message": _CONTENT}.get(str(kind), _CALLS)
        if stage < self._stage:
            message = f"item '{wire['id']}' would have to be moved: a turn is reasoning, then messages, then calls"
            raise refusal("invalid_assistant_history", message, "input")
        self._stage = stage
        if stage == _REASONING:
            self._reasoning.append(_reasoning_text(wire))
            return 0
        if stage == _CONTENT:
            said, pictures = _joined(wire["content"])
            self._content.append(said)
            return pictures
        if any(call["id"] == wire["call_id"] for call in self._calls):
            raise refusal("invalid_tool_history", f"two calls have the id '{wire['call_id']}'", "input")
        self._calls.append(_call(wire))
        return 0

    def turn(self) -> Turn:
        """The turn of what was taken."""
        turn: dict[str, object] = {"role": "assistant", "content": "".join(self._content)}
        if self._reasoning:
            turn["reasoning_content"] = _PART_JOINT.join(self._reasoning)
        if self._calls:
            turn["tool_calls"] = self._calls
        return turn


def _reasoning_text(wire: Object) -> str:
    parts = wire["content"] or wire["summary"]  # what was thought rather than what is told of it
    assert isinstance(parts, list), "the normal form of items"
    return (_PART_JOINT if not wire["content"] else "").join(part["text"] for part in parts)


def _call(wire: Object) -> Mapping[str, object]:
    if wire["type"] == "custom_tool_call":
        arguments: Object | None = {CUSTOM_PARAMETER: wire["input"]}
    else:
        arguments = arguments_of(str(wire["arguments"]))
    name = declared_name(namespace_of(wire), str(wire["name"]))
    return {"id": wire["call_id"], "type": "function", "function": {"name": name, "arguments": arguments}}
