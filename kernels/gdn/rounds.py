"""Gated DeltaNet of a served model: a round of a few columns for many lanes, and a chunk of a prompt for one.

Both run convolution, gates, the recurrence of ``op.py`` in its 64-token blocks, output norm and gate. On a GPU their
bits differ: a round adds in fp32, a chunk multiplies sums of two bf16 numbers (17 bits) on the matrix units; both keep
the state in fp32 and hand it on in the same form.

A column's bits do not depend on its neighbours, on the number of lanes or columns, or on how many columns came in one
round; a token of a chunk has the same bits however the prompt was cut into chunks of whole blocks. A chunk that begins
inside a block takes the rows that are there as they are, whoever has made them.
"""

from __future__ import annotations

from torch import Tensor

from ninfer.kernels.gdn import torch_rounds
from ninfer.kernels.gdn.chunk_scratch import chunk_scratch_bytes as chunk_scratch_bytes
from ninfer.kernels.gdn.slots import MAX_COLUMNS, GdnConstants, GdnSlots
from ninfer.kernels.low_bit_linear.buffers import Columns


def gdn_round(
    first: Tensor,
    second: Tensor,
    x: Columns,
    ab: Tensor,
    constants: GdnConstants,
    slots: GdnSlots,
    lanes: Tensor,
    positions: Tensor,
    state_blocks: Tensor,
    columns_per_lane: int,
    out: Columns,
) -> None:
    """Run L consecutive tokens of each of B lanes; column t = b L + l stands at position positions[b] + l.

    first         [B L, 2 HK DK] bf16, query | key before the convolution
    second        [B L, 2 HV DV] bf16, value before the convolution | z
    x             the layer's input with its norm, K a multiple of 32
    ab            [2 HV, K] bf16, projections to a, then to b
    lanes         [B] int32, distinct slots
    positions     [B] int32, of each lane's first column
    state_blocks  [B] int32, block whose entry state `slots.s` holds: that of the position or the one before
    out           columns of HV DV values, rounded once from fp32
    effects       writes the first B L columns of out and the rows of the columns. If a lane's first column stands in a
                  later block than `state_blocks` says, that block's entry state replaces `slots.s`: the next round
                  must say so. To keep its entry columns, which lie in the ring before the round, is the caller's part.
                  Columns that were rejected are forgotten by giving the next round an earlier position.

    On a GPU lanes, positions, state_blocks and the slots are read before the launch before this one has ended: they
    must have been written two launches ago or in an earlier graph.
    """
    tokens = lanes.shape[0] * columns_per_lane
    channels = first.shape[1] + second.shape[1] // 2
    assert 1 <= columns_per_lane <= MAX_COLUMNS
    assert first.shape[0] == second.shape[0] == tokens <= min(x.capacity, out.capacity)
    assert first.shape[1] == 2 * slots.key_heads * slots.key_width
    assert second.shape[1] == 2 * slots.value_heads * slots.value_width == 2 * out.columns
    assert slots.ring.shape[2] == channels == constants.taps.shape[1]
    assert ab.shape == (2 * slots.value_heads, x.columns)
    assert x.columns % 32 == 0
    assert x.norm is not None
    if first.is_cuda:
        from ninfer.kernels.gdn import triton_launch

        run = triton_launch.gdn_round
    else:
        run = torch_rounds.gdn_round
    run(first, second, x, x.norm, ab, constants, slots, lanes, positions, state_blocks, columns_per_lane, out)


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
    """Run T consecutive tokens of one lane, from a block's first position on or behind the rows that its block has.

    first, second  as in :func:`gdn_round`, T rows
    ab_rows        [T, 2 HV] bf16, a | b
                   These three may be columns of one matrix: their rows are contiguous and any distance apart.
    begin          position of the first token; at 0 a sequence begins and nothing is read of the slot. Inside a block
                   the slot holds that block's entry state, its rows and the columns before the token
    scratch        [n] uint8, n >= chunk_scratch_bytes(begin % 64 + T, ...), starting at a multiple of 256
    out            [T, HV DV] bf16, rounded once from fp32
    effects        writes out; `slots.s` and the entry columns become those of block (begin + T) // 64; its rows and the
                   last three columns are kept; scratch is overwritten
    """
    tokens = first.shape[0]
    assert tokens >= 1
    assert first.shape == (tokens, 2 * slots.key_heads * slots.key_width)
    assert second.shape == (tokens, 2 * slots.value_heads * slots.value_width)
    assert ab_rows.shape == (tokens, 2 * slots.value_heads)
    assert out.shape == (tokens, slots.value_heads * slots.value_width)
    assert first.stride(1) == second.stride(1) == ab_rows.stride(1) == 1
    if first.is_cuda:
        from ninfer.kernels.gdn import triton_launch

        triton_launch.gdn_chunk(first, second, ab_rows, constants, slots, lane, begin, scratch, out)
    else:
        torch_rounds.gdn_chunk(first, second, ab_rows, constants, slots, lane, begin, out)
