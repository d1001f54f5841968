"""Messages and events of the Messages API (serving spec, 9.3 and 9.4). Pure but for the id of a message."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence

import orjson

from ninfer.actors.messages import Admitted, Finished, Reply, TextDelta, Usage
from ninfer.api import sse
from ninfer.api.answers import Answer, answer_of
from ninfer.api.chat_response import constraint_member
from ninfer.api.envelopes import Family, Fault, body_for
from ninfer.text.output import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallStarted,
)
from ninfer.types import FinishReason

Event = dict[str, object]

_STOP_REASONS = {
    FinishReason.STOP_TOKEN: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.OUTPUT_LIMIT: "max_tokens",
    FinishReason.CONTEXT_CAPACITY: "model_context_window_exceeded",
    FinishReason.NONE: "max_tokens",
    FinishReason.CANCELLED: "max_tokens",
}


def new_id() -> str:
    """An id for a message."""
    return f"msg_{secrets.token_hex(8)}"


def signature_of(thinking: str) -> str:
    """The signature of a thinking block; it is not verified when it comes back."""
    return "nf1:" + hashlib.sha256(thinking.encode()).hexdigest()[:32]


def usage_object(usage: Usage) -> dict[str, int]:
    """The ``usage`` object; its three input counts add up to the prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def stop_members(finished: Finished, calls: int, is_cut: bool) -> dict[str, object]:
    """Why the message ended: calls before everything else, and a call that was cut is a limit."""
    reason = "max_tokens" if is_cut else "tool_use" if calls else _STOP_REASONS[finished.reason]
    return {
        "stop_reason": reason,
        "stop_sequence": finished.stop_string if reason == "stop_sequence" else None,
    }


def message_object(message_id: str, model: str) -> Event:
    """A message without an answer yet."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def whole_message(model: str, deltas: Sequence[Delta], finished: Finished) -> Event:
    """The body of an answer that is not streamed."""
    answer = answer_of(deltas)
    return {
        **message_object(new_id(), model),
        "content": list(_blocks(answer)),
        **stop_members(finished, len(answer.calls), answer.is_cut),
        "usage": usage_object(finished.usage),
        **constraint_member(finished),
    }


def _blocks(answer: Answer) -> Iterator[Event]:
    if answer.reasoning:
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": signature_of(answer.reasoning)}
    if answer.content or not (answer.reasoning or answer.calls):
        yield {"type": "text", "text": answer.content}
    for call in answer.calls:
        # As written: numbers that no float holds stay what they are.
        arguments = orjson.Fragment(call.arguments) if call.has_object else {}
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


class MessageStream:
    """The frames of one streamed message.

    model           the label that the client used
    prompt_tokens   length of the prompt
    request_id      what errors repeat
    shows_life      whether there is a ping at the beginning and at the admission, and not only after a silence
    """

    keep_alive = sse.PING

    def __init__(self, model: str, prompt_tokens: int, request_id: str, *, shows_life: bool = False) -> None:
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._request_id = request_id
        self._shows_life = shows_life
        self._started = False
        self._blocks = 0
        self._open: str | None = None  # type of the block that is open
        self._thinking: list[str] = []
        self._calls = 0
        self._closed_calls = 0

    def opening(self) -> bytes:
        return sse.PING if self._shows_life else b""

    def frames_of(self, reply: Reply) -> bytes:
        return b"".join(sse.event_frame(event) for event in self._events_of(reply))

    def failure(self, fault: Fault) -> bytes:
        return b"event: error\ndata: " + body_for(fault, Family.ANTHROPIC, self._request_id) + b"\n\n"

    def _events_of(self, reply: Reply) -> Iterator[Event]:
        match reply:
            case Admitted():
                yield self._start(reply.cached_tokens)
                if self._shows_life:
                    yield {"type": "ping"}
            case TextDelta():
                for delta in reply.deltas:
                    yield from self._delta(delta)
            case Finished():
                yield from self._finish(reply)

    def _start(self, cached_tokens: int) -> Event:
        self._started = True
        usage = usage_object(Usage(self._prompt_tokens, cached_tokens, 0, 0))
        return {"type": "message_start", "message": {**message_object(new_id(), self._model), "usage": usage}}

    def _finish(self, finished: Finished) -> Iterator[Event]:
        if not self._started:
            yield self._start(finished.usage.cached_tokens)
        yield from self._close()
        if not self._blocks:
            yield self._open_block({"type": "text", "text": ""})
            yield from self._close()
        stop = stop_members(finished, self._calls, self._closed_calls < self._calls)
        usage = usage_object(finished.usage)
        yield {"type": "message_delta", "delta": stop, "usage": usage, **constraint_member(finished)}
        yield {"type": "message_stop"}

    def _delta(self, delta: Delta) -> Iterator[Event]:
        match delta:
            case ReasoningDelta():
                yield from self._opened({"type": "thinking", "thinking": "", "signature": ""})
                self._thinking.append(delta.text)
                yield self._more({"type": "thinking_delta", "thinking": delta.text})
            case ContentDelta():
                yield from self._opened({"type": "text", "text": ""})
                yield self._more({"type": "text_delta", "text": delta.text})
            case ToolCallStarted():
                yield from self._close()
                self._calls += 1
                yield self._open_block({"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
            case ToolCallArguments():
                yield self._more({"type": "input_json_delta", "partial_json": delta.text})
            case ToolCallEnded():
                self._closed_calls += 1
                yield from self._close()

    def _opened(self, block: Mapping[str, object]) -> Iterator[Event]:
        """Begin this block unless one of its type is open."""
        if self._open != block["type"]:
            yield from self._close()
            yield self._open_block(block)

    def _open_block(self, block: Mapping[str, object]) -> Event:
        self._open = str(block["type"])
        self._blocks += 1
        return {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}

    def _more(self, delta: Mapping[str, object]) -> Event:
        return {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}

    def _close(self) -> Iterator[Event]:
        """End the open block, if there is one."""
        if self._open == "thinking":
            yield self._more({"type": "signature_delta", "signature": signature_of("".join(self._thinking))})
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._blocks - 1}
        self._open = None
