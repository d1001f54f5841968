"""What a reader of tool calls counts while it reads (serving spec, 7.5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ninfer.text.deltas import ToolCallParse
from ninfer.text.tool_call import TaggedCall


@dataclass(slots=True)
class Tally:
    """The members of :class:`ToolCallParse`, in the making."""

    marker_seen: bool = False
    structured_call_count: int = 0
    empty_arguments_omitted: int = 0
    schema_mismatch_arguments: int = 0
    duplicate_parameters_repaired: int = 0
    discarded_bytes: int = 0
    incomplete_calls: int = 0
    fallback_reason: str = "none"
    tolerant_recovered: bool = False

    def frozen(self) -> ToolCallParse:
        """The counts so far."""
        return ToolCallParse(**asdict(self))

    def note_fallback(self, reason: str) -> None:
        """A region is no call; the first reason stays."""
        if self.fallback_reason == "none":
            self.fallback_reason = reason

    def add(self, call: TaggedCall) -> None:
        """A call is over."""
        self.empty_arguments_omitted += call.omitted
        self.schema_mismatch_arguments += call.mismatched
        self.duplicate_parameters_repaired += call.arguments.repeated
        self.discarded_bytes += call.discarded
