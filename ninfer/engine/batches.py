"""Batches of consecutive tokens of several lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.model.forward import Batch, Run
from ninfer.step import PAGE_TOKENS, pages_for


@dataclass(frozen=True, slots=True)
class Span:
    """`count` positions of a lane, from `position` on."""

    lane: int
    position: int
    count: int


def round_batch(spans: Sequence[Span], ids: Tensor, tables: Tensor) -> Batch:
    """The batch of these spans, one behind the other.

    ids      [T] int64
    tables   [C, L] int32: the lanes' pages
    """
    device = ids.device
    lanes = torch.tensor([span.lane for span in spans for _ in range(span.count)], dtype=torch.int64, device=device)
    at = [position for span in spans for position in range(span.position, span.position + span.count)]
    positions = torch.tensor(at, dtype=torch.int64, device=device)
    runs: list[Run] = []
    first = 0
    for span in spans:
        end = span.position + span.count
        pages = tables[span.lane, : pages_for(end)].long()
        position = span.position
        while position < end:
            stop = min(end, position // PAGE_TOKENS * PAGE_TOKENS + PAGE_TOKENS)
            row = first + position - span.position
            runs.append(Run(row, row + stop - position, position, pages[: pages_for(stop)]))
            position = stop
        first += span.count
    return Batch(
        ids=ids,
        coordinates=positions.expand(3, -1),
        pages=tables[lanes, positions // PAGE_TOKENS].long(),
        offsets=positions % PAGE_TOKENS,
        lanes=lanes,
        runs=tuple(runs),
        chunk=False,
        columns=_columns(spans, device),
    )


def _columns(spans: Sequence[Span], device: torch.device) -> tuple[Tensor, ...] | None:
    longest = max(span.count for span in spans)
    if longest == 1:
        return None
    firsts = [sum(span.count for span in spans[:number]) for number in range(len(spans))]
    return tuple(
        torch.tensor(
            [first + column for span, first in zip(spans, firsts, strict=True) if span.count > column],
            dtype=torch.int64,
            device=device,
        )
        for column in range(longest)
    )
