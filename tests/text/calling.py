"""Reads outputs for tool calls in every way, and demands that all ways give one result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from ninfer.text.output import (
    ContentDelta,
    Delta,
    OutputParser,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallParse,
    ToolCallStarted,
    ToolUse,
)
from ninfer.text.tool_values import DeclaredTools


def tool(name: str, **properties: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING = {"type": "string"}
TOOLS = (
    tool("write", path=STRING, content=STRING),
    tool("read", path=STRING),
    tool("mix", n={"type": "integer"}, b={"type": "boolean"}, o={"type": "object"}, a={"type": "array"}, s=STRING),
    tool("list_jobs"),
)


@dataclass(frozen=True)
class Result:
    """What a client gets.

    calls   name, text of the arguments, and whether the call ended
    """

    content: str
    reasoning: str
    calls: tuple[tuple[str, str, bool], ...]
    seen: ToolCallParse | None
    tokens: tuple[int, int]


def result_of(deltas: Iterable[Delta], parser: OutputParser) -> Result:
    text = {ReasoningDelta: "", ContentDelta: ""}
    calls: list[tuple[str, str, bool]] = []
    ids: set[str] = set()
    rank = 0  # reasoning, then content, then calls
    for delta in deltas:
        match delta:
            case ReasoningDelta() | ContentDelta():
                assert delta.text
                place = int(isinstance(delta, ContentDelta))
                text[type(delta)] += delta.text
            case ToolCallStarted():
                place = 2
                assert delta.index == len(calls)
                assert delta.id not in ids
                ids.add(delta.id)
                calls.append((delta.name, "", False))
            case ToolCallArguments():
                place = 2
                assert delta.index == len(calls) - 1
                assert delta.text
                name, arguments, ended = calls.pop()
                assert not ended
                calls.append((name, arguments + delta.text, False))
            case ToolCallEnded():
                place = 2
                assert delta.index == len(calls) - 1
                calls.append((*calls.pop()[:2], True))
        assert place >= rank
        rank = place
    for _, arguments, ended in calls:
        assert is_object(arguments) is ended
    seen = parser.tool_calls
    if seen is not None:
        assert seen.structured_call_count == len(calls)
        assert (seen.incomplete_calls > 0) >= (not all(ended for *_, ended in calls))
    tokens = (parser.completion_tokens, parser.reasoning_tokens)
    return Result(text[ContentDelta], text[ReasoningDelta], tuple(calls), seen, tokens)


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_int=str), dict)
    except ValueError:
        return False


def read_pieces(
    pieces: Sequence[str],
    *,
    tools: Sequence[dict[str, object]] = TOOLS,
    own_stop: bool = True,
    tolerant: bool = False,
    opens_think: bool = False,
    stops: Sequence[str] = (),
) -> Result:
    """Feed one piece after another."""
    ids = count()
    parser = OutputParser(
        lambda token_id: b"",
        stop_ids=frozenset(),
        opens_think=opens_think,
        stops=stops,
        tool_use=ToolUse(DeclaredTools(tools), lambda: f"call_{next(ids):016x}", tolerant) if tools else None,
    )
    deltas = [delta for piece in pieces for delta in parser.feed_bytes([piece.encode()])]
    return result_of([*deltas, *parser.finish(own_stop=own_stop)], parser)


def read(
    text: str,
    *,
    tools: Sequence[dict[str, object]] = TOOLS,
    own_stop: bool = True,
    tolerant: bool = False,
    opens_think: bool = False,
    stops: Sequence[str] = (),
    cuts: Iterable[int] | None = None,
) -> Result:
    """The result of a text, the same whole, character by character and cut in two at the given places (or at some)."""

    def parts(pieces: Sequence[str]) -> Result:
        return read_pieces(
            pieces, tools=tools, own_stop=own_stop, tolerant=tolerant, opens_think=opens_think, stops=stops
        )

    whole = parts([text])
    letters = parts(list(text))
    assert (letters.content, letters.reasoning, letters.calls, letters.seen) == (
        whole.content,
        whole.reasoning,
        whole.calls,
        whole.seen,
    )
    for cut in range(1, len(text), 1 + len(text) // 16) if cuts is None else cuts:
        halves = parts([text[:cut], text[cut:]])
        assert (halves.content, halves.reasoning, halves.calls) == (whole.content, whole.reasoning, whole.calls), cut
    return whole


def call(name: str, /, **parameters: str) -> str:
    """A call as models write it."""
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"
