"""Columns of guesses for the plain and for the Triton route, and what must come out, by the law of one draw alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.kernels.sampler.lanes import MAX_STOP_IDS, NOT_FINITE, STOPPED, LaneTables, law_row
from ninfer.kernels.sampler.masks import allowed, mask_words
from ninfer.kernels.sampler.op import sample
from ninfer.types import Sampling

GREEDY = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)
LAWS = (
    Sampling(0.0, 20, 1.0, 0.0, 1.5, 0.7, 0),
    Sampling(0.8, 20, 0.9, 0.02, 1.0, 0.3, 0),
    Sampling(1.0, 5, 1.0, 0.0, 0.0, 0.0, 0),
    Sampling(1.3, 20, 0.5, 0.1, 0.0, -0.5, 0),
)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Arguments of `verify`."""

    logits: Tensor
    public_ids: int
    lanes: Tensor
    columns: int
    ids: Tensor
    live: Tensor
    uniforms: Tensor


def tables_of(vocabulary: int, seed: int) -> LaneTables:
    source = torch.Generator().manual_seed(seed)
    lanes = len(LAWS)
    return LaneTables(
        laws=torch.tensor([law_row(law) for law in LAWS]),
        stops=torch.full((lanes, MAX_STOP_IDS), -1, dtype=torch.int32),
        counts=torch.randint(0, 3, (lanes, vocabulary), generator=source, dtype=torch.int32),
        anchors=torch.full((lanes,), -7, dtype=torch.int32),
        masks=torch.full((lanes, mask_words(vocabulary)), -1, dtype=torch.int32),
        halts=torch.zeros(lanes, mask_words(vocabulary), dtype=torch.int32),
    )


def columns_of(vocabulary: int, lanes: list[int], columns: int, live: list[int], seed: int) -> Columns:
    """Random columns whose guesses are still nobody's."""
    source = torch.Generator().manual_seed(seed)
    tokens = len(lanes) * columns
    return Columns(
        logits=3 * torch.randn(tokens, vocabulary, generator=source),
        public_ids=vocabulary - 3,
        lanes=torch.tensor(lanes, dtype=torch.int32),
        columns=columns,
        ids=torch.zeros(tokens, dtype=torch.int32),
        live=torch.tensor(live, dtype=torch.int32),
        uniforms=torch.randint(0, 1 << 24, (tokens,), generator=source) * 2.0**-24,
    )


def guess_right(case: Columns, tables: LaneTables, right: list[int]) -> None:
    """Make the first guesses of each lane what is drawn, and the one behind them wrong."""
    for row in range(len(right)):
        tokens = drawn_one_by_one(case, tables, row, follow=False)
        for column in range(1, case.columns):
            token = tokens[column - 1]
            case.ids[row * case.columns + column] = token if column <= right[row] else (token + 1) % case.public_ids


def drawn_one_by_one(case: Columns, tables: LaneTables, row: int, *, follow: bool = True) -> list[int]:
    """Tokens that rounds without guesses draw from these columns, for as long as the guesses lead on to the next.

    follow   False draws every column, as if all guesses were what is drawn
    """
    lane = int(case.lanes[row])
    temperature, top_k, top_p, min_p, presence, frequency = tables.laws[lane, :6].tolist()
    law = Sampling(temperature, int(top_k), top_p, min_p, presence, frequency, seed=0)
    counts = tables.counts[lane, : case.public_ids].clone()
    legal = allowed(tables.masks[lane], case.public_ids)
    tokens: list[int] = []
    for column in range(int(case.live[row]) + 1 if follow else case.columns):
        at = row * case.columns + column
        logits = case.logits[at, : case.public_ids].nan_to_num().masked_fill(~legal, float("-inf"))
        token = int(sample(logits[None], counts[None], [law], [float(case.uniforms[at])])[0])
        tokens.append(token)
        counts[token] += 1
        ends = token in tables.stops[lane].tolist() or bool(allowed(tables.halts[lane], case.public_ids)[token])
        ends = ends or not bool(case.logits[at, : case.public_ids].isfinite().all())
        if follow and (ends or column == int(case.live[row]) or token != int(case.ids[at + 1])):
            break
    return tokens


def expected(case: Columns, tables: LaneTables, row: int) -> tuple[list[int], int]:
    """Tokens and flags of a lane."""
    tokens = drawn_one_by_one(case, tables, row)
    at = row * case.columns + len(tokens) - 1
    stopped = STOPPED if tokens[-1] in tables.stops[int(case.lanes[row])].tolist() else 0
    return tokens, stopped | (0 if bool(case.logits[at, : case.public_ids].isfinite().all()) else NOT_FINITE)


def check(case: Columns, before: LaneTables, after: LaneTables, results: Tensor) -> None:
    """Results, counts and anchors are those of drawing one by one; lanes that take no part are as before."""
    counts, anchors = before.counts.clone(), before.anchors.clone()
    for row, lane in enumerate(case.lanes.tolist()):
        tokens, flags = expected(case, before, row)
        assert int(results[row, 1]) & NOT_FINITE == flags & NOT_FINITE
        if flags & NOT_FINITE:
            counts[lane], anchors[lane] = after.counts[lane], after.anchors[lane]  # nobody reads them any more
            continue
        assert results[row, : 2 + len(tokens)].tolist() == [len(tokens) - 1, flags, *tokens]
        for token in tokens:
            counts[lane, token] += 1
        anchors[lane] = tokens[-1]
    assert torch.equal(after.counts, counts)
    assert torch.equal(after.anchors, anchors)


def copied(tables: LaneTables) -> LaneTables:
    return LaneTables(
        tables.laws.clone(), tables.stops.clone(), tables.counts.clone(), tables.anchors.clone(), tables.masks.clone(),
        tables.halts.clone(),
    )  # fmt: skip
