"""Host side of the Triton route: grids, compile-time values and launch options of every kernel of this op.

The same functions run on host tensors under Triton's interpreter, where launch options mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ninfer.kernels.low_bit_linear import triton_products, triton_separate, variants
from ninfer.kernels.low_bit_linear.buffers import Columns, Norm, PartialSums, width_for
from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from ninfer.kernels.low_bit_linear.packing import PAIR_ROWS, TILE_ROWS
from ninfer.kernels.low_bit_linear.schedule import inverse
from ninfer.kernels.low_bit_linear.triton_dequantise import dequantise as dequantise_kernel
from ninfer.kernels.low_bit_linear.triton_head import block_keys, merge_keys

MIN_DEPENDENT_CAPABILITY = (9, 0)


KERNELS = (
    triton_products.product_rows_one,
    triton_products.product_rows_two,
    triton_products.product_silu_mul,
    triton_products.product_residual,
    triton_separate.stream_one,
    triton_separate.stream_two,
    triton_separate.finish_rows,
    triton_separate.finish_silu_mul,
    triton_separate.finish_residual,
    triton_separate.first_norm,
    block_keys,
    merge_keys,
    dequantise_kernel,
)


@cache
def _capability_dependent(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= MIN_DEPENDENT_CAPABILITY


def dependent(device: torch.device) -> bool:
    """Whether kernels of a device are launched before their predecessor has ended."""
    return device.type == "cuda" and _capability_dependent(device.index or 0)


def default_programs(device: torch.device) -> int:
    """As many programs as fit on the device at once."""
    return torch.cuda.get_device_properties(device).multi_processor_count * variants.PROGRAMS_PER_MULTIPROCESSOR


def product_rows(
    x: Columns, tokens: int, products: Sequence[tuple[LowBitWeight, PartialSums]], outs: Sequence[Tensor]
) -> None:
    early = dependent(x.storage.device)
    weight, sums = products[0]
    squares, *law = _norm_arguments(x.norm, sums)
    constants = {"WIDTH": x.width, "NORMED": x.norm is not None, "DEPENDENT": early}
    grid = (-(-tokens // x.width), sum(part.schedule.programs for _, part in products))
    first = (x.storage.shape[1], tokens, *_schedule(sums))
    if len(products) == 1:
        triton_products.product_rows_one[grid](
            x.storage, *_matrix(weight, sums), outs[0], squares, *first, weight.rows, *law,
            BITS=weight.bits, SLOTS=sums.slots, **constants,
            num_warps=1, maxnreg=variants.REGISTERS, launch_pdl=early,
        )  # fmt: skip
        return
    weight2, sums2 = products[1]
    _assert_together(weight, sums, weight2, sums2)
    triton_products.product_rows_two[grid](
        x.storage, *_matrix(weight, sums), outs[0], *_matrix(weight2, sums2), outs[1], squares, *first,
        weight.rows, *_more(sums2), weight2.rows, _both(sums, sums2), *law,
        BITS=weight.bits, BITS2=weight2.bits, SLOTS=sums.slots, **constants,
        num_warps=1, maxnreg=variants.REGISTERS, launch_pdl=early,
    )  # fmt: skip


def product_silu_mul(x: Columns, tokens: int, weight: LowBitWeight, sums: PartialSums, out: Columns) -> None:
    early = dependent(x.storage.device)
    squares, *law = _norm_arguments(x.norm, sums)
    triton_products.product_silu_mul[(-(-tokens // x.width), sums.schedule.programs)](
        x.storage, *_matrix(weight, sums), out.storage, squares, x.storage.shape[1], tokens,
        *_schedule(sums), out.storage.shape[1], *law,
        BITS=weight.bits, WIDTH=x.width, SLOTS=sums.slots,
        NORMED=x.norm is not None, DEPENDENT=early,
        num_warps=1, maxnreg=variants.REGISTERS, launch_pdl=early,
    )  # fmt: skip


def product_residual(
    x: Columns, tokens: int, weight: LowBitWeight, sums: PartialSums, residual: Tensor, norm_weight: Tensor,
    out: Columns, norm: Norm, cleared: Norm,
) -> None:  # fmt: skip
    early = dependent(x.storage.device)
    triton_products.product_residual[(-(-tokens // x.width), sums.schedule.programs)](
        x.storage, *_matrix(weight, sums), residual, norm_weight, out.storage, norm.squares, cleared.squares,
        x.storage.shape[1], tokens, *_schedule(sums), weight.rows,
        out.storage.shape[1], norm.squares.shape[1], cleared.squares.numel(),
        BITS=weight.bits, WIDTH=x.width, SLOTS=sums.slots, DEPENDENT=early,
        num_warps=1, maxnreg=variants.REGISTERS, launch_pdl=early,
    )  # fmt: skip


def _matrix(weight: LowBitWeight, sums: PartialSums) -> tuple[Tensor, Tensor, Tensor]:
    return weight.words, sums.storage, sums.counters


def _schedule(sums: PartialSums) -> tuple[int, ...]:
    """Tiles, quanta and the inverse; programs, the shorter length of a run, the inverses of both lengths."""
    schedule = sums.schedule
    tiles, *runs = _more(sums)
    return tiles, schedule.quanta, inverse(schedule.quanta), *runs


def _more(sums: PartialSums) -> tuple[int, ...]:
    """The same of a second matrix, which has as many quanta."""
    schedule = sums.schedule
    base = schedule.tiles * schedule.quanta // schedule.programs
    return schedule.tiles, schedule.programs, base, inverse(base), inverse(base + 1)


def _both(sums: PartialSums, sums2: PartialSums) -> int:
    return inverse(sums.schedule.programs + sums2.schedule.programs)


def _assert_together(weight: LowBitWeight, sums: PartialSums, weight2: LowBitWeight, sums2: PartialSums) -> None:
    assert weight2.packing.columns == weight.packing.columns
    assert sums2.slots == sums.slots


def multiply(x: Columns, tokens: int, products: Sequence[tuple[LowBitWeight, PartialSums]]) -> None:
    early = dependent(x.storage.device)
    weight, sums = products[0]
    grid = (-(-tokens // x.width), sum(part.schedule.programs for _, part in products))
    first = (x.storage.shape[1], tokens, *_schedule(sums))
    if len(products) == 1:
        triton_separate.stream_one[grid](
            x.storage, weight.words, sums.storage, *first,
            BITS=weight.bits, WIDTH=x.width, SLOTS=sums.slots, DEPENDENT=early,
            num_warps=1, maxnreg=variants.REGISTERS, launch_pdl=early,
        )  # fmt: skip
        return
    weight2, sums2 = products[1]
    _assert_together(weight, sums, weight2, sums2)
    triton_separate.stream_two[grid](
        x.storage, weight.words, sums.storage, weight2.words, sums2.storage, *first,
        *_more(sums2), _both(sums, sums2),
        BITS=weight.bits, BITS2=weight2.bits, WIDTH=x.width, SLOTS=sums.slots, DEPENDENT=early,
        num_warps=1, maxnreg=variants.REGISTERS, launch_pdl=early,
    )  # fmt: skip


def dequantise(weight: LowBitWeight, out: Tensor) -> None:
    count, quanta, _ = weight.words.shape
    half, stride = (weight.rows // 2, PAIR_ROWS) if weight.paired else (PAIR_ROWS, TILE_ROWS)
    dequantise_kernel[(count, -(-quanta // variants.DEQUANTISE_STEPS))](
        weight.words, out, weight.rows, weight.columns // 8, quanta, half, stride,
        BITS=weight.bits, STEPS=variants.DEQUANTISE_STEPS, num_warps=1,
    )  # fmt: skip


def _norm_arguments(norm: Norm | None, sums: PartialSums) -> tuple[Tensor, int, int, float]:
    """Squares; capacity, columns, eps. Without a norm no pointer is read."""
    if norm is None:
        return sums.storage, 0, 1, 0.0
    return norm.squares, norm.squares.shape[1], norm.columns, norm.eps


def _finishing(sums: PartialSums, tokens: int) -> tuple[tuple[int, int], int]:
    """Grid, slots."""
    return (sums.schedule.tiles, -(-tokens // 8)), sums.slots


def finish_rows(sums: PartialSums, tokens: int, norm: Norm | None, out: Tensor) -> None:
    early = dependent(out.device)
    squares, *law = _norm_arguments(norm, sums)
    grid, slots = _finishing(sums, tokens)
    triton_separate.finish_rows[grid](
        sums.storage, squares, out, sums.rows, grid[0], tokens, *law,
        SLOTS=slots, NORMED=norm is not None, WIDTH=width_for(tokens), DEPENDENT=early, num_warps=1, launch_pdl=early,
    )  # fmt: skip


def finish_silu_mul(sums: PartialSums, tokens: int, norm: Norm | None, out: Columns) -> None:
    early = dependent(out.storage.device)
    squares, *law = _norm_arguments(norm, sums)
    grid, slots = _finishing(sums, tokens)
    triton_separate.finish_silu_mul[grid](
        sums.storage, squares, out.storage, grid[0], tokens, out.storage.shape[1], *law,
        SLOTS=slots, NORMED=norm is not None, WIDTH=out.width, DEPENDENT=early, num_warps=1, launch_pdl=early,
    )  # fmt: skip


def finish_residual(
    sums: PartialSums, residual: Tensor, weight: Tensor, out: Columns, norm: Norm, cleared: Norm
) -> None:
    early = dependent(residual.device)
    tokens, rows = residual.shape
    grid, slots = _finishing(sums, tokens)
    triton_separate.finish_residual[grid](
        sums.storage, residual, weight, out.storage, norm.squares, cleared.squares, rows, grid[0],
        tokens, out.storage.shape[1], norm.squares.shape[1], cleared.squares.numel(),
        SLOTS=slots, WIDTH=out.width, DEPENDENT=early, num_warps=1, launch_pdl=early,
    )  # fmt: skip


def first_norm(residual: Tensor, weight: Tensor, out: Columns, norm: Norm, cleared: Norm) -> None:
    early = dependent(residual.device)
    tokens, rows = residual.shape
    triton_separate.first_norm[(tokens,)](
        residual, weight, out.storage, norm.squares, cleared.squares, rows, out.storage.shape[1],
        norm.squares.shape[1], cleared.squares.numel(),
        BLOCK=variants.FIRST_ROWS, WIDTH=out.width, DEPENDENT=early,
        num_warps=variants.FIRST_WARPS, launch_pdl=early,
    )  # fmt: skip


def candidates(logits: Tensor, legal: int, keep: int) -> tuple[Tensor, Tensor]:
    device = logits.device
    early = dependent(device)
    tokens, rows = logits.shape
    kept = 1 if keep == 1 else variants.HEAD_KEEP
    options = {"num_warps": variants.HEAD_WARPS, "launch_pdl": early}
    constants = {"PADDED": variants.HEAD_KEYS, "KEEP": kept, "DEPENDENT": early}
    parts = -(-legal // variants.HEAD_KEYS)
    keys = torch.empty(tokens, parts, kept, dtype=torch.int64, device=device)
    block_keys[(parts, tokens)](logits, keys, rows, legal, **constants, **options)
    while parts > 1:
        count = parts * kept
        parts = -(-count // variants.HEAD_KEYS)
        merged = torch.empty(tokens, parts, kept, dtype=torch.int64, device=device)
        merge_keys[(parts, tokens)](keys, merged, count, **constants, **options)
        keys = merged
    return _read_keys(keys[:, 0, :keep])


def _read_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Values and rows of keys; the inverse of `triton_head.candidate_keys`."""
    ordered = (keys >> 32).to(torch.int32)
    values = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    return values, (0xFFFFFFFF - (keys & 0xFFFFFFFF)).to(torch.int32)
