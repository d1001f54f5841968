"""Host side of the Triton route: grids, compile-time values and launch options of every kernel of this op.

The same functions run on host tensors under Triton's interpreter, where launch options mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear import variants
from ninfer.kernels.low_bit_linear.buffers import Columns, Norm, PartialSums
from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from ninfer.kernels.low_bit_linear.packing import PAIR_ROWS, TILE_ROWS
from ninfer.kernels.low_bit_linear.triton_dequantise import dequantise as dequantise_kernel
from ninfer.kernels.low_bit_linear.triton_finish import finish_residual as residual_kernel
from ninfer.kernels.low_bit_linear.triton_finish import finish_rows as rows_kernel
from ninfer.kernels.low_bit_linear.triton_finish import finish_silu_mul as silu_mul_kernel
from ninfer.kernels.low_bit_linear.triton_head import finish_head as head_kernel
from ninfer.kernels.low_bit_linear.triton_head import merge_keys
from ninfer.kernels.low_bit_linear.triton_stream import stream_one, stream_two

MIN_DEPENDENT_CAPABILITY = (9, 0)


KERNELS = (
    stream_one,
    stream_two,
    rows_kernel,
    silu_mul_kernel,
    residual_kernel,
    head_kernel,
    merge_keys,
    dequantise_kernel,
)


def settle_cache_keys() -> None:
    """Make the keys of Triton's disk cache the same in every process, whichever kernel is launched first.

    Triton (3.6 to 3.9) hashes a function once, with what it had hashed by then; so kernels that share functions get
    keys that depend on who came first, and a process with another order would compile again. Call before the first
    launch.
    """
    for kernel in KERNELS:
        _ = kernel.cache_key


@cache
def _capability_dependent(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= MIN_DEPENDENT_CAPABILITY


def dependent(device: torch.device) -> bool:
    """Whether kernels of a device are launched before their predecessor has ended."""
    return device.type == "cuda" and _capability_dependent(device.index or 0)


def default_programs(device: torch.device) -> int:
    """As many programs as fit on the device at once."""
    return torch.cuda.get_device_properties(device).multi_processor_count * variants.PROGRAMS_PER_MULTIPROCESSOR


def multiply(x: Columns, tokens: int, products: Sequence[tuple[LowBitWeight, PartialSums]]) -> None:
    early = dependent(x.storage.device)
    weight, sums = products[0]
    grid = (-(-tokens // x.width), sum(part.schedule.programs for _, part in products))
    first = (
        x.storage.shape[1],
        tokens,
        sums.storage.shape[1],
        sums.schedule.quanta,
        sums.schedule.tiles,
        sums.schedule.programs,
    )
    if len(products) == 1:
        stream_one[grid](
            x.storage, weight.words, sums.storage, *first,
            BITS=weight.bits, WIDTH=x.width, DEPENDENT=early,
            num_warps=1, maxnreg=variants.REGISTERS, launch_pdl=early,
        )  # fmt: skip
        return
    (_, _), (weight2, sums2) = products
    assert weight2.packing.columns == weight.packing.columns
    assert sums2.storage.shape[1] == sums.storage.shape[1]
    stream_two[grid](
        x.storage, weight.words, sums.storage, weight2.words, sums2.storage, *first,
        sums2.schedule.tiles, sums2.schedule.programs,
        BITS=weight.bits, BITS2=weight2.bits, WIDTH=x.width, DEPENDENT=early,
        num_warps=1, maxnreg=variants.REGISTERS, launch_pdl=early,
    )  # fmt: skip


def dequantise(weight: LowBitWeight, out: Tensor) -> None:
    count, quanta, _ = weight.words.shape
    half, stride = (weight.rows // 2, PAIR_ROWS) if weight.paired else (PAIR_ROWS, TILE_ROWS)
    dequantise_kernel[(count, -(-quanta // variants.DEQUANTISE_STEPS))](
        weight.words, out, weight.rows, weight.columns // 8, quanta, half, stride,
        BITS=weight.bits, STEPS=variants.DEQUANTISE_STEPS, num_warps=1,
    )  # fmt: skip


def _norm_arguments(norm: Norm | None, sums: PartialSums) -> tuple[Tensor, tuple[int, int, float], int]:
    """Squares; columns, blocks, eps; the padded number of blocks: 0 without a norm, and then no pointer is read."""
    if norm is None:
        return sums.storage, (1, 0, 0.0), 0
    blocks = norm.squares.shape[1]
    assert blocks <= variants.NORM_PADDED
    return norm.squares, (norm.columns, blocks, norm.eps), variants.NORM_PADDED


def _grid(rows: int, tokens: int, tiles: int) -> tuple[int, int]:
    return (-(-rows // (16 * tiles)), -(-tokens // 8))


def finish_rows(sums: PartialSums, tokens: int, norm: Norm | None, out: Tensor) -> None:
    early = dependent(out.device)
    squares, law, padded = _norm_arguments(norm, sums)
    rows_kernel[_grid(sums.rows, tokens, variants.FINISH_TILES)](
        sums.storage, squares, out, sums.rows, *_shape(sums), tokens, *law,
        SLOTS=sums.slots, TILES=variants.FINISH_TILES, NORM_PADDED=padded, DEPENDENT=early,
        num_warps=variants.FINISH_WARPS, launch_pdl=early,
    )  # fmt: skip


def finish_silu_mul(sums: PartialSums, tokens: int, norm: Norm | None, out: Columns) -> None:
    early = dependent(out.storage.device)
    squares, law, padded = _norm_arguments(norm, sums)
    silu_mul_kernel[_grid(out.columns, tokens, variants.FINISH_TILES)](
        sums.storage, squares, out.storage, out.columns, *_shape(sums), tokens, out.storage.shape[1], *law,
        SLOTS=sums.slots, TILES=variants.FINISH_TILES, NORM_PADDED=padded, WIDTH=out.width,
        DEPENDENT=early, num_warps=variants.FINISH_WARPS, launch_pdl=early,
    )  # fmt: skip


def finish_residual(sums: PartialSums | None, residual: Tensor, weight: Tensor, out: Columns, norm: Norm) -> None:
    early = dependent(residual.device)
    tokens, rows = residual.shape
    # Without sums nothing is read through the first pointer.
    part, tiles, blocks = (norm.squares, 1, 1) if sums is None else (sums.storage, *_shape(sums))
    residual_kernel[_grid(rows, tokens, variants.FINISH_TILES)](
        part, residual, weight, out.storage, norm.squares, rows, tiles, blocks, tokens,
        out.storage.shape[1],
        SLOTS=0 if sums is None else sums.slots, TILES=variants.FINISH_TILES, WIDTH=out.width, DEPENDENT=early,
        num_warps=variants.FINISH_WARPS, launch_pdl=early,
    )  # fmt: skip


def _shape(sums: PartialSums) -> tuple[int, int]:
    """Row tiles and blocks of columns."""
    return sums.storage.shape[2], sums.storage.shape[1]


def finish_head(
    sums: PartialSums, tokens: int, norm: Norm | None, legal: int, keep: int, logits: Tensor | None
) -> tuple[Tensor, Tensor]:
    device = sums.storage.device
    early = dependent(device)
    squares, law, padded = _norm_arguments(norm, sums)
    kept = 1 if keep == 1 else variants.HEAD_KEEP
    grid = _grid(sums.rows, tokens, variants.HEAD_TILES)
    keys = torch.empty(tokens, grid[0], kept, dtype=torch.int64, device=device)
    head_kernel[grid](
        sums.storage, squares, sums.storage if logits is None else logits, keys,
        sums.rows, legal, *_shape(sums), tokens, *law,
        SLOTS=sums.slots, TILES=variants.HEAD_TILES, NORM_PADDED=padded, KEEP=kept,
        LOGITS=logits is not None, DEPENDENT=early, num_warps=variants.HEAD_WARPS, launch_pdl=early,
    )  # fmt: skip
    count = grid[0] * kept
    while count > kept:
        parts = -(-count // variants.MERGE_KEYS)
        merged = torch.empty(tokens, parts, kept, dtype=torch.int64, device=device)
        merge_keys[(parts, tokens)](
            keys, merged, count, PADDED=variants.MERGE_KEYS, KEEP=kept, DEPENDENT=early,
            num_warps=variants.HEAD_WARPS, launch_pdl=early,
        )  # fmt: skip
        keys, count = merged, parts * kept
    return _read_keys(keys[:, 0, :keep])


def _read_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Values and rows of keys; the inverse of `triton_head._keys`."""
    ordered = (keys >> 32).to(torch.int32)
    values = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return values, (0xFFFFFFFF - (keys & 0xFFFFFFFF)).to(torch.int32)
