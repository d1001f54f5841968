"""What the actors need of an engine, so that tests and the scripted engine can stand in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, overload

from ninfer.step import DecodeResult, DecodeRound, PrefillChunk, PrefillResult


class EngineLike(Protocol):
    """Runs plans on the device. Every method blocks and is called from the device thread only."""

    @overload
    def run(self, plan: PrefillChunk) -> PrefillResult: ...
    @overload
    def run(self, plan: DecodeRound) -> DecodeResult: ...

    def reset(self) -> None:
        """Forget all lanes; raises if the device cannot be trusted any more."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """A memory plan against the device. `message` is the refusal of the kv-and-state spec, 14.3, for when it is short.

    pages    size of the shared page pool that the plan resolves to
    """

    required_bytes: int
    available_bytes: int
    pages: int
    message: str


class EngineBuilder(Protocol):
    """Plans, then loads. Both block and run on the device thread."""

    def plan(self) -> MemoryCheck:
        """The early plan, from the artifact's directory and what the device has free."""
        ...

    def load(self) -> tuple[EngineLike, MemoryCheck]:
        """Load everything; the check compares the plan with what was free with the weights resident."""
        ...
