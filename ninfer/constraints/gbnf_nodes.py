"""What rules of a GBNF grammar are made of."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.constraints.characters import Interval


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set that is not empty."""

    chosen: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One token of those listed, or of those not listed."""

    ids: tuple[int, ...]
    excluded: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """Another rule; `at` is where it is named."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Repetition:
    """`low` to `high` times the same; None has no limit."""

    body: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Sequence:
    """One behind the other; none is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Node, ...]


Node = Characters | Tokens | Reference | Repetition | Sequence | Choice
