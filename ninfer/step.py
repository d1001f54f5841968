"""What the scheduler may ask of the engine, and what the engine answers: the only ground on which the two meet.

Positions are cache ordinals counted from 0. A page holds :data:`PAGE_TOKENS` positions of the attention cache and is
at the same time one block of the gated DeltaNet (kv-and-state spec, 8.3 and 9.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.types import Sampling

PAGE_TOKENS = 64


def pages_for(tokens: int) -> int:
    """Number of pages that `tokens` positions occupy."""
    return -(-tokens // PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class PageMapping:
    """Pages appended to a lane's block table: table entry ``first + i`` becomes physical page ``pages[i]``."""

    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaneSetup:
    """What a lane needs to know before the first chunk of a request: sent once, with that chunk.

    stop_ids   token ids that end the generation; empty when the request ignores them
    """

    sampling: Sampling
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Read the prompt tokens of positions ``[begin, begin + len(token_ids))`` into a lane.

    setup      given exactly when the lane starts anew (``begin == 0``): state and counts are cleared first
    mapping    pages this chunk needs beyond those already mapped
    sample     True on the chunk that ends the prompt, unless nothing is to be generated: draw the first token
    """

    lane: int
    begin: int
    token_ids: tuple[int, ...]
    mapping: PageMapping
    setup: LaneSetup | None
    sample: bool


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One lane's part of a round. The anchor is the lane's last drawn token, not yet in the cache; its position is
    `position`, which is also the number of positions that are.
    """

    lane: int
    position: int
    mapping: PageMapping


@dataclass(frozen=True, slots=True)
class DecodeRound:
    """Advance every row by one token in one batch. Lanes are distinct; the order of rows changes no result."""

    rows: tuple[DecodeRow, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens drawn for one lane in one step, oldest first; `stopped` if the last one is one of its stop ids.

    A stop token is counted and never published; it ends the generation.
    """

    lane: int
    token_ids: tuple[int, ...]
    stopped: bool


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """`drawn` is None unless the chunk was asked to sample. `device_s` is the time the device spent on the chunk."""

    drawn: Drawn | None
    device_s: float


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One :class:`Drawn` per row, in row order."""

    drawn: tuple[Drawn, ...]
    device_s: float
