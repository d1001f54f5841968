"""What a sequence takes along when it leaves a lane or comes back: views of a cache, all layers at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.model.arena import Arena


@dataclass(frozen=True, slots=True)
class Carried:
    """Of L recurrent layers and C lanes, and of M pages; W is the width of the convolution.

    states   [L, C, HV, DV, DK] fp32: entry states of the lanes' blocks
    entry    [L, C, W - 1, channels]: what the convolution read in front of these blocks, oldest first
    recent   [L, C, W - 1, channels]: where a lane that stands at a block start keeps the same for what it reads next
    planes   of the page pool in order, each [M, words] int64
    """

    states: Tensor
    entry: Tensor
    recent: Tensor
    planes: tuple[Tensor, ...]

    @property
    def state_bytes(self) -> int:
        """Of one lane: entry columns and states of all layers."""
        return _lane_bytes(self.entry) + _lane_bytes(self.states)

    @property
    def entry_bytes(self) -> int:
        """Of one lane: entry columns of all layers."""
        return _lane_bytes(self.entry)

    @property
    def page_bytes(self) -> int:
        return sum(plane.shape[1] * plane.itemsize for plane in self.planes)

    def keep_entry(self, lane: int) -> None:
        """The lane's next block begins: what is recent now is in front of it."""
        self.entry[:, lane].copy_(self.recent[:, lane])

    def go_back(self, lane: int) -> None:
        """The lane reads again from the start of its block: its state is there, and so is what is recent."""
        self.recent[:, lane].copy_(self.entry[:, lane])


def _lane_bytes(stacked: Tensor) -> int:
    return stacked.numel() // stacked.shape[1] * stacked.itemsize


def planes_of(pool: Arena) -> tuple[Tensor, ...]:
    """Planes of a page pool, each [M, words] int64; a page of any plane is a multiple of eight bytes."""
    return tuple(plane.view(plane.shape[0], -1).view(torch.int64) for plane in pool.tensors)
