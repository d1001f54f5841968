"""Host side of the Triton routes: grids, compile-time values and launch options.

The same functions run on host tensors under Triton's interpreter, where launch options mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ninfer.kernels.gdn import variants
from ninfer.kernels.gdn.chunk_scratch import ChunkScratch, chunk_scratch
from ninfer.kernels.gdn.gluon_round import gdn_round as round_kernel
from ninfer.kernels.gdn.slots import BLOCK, KEY_ROWS, RING, ROWS, GdnConstants, GdnSlots
from ninfer.kernels.gdn.triton_chunk import convolve_blocks, finish_rows, prepare_blocks, scan_blocks
from ninfer.kernels.low_bit_linear.buffers import Columns, Norm
from ninfer.kernels.low_bit_linear.triton_launch import dependent

KERNELS = (round_kernel, convolve_blocks, prepare_blocks, scan_blocks, finish_rows)


@cache
def _shared_bytes(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def _prepare_registers(device: torch.device) -> int | None:
    return variants.prepare_registers(_shared_bytes(device.index or 0) if device.type == "cuda" else 0)


def _scan_stages(device: torch.device) -> int:
    return variants.scan_stages(_shared_bytes(device.index or 0) if device.type == "cuda" else 0)


def gdn_round(
    first: Tensor,
    second: Tensor,
    x: Columns,
    norm: Norm,
    ab: Tensor,
    constants: GdnConstants,
    slots: GdnSlots,
    lanes: Tensor,
    positions: Tensor,
    state_blocks: Tensor,
    columns_per_lane: int,
    out: Columns,
) -> None:
    early = dependent(first.device)
    round_kernel[(slots.value_heads, lanes.shape[0])](
        first, second, x.storage, norm.squares, ab, constants.taps, constants.decay_rate, constants.dt_bias,
        constants.norm, slots.s, slots.open_k, slots.open_u, slots.open_g, slots.ring, lanes, positions, state_blocks,
        out.storage,
        columns_per_lane, slots.key_heads, slots.value_heads, x.columns, norm.squares.shape[1],
        x.storage.shape[1], x.width, out.storage.shape[1], out.width, norm.eps, constants.eps, slots.key_width**-0.5,
        DK=slots.key_width, DV=slots.value_width, KEY_ROWS=KEY_ROWS, ROWS=ROWS, RING=RING,
        GROUP=variants.round_group(columns_per_lane), STEPS=-(-x.columns // variants.HIDDEN_STEP),
        STEP=variants.HIDDEN_STEP, EXACT=x.columns % variants.HIDDEN_STEP == 0, DEPENDENT=early,
        num_warps=variants.ROUND_WARPS, launch_pdl=early,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A chunk to be run in parts of `variants.SUB_BLOCKS` blocks; the steps of a part follow each other."""

    first: Tensor
    second: Tensor
    ab_rows: Tensor
    constants: GdnConstants
    slots: GdnSlots
    lane: int
    begin: int
    scratch: ChunkScratch
    out: Tensor

    def parts(self) -> list[tuple[int, int]]:
        """First block, counted from the chunk's, and number of blocks of each part."""
        count = -(-(self.begin % BLOCK + self.first.shape[0]) // BLOCK)
        size = variants.SUB_BLOCKS
        return [(block, min(count - block, size)) for block in range(0, count, size)]

    @property
    def apart(self) -> int:
        """A number that divides the distances between rows, for loads of 16 bytes where they allow them."""
        return 16 if self.first.stride(0) % 16 == self.second.stride(0) % 16 == 0 else 1

    def convolve(self, block: int, blocks: int) -> None:
        slots, part, lane = self.slots, self.scratch, self.lane
        convolve_blocks[(2 * slots.key_heads + slots.value_heads, blocks)](
            self.first, self.second, self.constants.taps, slots.ring[lane],
            part.queries, part.keys, part.values,
            self.first.shape[0], self.begin, block, slots.key_heads, slots.value_heads,
            self.first.stride(0) // self.apart, self.second.stride(0) // self.apart,
            DK=slots.key_width, DV=slots.value_width, RING=RING, APART=self.apart,
            num_warps=variants.CONVOLVE_WARPS, maxnreg=variants.CONVOLVE_REGISTERS,
        )  # fmt: skip

    def prepare(self, block: int, blocks: int) -> None:
        slots, constants, part = self.slots, self.constants, self.scratch
        prepare_blocks[(slots.value_heads, blocks)](
            self.ab_rows, constants.decay_rate, constants.dt_bias,
            part.queries, part.keys, part.inverses, part.inside, part.factors,
            self.first.shape[0], self.begin, block, slots.key_heads, slots.value_heads,
            self.ab_rows.stride(0), slots.key_width**-0.5,
            DK=slots.key_width, num_warps=variants.PREPARE_WARPS, maxnreg=_prepare_registers(slots.s.device),
        )  # fmt: skip

    def scan(self, block: int, blocks: int) -> None:
        slots, part, lane = self.slots, self.scratch, self.lane
        piece = min(slots.value_width, variants.SCAN_VALUES)
        scan_blocks[(slots.value_width // piece, slots.value_heads)](
            part.queries, part.keys, part.values, part.inverses, part.inside, part.factors,
            slots.s[lane], slots.open_k[lane], slots.open_u[lane], slots.open_g[lane], part.mixed,
            self.first.shape[0], self.begin, block, blocks, slots.key_heads, slots.value_heads,
            DK=slots.key_width, DV=slots.value_width, SLICE=piece, KEY_ROWS=KEY_ROWS, ROWS=ROWS,
            STAGES=_scan_stages(self.first.device), num_warps=variants.SCAN_WARPS,
        )  # fmt: skip

    def finish(self, block: int, blocks: int) -> None:
        slots, part, lane = self.slots, self.scratch, self.lane
        finish_rows[(slots.value_heads, blocks)](
            part.mixed, self.first, self.second, self.constants.norm, part.keys, part.factors,
            slots.ring[lane], slots.open_k[lane], slots.open_g[lane], self.out,
            self.first.shape[0], self.begin, block, slots.key_heads, slots.value_heads,
            self.first.stride(0) // self.apart, self.second.stride(0) // self.apart, self.constants.eps,
            DK=slots.key_width, DV=slots.value_width, KEY_ROWS=KEY_ROWS, ROWS=ROWS, RING=RING, APART=self.apart,
            num_warps=variants.FINISH_WARPS,
        )  # fmt: skip


def gdn_chunk(
    first: Tensor,
    second: Tensor,
    ab_rows: Tensor,
    constants: GdnConstants,
    slots: GdnSlots,
    lane: int,
    begin: int,
    scratch: Tensor,
    out: Tensor,
) -> None:
    parts = chunk_scratch(scratch, begin % BLOCK + first.shape[0], slots.shape)
    chunk = Chunk(first, second, ab_rows, constants, slots, lane, begin, parts, out)
    for block, blocks in chunk.parts():
        chunk.convolve(block, blocks)
        chunk.prepare(block, blocks)
        chunk.scan(block, blocks)
        chunk.finish(block, blocks)
