"""The gated DeltaNet: the block form against the step form, and one row at a time against whole chunks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ninfer.kernels.gdn.op import BLOCK, GdnRows, GdnState, gdn_decode, gdn_prefill
from ninfer.kernels.gdn.ref import gdn_gates_ref, gdn_ref
from tests.kernels.data import DTYPES, normal
from tests.support.tolerance import BF16_ROUNDED, FP32_RECURRENCE, Tolerance, assert_within

SHAPES = [
    (2, 4, 16, 16),
    (2, 6, 24, 40),
    (3, 3, 16, 8),
    (1, 4, 128, 128),
]  # key heads, value heads, key and value width
BF16_RECURRENCE = Tolerance(BF16_ROUNDED.relative, FP32_RECURRENCE.scaled)


@dataclass
class Problem:
    rows: GdnRows
    state: GdnState
    lanes: int

    def copy(self) -> GdnState:
        s = self.state
        return GdnState(s.s.clone(), s.open_k.clone(), s.open_u.clone(), s.open_g.clone())

    def part(self, begin: int, end: int) -> GdnRows:
        r = self.rows
        return GdnRows(r.q[begin:end], r.k[begin:end], r.v[begin:end], r.g[begin:end], r.beta[begin:end])


def problem(shape: tuple[int, int, int, int], tokens: int, dtype: torch.dtype = torch.float32) -> Problem:
    """Open rows hold the rubbish of an earlier block, as they do in a running lane."""
    key_heads, heads, key_width, width = shape
    lanes = 3
    rows = GdnRows(
        q=normal(tokens, key_heads, key_width, seed=1, dtype=dtype),
        k=normal(tokens, key_heads, key_width, seed=2, dtype=dtype),
        v=normal(tokens, heads, width, seed=3, dtype=dtype),
        g=-normal(tokens, heads, seed=4).abs() * 0.3,
        beta=torch.sigmoid(normal(tokens, heads, seed=5)),
    )
    state = GdnState(
        s=normal(lanes, heads, width, key_width, seed=6) * 0.2,
        open_k=normal(lanes, key_heads, BLOCK, key_width, seed=7),
        open_u=normal(lanes, heads, BLOCK, width, seed=8),
        open_g=-normal(lanes, heads, BLOCK, seed=9).abs(),
    )
    return Problem(rows, state, lanes)


def close(dtype: torch.dtype) -> Tolerance:
    return FP32_RECURRENCE if dtype == torch.float32 else BF16_RECURRENCE


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 150])
def test_prefill(shape: tuple[int, int, int, int], tokens: int, dtype: torch.dtype) -> None:
    p = problem(shape, tokens, dtype)
    state = p.copy()
    out = gdn_prefill(p.rows, state, 1)
    r = p.rows
    expected, final = gdn_ref(r.q, r.k, r.v, r.g, r.beta, p.state.s[1])
    assert_within(close(dtype), out, expected)
    # The state stands at the start of the block that the next token falls into.
    begin = tokens - tokens % BLOCK
    _, entry = gdn_ref(r.q[:begin], r.k[:begin], r.v[:begin], r.g[:begin], r.beta[:begin], p.state.s[1])
    assert_within(FP32_RECURRENCE, state.s[1], entry)
    if tokens % BLOCK == 0:
        assert_within(FP32_RECURRENCE, state.s[1], final)
    for before, after in zip(vars_of(p.state), vars_of(state), strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]]), "another lane was touched"


def vars_of(state: GdnState) -> tuple[Tensor, ...]:
    return (state.s, state.open_k, state.open_u, state.open_g)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("prompt", [0, 64, 1, 40, 63, 127])
def test_decode_gives_the_bits_of_prefill(shape: tuple[int, int, int, int], prompt: int, dtype: torch.dtype) -> None:
    tokens = 140
    p = problem(shape, tokens, dtype)
    whole_state = p.copy()
    whole = gdn_prefill(p.rows, whole_state, 2)
    state = p.copy()
    if prompt:
        assert torch.equal(gdn_prefill(p.part(0, prompt), state, 2), whole[:prompt])
    lane = torch.tensor([2])
    for t in range(prompt, tokens):
        out = gdn_decode(p.part(t, t + 1), state, lane, torch.tensor([t % BLOCK]))
        assert torch.equal(out[0], whole[t]), f"token {t}"
    used = tokens % BLOCK
    assert torch.equal(state.s, whole_state.s)
    for ours, theirs in zip(vars_of(state)[1:], vars_of(whole_state)[1:], strict=True):
        assert torch.equal(ours[2, :, :used], theirs[2, :, :used])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_of_whole_blocks_give_the_bits_of_one(shape: tuple[int, int, int, int]) -> None:
    p = problem(shape, 300)
    one, many = p.copy(), p.copy()
    whole = gdn_prefill(p.rows, one, 0)
    for begin, end in ((0, 64), (64, 256), (256, 300)):
        assert torch.equal(gdn_prefill(p.part(begin, end), many, 0), whole[begin:end])
    for ours, theirs in zip(vars_of(many), vars_of(one), strict=True):
        assert torch.equal(ours, theirs)


def test_lanes_decode_together_as_alone() -> None:
    """Lanes at different rows of their blocks, one of them at a block's last row, in either order."""
    p = problem((2, 6, 24, 40), 3)
    offsets = torch.tensor([0, 63, 17])
    together, backwards = p.copy(), p.copy()
    out = gdn_decode(p.rows, together, torch.arange(3), offsets)
    order = torch.tensor([2, 0, 1])
    r = p.rows
    turned = GdnRows(r.q[order], r.k[order], r.v[order], r.g[order], r.beta[order])
    assert torch.equal(gdn_decode(turned, backwards, order, offsets[order]), out[order])
    for lane in range(3):
        alone = p.copy()
        single = gdn_decode(p.part(lane, lane + 1), alone, torch.tensor([lane]), offsets[lane : lane + 1])
        assert torch.equal(single[0], out[lane])
        for ours, theirs, others in zip(vars_of(alone), vars_of(together), vars_of(backwards), strict=True):
            assert torch.equal(ours[lane], theirs[lane])
            assert torch.equal(others[lane], theirs[lane])


