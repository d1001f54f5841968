"""Triton route of drawing: blocks of logits hand on their best candidates, merges narrow them down, one program draws.

Candidates are the ordered int64 keys of the vocabulary product (`low_bit_linear.triton_head`): a larger key is a larger
penalised logit, or the lower id among equals, so any way of selecting gives the same list.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ninfer.kernels.low_bit_linear.triton_head import LOWEST, candidate_keys, merge_keys
from ninfer.kernels.sampler.lanes import (
    BLOCK,
    KEEP,
    LAW_FIELDS,
    MAX_COLUMNS,
    MAX_STOP_IDS,
    MERGED,
    DrawBuffers,
    LaneTables,
)

WARPS = 4
MAX_CANDIDATES = tl.constexpr(20)


@triton.jit(do_not_specialize=["vocabulary", "public", "lane_words", "column_words", "columns"])
def choose_candidates(
    logits, lanes, ids, laws, counts, masks, keys, faults, vocabulary, public, lane_words, column_words, columns,
    LAW: tl.constexpr, SIZE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """keys[t, program, KEPT]: the best penalised logits of a block, of `columns` columns per lane. The guesses in front
    of a column count as generated."""
    block = tl.program_id(0)
    token = tl.program_id(1).to(tl.int64)
    lane = tl.load(lanes + token // columns).to(tl.int64)
    presence = tl.load(laws + lane * LAW + 4)
    frequency = tl.load(laws + lane * LAW + 5)
    row = block * SIZE + tl.arange(0, SIZE)
    legal = row < public
    value = tl.load(logits + token * vocabulary + row, mask=legal, other=0.0)
    # Not a number and the infinities are what is not below the largest finite number.
    wrong = tl.sum(tl.where(tl.abs(value) <= 3.4028234663852886e38, 0, 1), axis=0)
    tl.store(faults + token * tl.num_programs(0) + block, wrong)
    if (presence != 0.0) | (frequency != 0.0):
        count = tl.load(counts + lane * vocabulary + row, mask=legal, other=0)
        for behind in range(token % columns):
            count += (tl.load(ids + token - behind) == row).to(tl.int32)
        value = value - presence * (count > 0).to(tl.float32) - frequency * count.to(tl.float32)
    mask = masks + lane * lane_words + token % columns * column_words
    word = tl.load(mask + (row >> 5), mask=legal, other=0)
    legal = legal & (((word >> (row & 31)) & 1) != 0)
    candidates = tl.where(legal, candidate_keys(value, row), LOWEST)
    at = (token * tl.num_programs(0) + block) * KEPT
    tl.store(keys + at + tl.arange(0, KEPT), tl.topk(candidates, KEPT))


@triton.jit(do_not_specialize=["vocabulary", "count", "blocks", "columns"])
def draw_token(
    keys, lanes, laws, uniforms, stops, counts, anchors, faults, results, vocabulary, count, blocks, columns,
    BLOCKS: tl.constexpr, LAW: tl.constexpr, STOPS: tl.constexpr, SIZE: tl.constexpr, KEPT: tl.constexpr,
    COMMITS: tl.constexpr,
):  # fmt: skip
    """Law steps 2 to 6 of `op.sample` over the last `count` keys of a row. COMMITS: it is drawn for good."""
    token = tl.program_id(0).to(tl.int64)
    lane = tl.load(lanes + token // columns).to(tl.int64)
    index = tl.arange(0, SIZE)
    best = tl.topk(tl.load(keys + token * count + index, mask=index < count, other=LOWEST), KEPT)
    rank = tl.arange(0, KEPT)
    ordered = (best >> 32).to(tl.int32)
    value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    ids = (0xFFFFFFFF - (best & 0xFFFFFFFF)).to(tl.int32)
    temperature = tl.load(laws + lane * LAW)
    top_k = tl.load(laws + lane * LAW + 1)
    top_p = tl.load(laws + lane * LAW + 2)
    min_p = tl.load(laws + lane * LAW + 3)
    most = tl.where((top_k >= 1.0) & (top_k < MAX_CANDIDATES), top_k.to(tl.int32), MAX_CANDIDATES)
    offered = (rank < most) & (best != LOWEST)
    heat = tl.where(temperature > 0.0, temperature, 1.0)
    largest = tl.max(tl.where(rank == 0, value, -3.4e38), axis=0)
    weight = tl.where(offered, tl.exp(value / heat - largest / heat), 0.0)
    running = tl.cumsum(weight, axis=0)
    total = tl.sum(weight, axis=0)
    # Kept: no earlier candidate reached the share top_p, and this one and all before it reach min_p (weights fall).
    # Numbers instead of truth values: the interpreter's cumulative sum compares to numbers.
    enough = tl.where(top_p < 1.0, top_p * total, float("inf"))
    reached = tl.where(running - weight >= enough, 1, 0)
    too_rare = tl.where(weight < tl.where(min_p > 0.0, min_p, -1.0), 1, 0)
    kept = offered & ((rank == 0) | (reached + too_rare == 0))
    last = tl.max(tl.where(kept, rank, 0), axis=0)
    share = tl.max(tl.where(kept, running, 0.0), axis=0)
    threshold = tl.load(uniforms + token) * share
    passed = tl.sum(tl.where(kept, tl.where(running <= threshold, 1, 0), 0), axis=0)
    chosen = tl.where(temperature > 0.0, tl.minimum(passed, last), 0)
    drawn = tl.sum(tl.where(rank == chosen, ids, 0), axis=0)
    stop = tl.load(stops + lane * STOPS + tl.arange(0, STOPS))
    stopped = tl.max(tl.where(stop == drawn, 1, 0), axis=0)
    block = tl.arange(0, BLOCKS)
    wrong = tl.load(faults + token * blocks + block, mask=block < blocks, other=0)
    fault = tl.where(tl.sum(wrong, axis=0) > 0, 1, 0)
    drawn = tl.minimum(tl.maximum(drawn, 0), vocabulary - 1)  # a fault's token must not be an address
    if COMMITS:
        at = counts + lane * vocabulary + drawn
        tl.store(at, tl.load(at) + 1)
        tl.store(anchors + lane, drawn)
    tl.store(results + 2 * token, drawn)
    tl.store(results + 2 * token + 1, stopped + 2 * fault)


@triton.jit(do_not_specialize=["vocabulary", "words", "columns", "width"])
def accept_columns(
    drawn, lanes, ids, live, halts, counts, anchors, results, vocabulary, words, columns, width, L: tl.constexpr
):  # fmt: skip
    """A program goes through the columns of a lane, for as long as what was drawn is what was guessed and does not
    halt it."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.load(lanes + row).to(tl.int64)
    column = tl.arange(0, L)
    there = column < columns
    at = row * columns + column
    token = tl.load(drawn + 2 * at, mask=there, other=0)
    flags = tl.load(drawn + 2 * at + 1, mask=there, other=0)
    guess = tl.load(ids + at + 1, mask=column + 1 < columns, other=-1)
    # Behind logits that are not finite the token may be none.
    word = tl.load(halts + lane * words + (token >> 5), mask=there & (token >= 0), other=0)
    halts_not = ((word >> (token & 31)) & 1) == 0
    goes_on = (column < tl.load(live + row)) & (token == guess) & (flags == 0) & halts_not
    accepted = tl.min(tl.where(goes_on, L, column), axis=0)
    kept = column <= accepted
    tl.store(results + row * width + 2 + column, token, mask=there)
    tl.store(results + row * width, accepted)
    tl.store(results + row * width + 1, tl.sum(tl.where(column == accepted, flags, 0), axis=0))
    tl.atomic_add(counts + lane * vocabulary + token, 1, mask=kept, sem="relaxed")  # one token may come twice
    tl.store(anchors + lane, tl.sum(tl.where(column == accepted, token, 0), axis=0))


