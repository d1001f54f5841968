"""What every task generator returns: a conversation whose last message is the answer that is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A whole conversation, ready for the chat template.

    messages    ends with an assistant message; `reasoning_content` is present in each assistant message
                exactly when `thinking` is set
    tools       declarations in the nested Chat form, or None
    thinking    whether the request has thinking switched on
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] | None = None
    thinking: bool = False


Generator = Callable[[Random, bool], Conversation]


class Turns:
    """Collects the messages of a conversation."""

    def __init__(self, thinking: bool, system: str | None = None) -> None:
        self._thinking = thinking
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def user(self, content: str) -> None:
        self._messages.append({"role": "user", "content": content})

    def tool(self, content: str) -> None:
        self._messages.append({"role": "tool", "content": content})

    def assistant(self, content: str, reasoning: str, calls: tuple[Message, ...] = ()) -> None:
        """`reasoning` is dropped unless the conversation thinks; `calls` are `{"name", "arguments"}`."""
        message: dict[str, object] = {"role": "assistant", "content": content}
        if self._thinking:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        self._messages.append(message)

    def finish(self, tools: tuple[Mapping[str, object], ...] | None = None) -> Conversation:
        return Conversation(tuple(self._messages), tools, self._thinking)
