"""An answer as its pieces add up: reasoning, text and calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from ninfer.text.output import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallStarted,
)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call.

    arguments     JSON text; of a call that was cut, its beginning
    is_complete   whether it was closed
    """

    id: str
    name: str
    arguments: str
    is_complete: bool

    @property
    def has_object(self) -> bool:
        """Whether the arguments are a whole JSON object."""
        try:
            return self.is_complete and isinstance(orjson.loads(self.arguments), dict)
        except orjson.JSONDecodeError:
            return False


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    reasoning: str
    content: str
    calls: tuple[Call, ...]

    @property
    def is_cut(self) -> bool:
        """Whether the output ended inside a call."""
        return any(not call.is_complete for call in self.calls)


def answer_of(deltas: Sequence[Delta]) -> Answer:
    """The answer that the pieces join to."""
    reasoning: list[str] = []
    content: list[str] = []
    starts: list[ToolCallStarted] = []
    arguments: dict[int, list[str]] = {}
    ended: set[int] = set()
    for delta in deltas:
        match delta:
            case ReasoningDelta():
                reasoning.append(delta.text)
            case ContentDelta():
                content.append(delta.text)
            case ToolCallStarted():
                starts.append(delta)
                arguments[delta.index] = []
            case ToolCallArguments():
                arguments[delta.index].append(delta.text)
            case ToolCallEnded():
                ended.add(delta.index)
    calls = (Call(start.id, start.name, "".join(arguments[start.index]), start.index in ended) for start in starts)
    return Answer("".join(reasoning), "".join(content), tuple(calls))


def first_call_only(deltas: Sequence[Delta]) -> tuple[Delta, ...]:
    """The pieces without the calls behind the first one, for clients that want at most one at a time."""
    kinds = ToolCallStarted | ToolCallArguments | ToolCallEnded
    return tuple(delta for delta in deltas if not isinstance(delta, kinds) or delta.index == 0)