def draw(
    logits: Tensor,
    public_ids: int,
    lanes: Tensor,
    uniforms: Tensor,
    tables: LaneTables,
    buffers: DrawBuffers,
    results: Tensor,
) -> None:
    _draw(logits, public_ids, lanes, 1, lanes, uniforms, tables, buffers, results, commits=True)


def verify(
    logits: Tensor,
    public_ids: int,
    lanes: Tensor,
    columns: int,
    ids: Tensor,
    live: Tensor,
    uniforms: Tensor,
    tables: LaneTables,
    buffers: DrawBuffers,
    results: Tensor,
) -> None:
    _draw(logits, public_ids, lanes, columns, ids, uniforms, tables, buffers, buffers.drawn, commits=False)
    accept_columns[(lanes.shape[0],)](
        buffers.drawn, lanes, ids, live, tables.halts, tables.counts, tables.anchors, results, logits.shape[1],
        tables.halts.shape[1], columns, results.shape[1], L=MAX_COLUMNS, num_warps=1,
    )  # fmt: skip


def _draw(
    logits: Tensor,
    public_ids: int,
    lanes: Tensor,
    columns: int,
    ids: Tensor,
    uniforms: Tensor,
    tables: LaneTables,
    buffers: DrawBuffers,
    results: Tensor,
    *,
    commits: bool,
) -> None:
    tokens, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    first, second = buffers.keys
    choose_candidates[(blocks, tokens)](
        logits, lanes, ids, tables.laws, tables.counts, tables.masks, first, buffers.faults, vocabulary, public_ids,
        tables.masks.stride(0), tables.masks.stride(1) if tables.masks.dim() == 3 else 0, columns,
        LAW=LAW_FIELDS, SIZE=BLOCK, KEPT=KEEP, num_warps=WARPS,
    )  # fmt: skip
    keys, spare, count = first, second, blocks * KEEP
    while count > MERGED:
        parts = triton.cdiv(count, MERGED)
        merge_keys[(parts, tokens)](keys, spare, count, PADDED=MERGED, KEEP=KEEP, DEPENDENT=False, num_warps=WARPS)
        keys, spare, count = spare, keys, parts * KEEP
    draw_token[(tokens,)](
        keys, lanes, tables.laws, uniforms, tables.stops, tables.counts, tables.anchors, buffers.faults, results,
        vocabulary, count, blocks, columns,
        BLOCKS=triton.next_power_of_2(blocks), LAW=LAW_FIELDS, STOPS=MAX_STOP_IDS, SIZE=MERGED, KEPT=KEEP,
        COMMITS=commits, num_warps=WARPS,
    )  # fmt: skip