def test_the_vector_of_the_model_spec() -> None:
    """Section 6.4: two tokens of one head of width 2."""
    g, beta = gdn_gates_ref(
        torch.tensor([[0.5], [-1.0]]), torch.tensor([[0.0], [1.0]]), torch.zeros(1), torch.tensor([0.25])
    )
    rows = GdnRows(
        q=torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]]),
        k=torch.tensor([[[1.0, 0.0]], [[3.0, 4.0]]]),
        v=torch.tensor([[[1.0, 2.0]], [[-1.0, 0.5]]]),
        g=g.float(),
        beta=beta.float(),
    )
    state = GdnState(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 64, 2), torch.zeros(1, 1, 64, 2), torch.zeros(1, 1, 64))
    expected = torch.tensor([[[0.212131924, 0.424263848]], [[-0.497811019, 0.038250382]]])
    assert torch.allclose(gdn_prefill(rows, state, 0), expected, atol=1e-6, rtol=0)
    padded = torch.zeros(62, 1, 2)
    full = GdnRows(
        q=torch.cat([rows.q, padded]),
        k=torch.cat([rows.k, padded]),
        v=torch.cat([rows.v, padded]),
        g=torch.cat([rows.g, torch.zeros(62, 1)]),
        beta=torch.cat([rows.beta, torch.zeros(62, 1)]),
    )
    gdn_prefill(full, state, 0)
    after = torch.tensor([[-0.188419405, 0.719749036], [-0.704011446, 0.054094235]])
    assert torch.allclose(state.s[0, 0].t(), after, atol=1e-6, rtol=0)
