"""Host side of a short chunk's product: grid, tile and launch options.

The same function runs on host tensors under Triton's interpreter, where launch options mean nothing.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from ninfer.kernels.low_bit_linear.packing import PAIR_ROWS, TILE_ROWS
from ninfer.kernels.low_bit_linear.triton_chunk import product_chunk as product_kernel
from ninfer.kernels.low_bit_linear.variants import ChunkTile, chunk_tile

KERNELS = (product_kernel,)
_INTERPRETED = (80, 1)  # stands for the processor, where tiles mean nothing


@cache
def _gpu(index: int) -> tuple[int, int]:
    properties = torch.cuda.get_device_properties(index)
    return 10 * properties.major + properties.minor, properties.multi_processor_count


def chip_of(device: torch.device) -> tuple[int, int]:
    """Compute capability times ten, and multiprocessors."""
    return _gpu(device.index or 0) if device.type == "cuda" else _INTERPRETED


def product_chunk(x: Tensor, weight: LowBitWeight, out: Tensor, tile: ChunkTile | None = None) -> None:
    """`op.product_chunk` on a GPU; a measurement may choose the tile."""
    tokens, columns = x.shape
    count, quanta, _ = weight.words.shape
    if tile is None:
        tile = chunk_tile(*chip_of(x.device), count, columns, tokens)
    assert columns % tile.step == 0
    half, apart = (weight.rows // 2, PAIR_ROWS) if weight.paired else (PAIR_ROWS, TILE_ROWS)
    product_kernel[(-(-tokens // tile.tokens), -(-count // tile.tiles))](
        x, weight.words, out, tokens, columns // tile.step, quanta, count, weight.rows // 8, half // 8, apart // 8,
        out.stride(0) // 8,
        BITS=weight.bits, TILES=tile.tiles, TOKENS=tile.tokens, STEP=tile.step, STAGES=tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip
