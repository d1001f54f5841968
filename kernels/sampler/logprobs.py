"""Log-probabilities of what was drawn and of what was likeliest, from raw logits. Any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.step import TokenLogprobs

# Rows that are worked on at a time: a row of a large vocabulary takes megabytes of intermediate values.
ROWS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Of each row: the log-probability of the chosen id [R, 1], then of the likeliest ids [R, 1 + K] fp32, and these
    ids [R, K] int32.
    """

    values: Tensor
    ids: Tensor

    def of(self, row: int, token_id: int) -> TokenLogprobs:
        """What is told of the token drawn from a row; in host memory."""
        own, *others = self.values[row].tolist()
        return TokenLogprobs(token_id, own, tuple(zip(self.ids[row].tolist(), others, strict=True)))

    def to_host(self, *, pinned: bool) -> LogprobRows:
        """A copy, with pinned memory without waiting: it is there when the work queued so far is done."""
        copies = []
        for tensor in (self.values, self.ids):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            copies.append(copy.copy_(tensor, non_blocking=pinned))
        return LogprobRows(*copies)


def logprob_rows(logits: Tensor, chosen: Tensor, count: int) -> LogprobRows:
    """Log-softmax in fp32 of `logits` [R, V] at the ids `chosen` [R], and at the `count` likeliest ids of each row, the
    lower id first of equal ones. An id outside the vocabulary, which was not drawn, counts as the nearest one.
    """
    count = min(count, logits.shape[1])
    values, ids = [], []
    for begin in range(0, len(logits), ROWS_AT_ONCE):
        logs = torch.log_softmax(logits[begin : begin + ROWS_AT_ONCE].float(), dim=1)
        at = chosen[begin : begin + ROWS_AT_ONCE].long().clamp(0, logs.shape[1] - 1)
        best = _likeliest(logs, count)
        values.append(logs.gather(1, torch.cat((at[:, None], best), dim=1)))
        ids.append(best.to(torch.int32))
    return LogprobRows(torch.cat(values), torch.cat(ids))


def _likeliest(logs: Tensor, count: int) -> Tensor:
    """[R, count] int64. Keys are integers in the order of the values, then of the ids downwards, so none are equal."""
    bits = (logs + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys = ordered * (1 << 32) - torch.arange(logs.shape[1], device=logs.device)
    return (-keys.topk(count, dim=1).values) & 0xFFFFFFFF
