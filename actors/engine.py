"""What the actors need of an engine, so that tests and the scripted engine can stand in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, overload

from ninfer.step import DecodeResult, DecodeRound, NextPart, PrefillChunk, PrefillResult, Transfer

R = TypeVar("R", covariant=True)


class Pending(Protocol[R]):
    """A step that the device has been given."""

    def wait(self) -> R:
        """What came of it. Blocks, without the interpreter's lock while the device works; called once, in the order of
        the launches, from any one thread. Raises :class:`ninfer.errors.DeviceFault` if the step failed.
        """
        ...


class EngineLike(Protocol):
    """Carries out plans on the device. Its methods are called from the device thread only.

    folds_late    when a block that a round has filled becomes a state: see :func:`ninfer.step.standing_block`
    chunk_parts   into how many parts a chunk can be cut, ascending from 1
    appends       whether a prompt may go on inside the block in which its lane stands
    image_bytes   size of one state image: convolution columns of all layers, then states of all layers
    page_bytes    size of one page: its planes behind each other
    """

    @property
    def folds_late(self) -> bool: ...

    @property
    def chunk_parts(self) -> tuple[int, ...]: ...

    @property
    def appends(self) -> bool: ...

    @property
    def image_bytes(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def host_seconds(self) -> tuple[float, float]:
        """What parking pages in host memory and loading them from there has taken so far. Any thread may read it."""
        ...

    @overload
    def launch(self, plan: PrefillChunk | NextPart) -> Pending[PrefillResult]: ...
    @overload
    def launch(self, plan: DecodeRound) -> Pending[DecodeResult]: ...
    def launch(self, plan: PrefillChunk | NextPart | DecodeRound) -> Pending[PrefillResult] | Pending[DecodeResult]:
        """Queue one step behind those given before, and return; raises what is wrong with the plan.

        The step sees all effects of those before it, whether they have been waited for or not: a row of a round follows
        the token that the step before draws for its lane. A row behind a stop token is legal, and what it draws is
        dropped. After a step that failed nothing that was launched counts, until `reset`.
        """
        ...

    def transfer(self, transfers: Sequence[Transfer]) -> None:
        """Carry out transfers that belong to no step. Nothing is in flight when it is called."""
        ...

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        """[n page_bytes] copies of device pages, in this order. Nothing is in flight when it is called."""
        ...

    def read_places(self, places: Sequence[int]) -> memoryview:
        """[n page_bytes] copies of pages in host memory, in this order. Nothing is in flight when it is called."""
        ...

    def write_pages(self, pages: Sequence[int], data: memoryview) -> None:
        """Fill device pages from such bytes. Nothing is in flight when it is called."""
        ...

    def read_image(self, image: int) -> memoryview:
        """[image_bytes] of a stored image; valid until it is stored anew. Nothing is in flight when it is called."""
        ...

    def write_image(self, image: int, data: memoryview) -> None:
        """Fill a stored image. Nothing is in flight when it is called."""
        ...

    def capture(self, lane: int, image: int) -> None:
        """Store a lane's state as :class:`ninfer.step.CaptureState` does. Nothing is in flight when it is called."""
        ...

    def reset(self) -> None:
        """Forget all lanes; raises if the device cannot be trusted any more. Nothing is in flight when it is called."""
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
