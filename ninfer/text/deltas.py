"""What the output parser publishes, piece by piece, for every API alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool call is announced, its arguments follow.

    index   0 for the first call of the answer, then counted up
    id      `call_` and 16 hex digits
    name    of the tool
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments; never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """The call is complete, its fragments join to one JSON object. A call that was cut short never gets this."""

    index: int


Delta = ReasoningDelta | ContentDelta | ToolCallStarted | ToolCallArguments | ToolCallEnded


def append_delta(deltas: list[Delta], delta: Delta) -> None:
    """Put a delta behind others; text joins text of the same kind."""
    last = deltas[-1] if deltas else None
    match delta, last:
        case (ReasoningDelta(), ReasoningDelta()):
            deltas[-1] = ReasoningDelta(last.text + delta.text)
        case (ContentDelta(), ContentDelta()):
            deltas[-1] = ContentDelta(last.text + delta.text)
        case (ToolCallArguments(), ToolCallArguments()) if last.index == delta.index:
            deltas[-1] = ToolCallArguments(delta.index, last.text + delta.text)
        case _:
            deltas.append(delta)


@dataclass(frozen=True, slots=True)
class ToolCallParse:
    """What was seen of tool calls in one output (serving spec, 7.5): counts, and why a region stayed text.

    marker_seen                    the answer, or open thinking, held the opening of a call
    structured_call_count          calls that were published, cut ones included
    empty_arguments_omitted        parameters left out because their block was empty
    schema_mismatch_arguments      values that did not fit their declared type and went out as strings
    duplicate_parameters_repaired  repeated keys; the last value won
    discarded_bytes                UTF-8 bytes inside and behind calls that belong to nothing, white space not counted
    incomplete_calls               calls that the output ended inside
    fallback_reason                `none`, `malformed_structure`, `invalid_tool_name`, `undeclared_tool` or
                                   `trailing_content`
    recovered_from_reasoning       calls came out of thinking that was never closed
    tolerant_recovered             calls needed a repair of `--tolerant-tool-calls`
    """

    marker_seen: bool = False
    structured_call_count: int = 0
    empty_arguments_omitted: int = 0
    schema_mismatch_arguments: int = 0
    duplicate_parameters_repaired: int = 0
    discarded_bytes: int = 0
    incomplete_calls: int = 0
    fallback_reason: str = "none"
    recovered_from_reasoning: bool = False
    tolerant_recovered: bool = False
