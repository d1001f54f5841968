"""Bodies and chunks of a Chat answer (serving spec, 5.3 to 5.6). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import orjson

from ninfer.actors.messages import Finished, PrefillProgress, Usage
from ninfer.api import sse
from ninfer.api.timings import Moments, timings
from ninfer.text.output import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallParse,
    ToolCallStarted,
)
from ninfer.types import FinishReason

_NONE: Mapping[str, object] = {}
_FINISH_REASONS = {
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.OUTPUT_LIMIT: "length",
    FinishReason.CONTEXT_CAPACITY: "length",
    FinishReason.NONE: "length",
    FinishReason.CANCELLED: "length",
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every body and chunk of one answer repeats: `id`, unix second of its creation, public model id."""

    id: str
    created: int
    model: str


def usage_object(usage: Usage) -> dict[str, object]:
    """The ``usage`` object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def moments_of(finished: Finished, received_at: float) -> Moments:
    """The times of a finished request."""
    return Moments(received_at, finished.admitted_at, finished.first_token_at, finished.last_token_at)


def closing_members(finished: Finished, received_at: float) -> dict[str, object]:
    """What rides at the top level of the body, or of the last chunk."""
    times = timings(finished.usage, moments_of(finished, received_at)) | _guesses(finished)
    return {"timings": times} | choice_members(finished)


def choice_members(finished: Finished) -> dict[str, object]:
    """Those of them that belong to a choice: they ride there if there are several."""
    members: dict[str, object] = {}
    if finished.lane is not None:
        members["id_slot"] = finished.lane
    if finished.session_digest:
        members["session_digest"] = finished.session_digest
    return members | constraint_member(finished)


def _guesses(finished: Finished) -> dict[str, object]:
    """Members of ``timings`` about guessed tokens, if there were any (5.4)."""
    counts = finished.speculation
    if counts is None or not counts.drafted:
        return {}
    return {"draft_n": counts.drafted, "draft_n_accepted": counts.accepted}


def constraint_member(finished: Finished) -> dict[str, object]:
    """What the body of a constrained answer says of it (6.6)."""
    report = finished.constraint
    if report is None:
        return {}
    members: dict[str, object] = asdict(report)
    seconds = {name: members.pop(f"{name}_s") for name in ("prepare", "mask", "matcher")}
    return {"constraint": {**members, "timings_seconds": seconds}}


def finish_reason(reason: FinishReason, calls: ToolCallParse | None) -> str:
    """`tool_calls` for calls that are all complete, `length` for one that was cut, else how the engine ended.

    calls   what was seen of tool calls; None if the output was not read for them
    """
    if calls is not None and calls.incomplete_calls:
        return "length"
    if calls is not None and calls.structured_call_count:
        return "tool_calls"
    return _FINISH_REASONS[reason]


def joined_calls(deltas: Sequence[Delta]) -> list[dict[str, object]]:
    """The ``tool_calls`` of a message; the arguments of a cut call stay the open text that they are."""
    starts = [delta for delta in deltas if isinstance(delta, ToolCallStarted)]
    arguments: list[list[str]] = [[] for _ in starts]
    for delta in deltas:
        if isinstance(delta, ToolCallArguments):
            arguments[delta.index].append(delta.text)
    return [
        {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": "".join(pieces)}}
        for start, pieces in zip(starts, arguments, strict=True)
    ]


def logprobs_object(told: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The ``logprobs`` of a choice whose client asked for them: an object for each token of its content."""
    return {"content": list(told), "refusal": None}


def whole_choice(
    index: int, deltas: Sequence[Delta], finished: Finished, logprobs: Mapping[str, object] | None
) -> dict[str, object]:
    """A choice of an answer that is not streamed."""
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    calls = joined_calls(deltas)
    message: dict[str, object] = {"role": "assistant", "content": None if calls and not content else content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    message["refusal"] = None
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(finished.reason, finished.tool_calls),
    }


def whole_body(
    envelope: Envelope, choices: Sequence[Mapping[str, object]], finished: Finished, received_at: float
) -> dict[str, object]:
    """The body of an answer that is not streamed."""
    return {
        "id": envelope.id,
        "object": "chat.completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": list(choices),
        "usage": usage_object(finished.usage),
        **closing_members(finished, received_at),
    }


def prompt_progress(progress: PrefillProgress, admitted_at: float) -> dict[str, object]:
    """How much of the prompt has been read (5.6)."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": 1000.0 * (progress.at - admitted_at),
    }


class ChunkBuilder:
    """The chunks of one choice of a streamed answer; with `include_usage` all but the last carry ``usage: null``."""

    def __init__(self, envelope: Envelope, index: int, *, include_usage: bool) -> None:
        self._envelope = envelope
        self._index = index
        self._include_usage = include_usage
        # What stands around the text in a frame of each kind: most of a frame is the same for every token.
        self._around: dict[type[Delta], tuple[bytes, bytes]] = {}

    def text_frame(self, delta: ReasoningDelta | ContentDelta) -> bytes:
        """The frame of a piece with nothing else told."""
        around = self._around.get(type(delta))
        if around is None:
            member = "content" if isinstance(delta, ContentDelta) else "reasoning_content"
            name = f'"{member}":'.encode()
            before, after = sse.data_frame(self._chunk({member: ""})).split(name + b'""')
            around = self._around[type(delta)] = before + name, after
        return around[0] + orjson.dumps(delta.text) + around[1]

    def role(self) -> dict[str, object]:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(
        self,
        delta: Delta,
        timings_so_far: Mapping[str, object] | None,
        logprobs: Mapping[str, object] | None = None,
    ) -> dict[str, object] | None:
        """A piece of reasoning, answer or call; None for the end of a call, which has no chunk of its own."""
        match delta:
            case ReasoningDelta():
                chunk = self._chunk({"reasoning_content": delta.text})
            case ContentDelta():
                chunk = self._chunk({"content": delta.text}, logprobs=logprobs)
            case ToolCallStarted():
                function = {"name": delta.name, "arguments": ""}
                opener = {"index": delta.index, "id": delta.id, "type": "function", "function": function}
                return self._chunk({"tool_calls": [opener]})
            case ToolCallArguments():
                return self._chunk({"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]})
            case ToolCallEnded():
                return None
        if timings_so_far is not None:
            chunk["timings"] = timings_so_far
        return chunk

    def progress(self, progress: PrefillProgress, admitted_at: float) -> dict[str, object]:
        """How much of the prompt has been read."""
        chunk = self._chunk({})
        chunk["prompt_progress"] = prompt_progress(progress, admitted_at)
        return chunk

    def finish(self, finished: Finished, members: Mapping[str, object]) -> dict[str, object]:
        """The end of the choice, with members of its own."""
        return self._chunk({}, finish_reason(finished.reason, finished.tool_calls), members=members)

    def usage(self, usage: Usage) -> dict[str, object]:
        """The usage chunk, which belongs to no choice."""
        chunk = self._chunk({})
        chunk["choices"] = []
        chunk["usage"] = usage_object(usage)
        return chunk

    def _chunk(
        self,
        delta: Mapping[str, object],
        finish_reason: str | None = None,
        logprobs: Mapping[str, object] | None = None,
        members: Mapping[str, object] = _NONE,
    ) -> dict[str, object]:
        chunk: dict[str, object] = {
            "id": self._envelope.id,
            "object": "chat.completion.chunk",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "choices": [
                {
                    "index": self._index,
                    "delta": delta,
                    "logprobs": logprobs,
                    "finish_reason": finish_reason,
                    **members,
                }
            ],
        }
        if self._include_usage:
            chunk["usage"] = None
        return chunk
