"""The output items of a response as they grow, and the events that tell of it (serving spec, 8.4 and 8.5). Pure but
for new ids.

The whole answer is built by the same steps as the streamed one, so that the two are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ninfer.api.custom_input import CustomInput
from ninfer.api.logprobs import entries
from ninfer.api.responses_items import Item, arguments_of, item_of, new_id
from ninfer.api.responses_tools import ResponsesTools, Target
from ninfer.step import TokenLogprobs
from ninfer.text.output import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallStarted,
)
from ninfer.text.tokenizer import Tokenizer

Event = dict[str, object]


class OutputItems:
    """Items in the order reasoning, message, calls; only the last one may be open.

    tools      what the names of called functions stand for
    tokenizer  of the tokens that log-probabilities are told of
    """

    def __init__(self, tools: ResponsesTools, tokenizer: Tokenizer) -> None:
        self._tools = tools
        self._tokenizer = tokenizer
        self._closed: list[Event] = []
        self._open: _Reasoning | _Message | _Call | None = None

    @property
    def closed(self) -> list[Event]:
        """The items that are complete; after :meth:`finish` all of them."""
        return list(self._closed)

    @property
    def is_cut(self) -> bool:
        """Whether a call is open. After the last piece that means that the output ended inside it."""
        return isinstance(self._open, _Call)

    def add(self, delta: Delta, told: Sequence[TokenLogprobs] = ()) -> Iterator[Event]:
        """The events of a piece of the answer; what is told of the tokens of its text comes with that."""
        match delta:
            case ReasoningDelta():
                if not isinstance(self._open, _Reasoning):
                    yield from self._begin(_Reasoning(len(self._closed)))
                yield from self._more(delta.text)
            case ContentDelta():
                if not isinstance(self._open, _Message):
                    yield from self._close("completed")
                    yield from self._begin(_Message(len(self._closed)))
                assert isinstance(self._open, _Message)
                yield from self._open.more(delta.text, entries(told, self._tokenizer))
            case ToolCallStarted():
                yield from self._close("completed")
                yield from self._begin(_Call(len(self._closed), delta.id, self._tools.target(delta.name)))
            case ToolCallArguments():
                yield from self._more(delta.text)
            case ToolCallEnded():
                yield from self._close("completed")

    def finish(self, status: str) -> list[Event]:
        """The events of the end. The item that is still open, or the empty message of no output, gets the status."""
        events: list[Event] = []
        if self._open is None and not self._closed:
            events += self._begin(_Message(0))
        events += self._close(status)
        return events

    def history(self) -> tuple[Item, ...]:
        """The items as a continuation takes them: without calls that it could not, and without an empty message."""
        return tuple(item_of(_as_history(item)) for item in self._closed if _is_history(item))

    def _begin(self, item: _Reasoning | _Message | _Call) -> Iterator[Event]:
        self._open = item
        return item.begin()

    def _more(self, text: str) -> Iterator[Event]:
        assert self._open is not None, "a piece belongs to an item"
        return self._open.more(text)

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            item, self._open = self._open, None
            self._closed.append(item.item(status))
            yield from item.end(status)


def _as_history(item: Event) -> Event:
    """The item in its normal form, in which nothing is told of tokens."""
    if item["type"] != "message":
        return {**item, "status": "completed"}
    content = item["content"]
    assert isinstance(content, list)
    return {**item, "status": "completed", "content": [{**part, "logprobs": []} for part in content]}


def _is_history(item: Event) -> bool:
    if item["type"] == "message":
        content = item["content"]
        assert isinstance(content, list)
        return bool(content[0]["text"])
    if item["type"] == "reasoning":
        return True
    arguments = str(item["arguments"]) if item["type"] == "function_call" else ""
    return item["status"] == "completed" and arguments_of(arguments) is not None


class _Text:
    """An item with one part of text."""

    part_kind: str

    def __init__(self, index: int, kind: str) -> None:
        self._index = index
        self._id = new_id(kind)
        self._pieces: list[str] = []
        self._told: list[Event] = []

    @property
    def _text(self) -> str:
        return "".join(self._pieces)

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.output_item.added", "output_index": self._index, "item": self._empty()}
        yield {"type": "response.content_part.added", **self._place(), "part": self.part("", [])}

    def more(self, text: str, told: list[Event] | None = None) -> Iterator[Event]:
        self._pieces.append(text)
        yield {"type": f"response.{self.part_kind}.delta", **self._place(), "delta": text, **self.extra(told or [])}

    def end(self, status: str) -> Iterator[Event]:
        text = self._text
        yield {"type": f"response.{self.part_kind}.done", **self._place(), "text": text, **self.extra(self._told)}
        yield {"type": "response.content_part.done", **self._place(), "part": self.part(text, self._told)}
        yield {"type": "response.output_item.done", "output_index": self._index, "item": self.item(status)}

    def part(self, text: str, told: list[Event]) -> Event:
        """The part with this text, and what is told of its tokens."""
        return {"type": self.part_kind, "text": text}

    def extra(self, told: list[Event]) -> Event:
        """Members of the events of the text, of whose tokens this is told."""
        return {}

    def item(self, status: str) -> Event:
        """The item with what it holds so far."""
        return {**self._empty(), "status": status, "content": [self.part(self._text, self._told)]}

    def _empty(self) -> Event:
        raise NotImplementedError

    def _place(self) -> Event:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}


class _Reasoning(_Text):
    part_kind = "reasoning_text"

    def __init__(self, index: int) -> None:
        super().__init__(index, "reasoning")

    def _empty(self) -> Event:
        return {"id": self._id, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}


class _Message(_Text):
    part_kind = "output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index, "message")

    def more(self, text: str, told: list[Event] | None = None) -> Iterator[Event]:
        self._told += told or []
        return super().more(text, told)

    def part(self, text: str, told: list[Event]) -> Event:
        return {"type": self.part_kind, "text": text, "annotations": [], "logprobs": told}

    def extra(self, told: list[Event]) -> Event:
        return {"logprobs": told}

    def _empty(self) -> Event:
        return {"id": self._id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}


class _Call:
    """A call of a function or of a custom tool."""

    def __init__(self, index: int, call_id: str, target: Target) -> None:
        self._index = index
        self._kind = "custom_tool_call" if target.is_custom else "function_call"
        self._id = new_id(self._kind)
        self._call_id = call_id
        self._target = target
        self._reader = CustomInput() if target.is_custom else None
        self._member = "input" if target.is_custom else "arguments"
        self._event = f"response.{'custom_tool_call_input' if target.is_custom else 'function_call_arguments'}"
        self._pieces: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.output_item.added", "output_index": self._index, "item": self.item("in_progress")}

    def more(self, text: str) -> Iterator[Event]:
        piece = self._reader.feed(text) if self._reader is not None else text
        if piece:
            self._pieces.append(piece)
            yield {"type": f"{self._event}.delta", **self._place(), "delta": piece}

    def end(self, status: str) -> Iterator[Event]:
        done: Event = {"type": f"{self._event}.done", **self._place()}
        if self._reader is None:
            done["name"] = self._target.name
        done[self._member] = "".join(self._pieces)
        yield done
        yield {"type": "response.output_item.done", "output_index": self._index, "item": self.item(status)}

    def item(self, status: str) -> Event:
        item: Event = {"id": self._id, "type": self._kind, "status": status, "call_id": self._call_id}
        if self._target.namespace is not None:
            item["namespace"] = self._target.namespace
        return {**item, "name": self._target.name, self._member: "".join(self._pieces)}

    def _place(self) -> Event:
        return {"item_id": self._id, "output_index": self._index}
