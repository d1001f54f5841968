"""Drawing for guessed tokens: the target's own draws, one behind the other, for as long as they are what was guessed.

Each column is drawn by the ordinary law with the ordinary key of its position, so what comes out is token for token
what rounds without guesses draw (the coupled variant of speculation spec 1.4). A guess d is accepted with probability
p(d), as by the test u < p(d) of that section, and the tokens behind it do not depend on how many there were.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ninfer.kernels.sampler.lanes import NOT_FINITE, STOPPED, DrawBuffers, LaneTables, draw
from ninfer.kernels.sampler.masks import allowed


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
    """Draw for B lanes with L columns each; column t = b L + l stands behind token ids[t].

    logits    [B L, V] fp32, contiguous; ids from `public_ids` on are never drawn
    lanes     [B]      int32, distinct
    columns   L
    ids       [B L]    int32: each lane's anchor and the guesses behind it
    live      [B]      int32: guesses that count, at most L - 1; columns behind them are not looked at
    uniforms  [B L]    fp32 in [0, 1)
    results   [B, 2 + L'] int32, L' >= L: how many guesses were right; STOPPED | NOT_FINITE; the tokens, one more than
              guesses were right, and then anything. With NOT_FINITE the others mean nothing
    effects   writes results; the tokens are counted, the last becomes its lane's anchor. A stop token is the last, and
              so is one that halts its lane
    """
    rows = lanes.shape[0]
    assert logits.shape[0] == ids.shape[0] == uniforms.shape[0] == rows * columns
    assert live.shape[0] == results.shape[0] == rows
    assert results.shape[1] >= 2 + columns
    if logits.is_cuda:
        from ninfer.kernels.sampler import triton_draw

        triton_draw.verify(logits, public_ids, lanes, columns, ids, live, uniforms, tables, buffers, results)
        return
    drawn = torch.empty(1, 2, dtype=torch.int32)
    for row in range(rows):
        halts = allowed(tables.halts[int(lanes[row])], public_ids)
        for column in range(int(live[row]) + 1):
            at = row * columns + column
            masks = tables.masks[:, column] if tables.masks.dim() == 3 else tables.masks
            draw(
                logits[at : at + 1], public_ids, lanes[row : row + 1], uniforms[at : at + 1],
                replace(tables, masks=masks), buffers, drawn,
            )  # fmt: skip
            token, flags = drawn[0].tolist()
            results[row, 2 + column] = token
            results[row, 0], results[row, 1] = column, flags
            goes_on = column < int(live[row]) and token == int(ids[at + 1])
            if not goes_on or flags & (STOPPED | NOT_FINITE) or bool(halts[token]):
                break
