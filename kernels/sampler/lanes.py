"""Drawing on the device: the law of ``op.sample`` with every lane's law, counts and stop ids in device memory.

Nothing waits for the host: the drawn token becomes the lane's anchor, is counted, and is compared with the stop ids in
the same launch, so that the next round can be launched before the host has seen this one's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.sampler.masks import allowed
from ninfer.kernels.sampler.op import sample
from ninfer.types import Sampling

LAW_FIELDS = 8  # temperature, top_k, top_p, min_p, presence and frequency penalty, two unused
MAX_STOP_IDS = 32
STOPPED = 1
NOT_FINITE = 2
BLOCK = 1024  # logits that one program sorts
KEEP = 32  # candidates a block hands on: a power of two that holds op.MAX_CANDIDATES
MERGED = 1024  # candidates merged at a time
MAX_COLUMNS = 16  # of a lane that are verified together


@dataclass(frozen=True, slots=True, eq=False)
class LaneTables:
    """What drawing reads and writes, for C lanes.

    laws     [C, 8]  fp32, :func:`law_row`
    stops    [C, 32] int32, -1 where there is none
    counts   [C, V]  int32: generated tokens of the running request
    anchors  [C]     int32: the last drawn token
    masks    [C, W]  int32, W = :func:`mask_words` of V: ids that may be drawn, at least one of them public; or
             [C, L, W], for each of the columns that are verified together
    halts    [C, W]  int32: ids that are the last of the columns that are verified together
    """

    laws: Tensor
    stops: Tensor
    counts: Tensor
    anchors: Tensor
    masks: Tensor
    halts: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DrawBuffers:
    """Scratch of a draw for T rows of V logits.

    keys     [T, blocks * KEEP] int64, and as much as the first merge leaves
    faults   [T, blocks] int32: logits that are not finite
    drawn    [T, 2] int32, of columns before it is known how many of them count
    """

    keys: tuple[Tensor, Tensor]
    faults: Tensor
    drawn: Tensor


def draw_keys(vocabulary: int) -> int:
    """Candidates per row that the first pass leaves."""
    return -(-vocabulary // BLOCK) * KEEP


def draw_buffers(rows: int, vocabulary: int, device: torch.device | str) -> DrawBuffers:
    first = torch.zeros(rows, draw_keys(vocabulary), dtype=torch.int64, device=device)
    second = torch.zeros(rows, -(-draw_keys(vocabulary) // MERGED) * KEEP, dtype=torch.int64, device=device)
    faults = torch.zeros(rows, -(-vocabulary // BLOCK), dtype=torch.int32, device=device)
    drawn = torch.zeros(rows, 2, dtype=torch.int32, device=device)
    return DrawBuffers((first, second), faults, drawn)


def law_row(law: Sampling) -> tuple[float, ...]:
    """A law as a row of `LaneTables.laws`."""
    return (
        law.temperature, float(law.top_k), law.top_p, law.min_p, law.presence_penalty, law.frequency_penalty, 0.0, 0.0
    )  # fmt: skip


def draw(
    logits: Tensor,
    public_ids: int,
    lanes: Tensor,
    uniforms: Tensor,
    tables: LaneTables,
    buffers: DrawBuffers,
    results: Tensor,
) -> None:
    """Draw one token for each of T rows, each by the law of its lane.

    logits      [T, V] fp32; ids from `public_ids` on are never drawn
    lanes       [T] int32, distinct
    uniforms    [T] fp32 in [0, 1)
    results     [T, 2] int32: the token, and STOPPED | NOT_FINITE; with NOT_FINITE the token means nothing
    effects     writes results; the token is counted and becomes its lane's anchor
    """
    assert logits.shape[0] == lanes.shape[0] == uniforms.shape[0] == results.shape[0]
    if logits.is_cuda:
        from ninfer.kernels.sampler import triton_draw

        triton_draw.draw(logits, public_ids, lanes, uniforms, tables, buffers, results)
        return
    for row, lane in enumerate(lanes.tolist()):
        legal = logits[row : row + 1, :public_ids]
        counts = tables.counts[lane : lane + 1, :public_ids]
        mask = tables.masks[lane].view(-1, tables.masks.shape[-1])[0]
        drawable = torch.nan_to_num(legal).masked_fill(~allowed(mask, public_ids), float("-inf"))
        token = int(sample(drawable, counts, [_law(tables.laws[lane])], [float(uniforms[row])]))
        stopped = STOPPED if token in tables.stops[lane].tolist() else 0
        fault = 0 if bool(torch.isfinite(legal).all()) else NOT_FINITE
        tables.counts[lane, token] += 1
        tables.anchors[lane] = token
        results[row] = torch.tensor([token, stopped | fault], dtype=torch.int32)


def _law(row: Tensor) -> Sampling:
    temperature, top_k, top_p, min_p, presence, frequency, _, _ = row.tolist()
    return Sampling(temperature, int(top_k), top_p, min_p, presence, frequency, seed=0)
