"""The gated DeltaNet recurrence in the one evaluation order of kv-and-state spec 9.4.

Positions are cut into blocks of 64, counted from position 0. Per value head j with key head m = j // (HV / HK), entry
state S of the block and rows i = 0..63, all in fp32:

    kn_i = k_i / sqrt(sum k_i**2 + 1e-6)      qn_i likewise      G_i = g_0 + .. + g_i, left to right
    u_i  = beta_i * ( v_i - exp(G_i) * S kn_i - sum_{j<i} exp(G_i - G_j) (kn_j . kn_i) u_j )
    o_i  = ( exp(G_i) * S qn_i + sum_{j<=i} exp(G_i - G_j) (kn_j . qn_i) u_j ) / sqrt(DK)
    S'   = exp(G_63) * S + sum_j exp(G_63 - G_j) u_j kn_j^T          once the block is full

Rows come one after the other (forward substitution); a sum over j always runs over 64 terms, those not yet there being
zero. The rows of the open block (kn, u, G) stay beside S, so one more token costs one more row and the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ninfer.kernels.gdn import torch_blocks

BLOCK = torch_blocks.BLOCK


@dataclass(frozen=True, slots=True)
class GdnRows:
    """What the recurrence reads for T tokens.

    q, k     [T, HK, DK] bf16 or fp32, outputs of the convolution, not yet normalised
    v        [T, HV, DV] same dtype
    g        [T, HV] fp32, logarithm of the decay, <= 0
    beta     [T, HV] fp32, in (0, 1)
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


@dataclass(frozen=True, slots=True)
class GdnState:
    """Entry state of the open block and its rows, for one layer and C lanes; every value finite.

    s        [C, HV, DV, DK] fp32, contiguous
    open_k   [C, HK, 64, DK] fp32: kn
    open_u   [C, HV, 64, DV] fp32: u
    open_g   [C, HV, 64]     fp32: G
    """

    s: Tensor
    open_k: Tensor
    open_u: Tensor
    open_g: Tensor


def gdn_gates(a: Tensor, b: Tensor, decay_rate: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithm of the decay, and write strength (model spec 6.4, step 5).

    g = decay_rate * softplus(a + dt_bias)        beta = sigmoid(b)

    a, b         [T, HV] bf16 or fp32
    decay_rate   [HV]    fp32, -exp(A_log)
    dt_bias      [HV]    fp32
    returns      two of [T, HV] fp32
    """
    return torch_blocks.gdn_gates(a, b, decay_rate, dt_bias)


def gdn_prefill(rows: GdnRows, state: GdnState, lane: int, offset: int = 0) -> Tensor:
    """Run consecutive tokens of one lane from a block's first position on, or behind the `offset` open rows it has.

    returns  [T, HV, DV] dtype of v, rounded once from fp32
    effects  lane's entry state moves to the block that position T falls into, and its open rows become that block's
    """
    assert rows.q.shape == rows.k.shape
    assert rows.v.shape[:2] == rows.g.shape == rows.beta.shape
    assert 0 <= offset < BLOCK
    return torch_blocks.gdn_prefill(
        rows.q, rows.k, rows.v, rows.g, rows.beta, state.s[lane], state.open_k[lane], state.open_u[lane],
        state.open_g[lane], offset,
    )  # fmt: skip


def gdn_decode(rows: GdnRows, state: GdnState, lanes: Tensor, offsets: Tensor) -> Tensor:
    """Run one token in each of B lanes.

    rows     T = B
    lanes    [B] int64, distinct
    offsets  [B] int64, each token's row inside its block, [0, 64)
    returns  [B, HV, DV] dtype of v; bits as :func:`gdn_prefill` gives for the same token
    effects  each lane's row is added to its open rows; a row 63 moves the entry state to the next block
    """
    assert rows.q.shape == rows.k.shape
    assert lanes.shape == offsets.shape == rows.g.shape[:1]
    return torch_blocks.gdn_decode(
        rows.q, rows.k, rows.v, rows.g, rows.beta, state.s, state.open_k, state.open_u, state.open_g, lanes, offsets
    )
