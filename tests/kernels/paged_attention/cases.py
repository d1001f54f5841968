"""A few lanes in the middle of a generation, on any device, and what decoding them must give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ninfer.kernels.kv_codec import op as kv_codec
from ninfer.kernels.kv_codec.pool import PAGE, Codec, Pool, empty_pool
from ninfer.kernels.low_bit_linear.buffers import columns_buffer, from_columns
from ninfer.kernels.paged_attention import torch_lanes
from ninfer.kernels.paged_attention.scratch import RoundScratch, chunk_scratch, chunk_scratch_bytes, round_scratch
from tests.kernels.data import normal
from tests.support.tolerance import Tolerance

EPS = 1e-6
HALF = 32

# Weights of keys are rounded to fp16 or bf16, and so is what they are multiplied with: each error is a weight's share
# of a value, so errors scale with the largest output and not with the element. Then one rounding to bf16.
FP16_WEIGHTS = Tolerance(relative=2**-8, scaled=2**-9)
BF16_WEIGHTS = Tolerance(relative=2**-8, scaled=2**-7)


def tolerance(codec: Codec) -> Tolerance:
    return FP16_WEIGHTS if codec == "int8" else BF16_WEIGHTS


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Arguments of `attention_round`, without scratch and output."""

    first: Tensor
    second: Tensor
    query_norm: Tensor
    key_norm: Tensor
    cos: Tensor
    sin: Tensor
    pool: Pool
    tables: Tensor
    lanes: Tensor
    positions: Tensor
    columns: int

    @property
    def kv_heads(self) -> int:
        return self.pool.kv_heads

    @property
    def heads(self) -> int:
        return self.first.shape[1] // self.pool.width - self.kv_heads

    def run(self, route: Callable[..., None], scratch: RoundScratch) -> Tensor:
        """[T, H * D] of a route with the arguments of the op, from an output that held NaN."""
        out = columns_buffer(self.heads * self.pool.width, self.first.shape[0], self.first.device)
        out.storage.fill_(math.nan)
        route(
            self.first, self.second, self.query_norm, self.key_norm, EPS, self.cos, self.sin, self.pool, self.tables,
            self.lanes, self.positions, self.columns, scratch, out,
        )  # fmt: skip
        assert not scratch.counters.any()
        return from_columns(out, self.first.shape[0])

    def scratch(self, programs: int) -> RoundScratch:
        """Filled with NaN, counters aside."""
        made = round_scratch(
            len(self.lanes), self.columns, self.heads, self.kv_heads, self.pool.width,
            int(self.positions.max()) + self.columns, "int8" if self.pool.int8 else "bf16", programs, self.first.device,
        )  # fmt: skip
        for part in (made.scales, made.acc, made.ml, made.group_acc, made.group_ml):
            part.fill_(math.nan)
        return made

    def lane(self, b: int) -> Case:
        """That lane by itself, on its own copy of the pool."""
        rows = slice(b * self.columns, (b + 1) * self.columns)
        return replace(
            self.copy(), first=self.first[rows], second=self.second[rows], cos=self.cos[rows], sin=self.sin[rows],
            lanes=self.lanes[b : b + 1], positions=self.positions[b : b + 1],
        )  # fmt: skip

    def column(self, l: int) -> Case:  # noqa: E741 (the letter of the specification)
        """That column of every lane by itself, on a copy of the pool."""
        rows = slice(l, None, self.columns)
        return replace(
            self.copy(), first=self.first[rows].contiguous(), second=self.second[rows].contiguous(),
            cos=self.cos[rows].contiguous(), sin=self.sin[rows].contiguous(), positions=self.positions + l, columns=1,
        )  # fmt: skip

    def copy(self) -> Case:
        return replace(self, pool=copied(self.pool))


def copied(pool: Pool) -> Pool:
    scales = (None if plane is None else plane.clone() for plane in (pool.key_scales, pool.value_scales))
    return Pool(pool.keys.clone(), pool.values.clone(), *scales)


def poison(pool: Pool) -> None:
    """Every row unusable: NaN, or codes with scales that are NaN."""
    if pool.key_scales is None or pool.value_scales is None:
        pool.keys.fill_(math.nan)
        pool.values.fill_(math.nan)
        return
    pool.keys.fill_(-128)
    pool.values.fill_(-128)
    pool.key_scales.fill_(math.nan)
    pool.value_scales.fill_(math.nan)


def history(pool: Pool, pages: Tensor, tokens: int, seed: int) -> None:
    """Store `tokens` positions of random rows."""
    at = torch.arange(tokens, device=pages.device)
    k, v = (normal(tokens, pool.kv_heads, pool.width, seed=seed + i).to(pages.device) for i in range(2))
    kv_codec.store(k.bfloat16(), v.bfloat16(), pages[at // PAGE].long(), at % PAGE, pool)


def case(
    positions: Sequence[int],
    columns: int,
    heads: int,
    kv_heads: int,
    codec: Codec,
    device: str = "cpu",
    seed: int = 0,
    width: int = 256,
) -> Case:
    tokens, slots = len(positions) * columns, len(positions) + 2
    blocks = (max(positions) + columns - 1) // PAGE + 2
    source = torch.Generator().manual_seed(seed)
    pool = empty_pool(slots * blocks, kv_heads, width, codec, device)
    poison(pool)
    tables = torch.randperm(slots * blocks, generator=source).reshape(slots, blocks).int().to(device)
    lanes = torch.randperm(slots, generator=source)[: len(positions)].int()
    for b, slot in enumerate(lanes.tolist()):
        history(pool, tables[slot], positions[b], seed + 2 * b)
    angles = normal(tokens, HALF, seed=seed + 1) * 10
    inner = (heads + kv_heads) * width
    return Case(
        first=(2 * normal(tokens, inner, seed=seed + 2)).bfloat16().to(device),
        second=normal(tokens, inner, seed=seed + 3).bfloat16().to(device),
        query_norm=(0.5 * normal(width, seed=seed + 4)).to(device),
        key_norm=(0.5 * normal(width, seed=seed + 5)).to(device),
        cos=torch.cos(angles).to(device),
        sin=torch.sin(angles).to(device),
        pool=pool,
        tables=tables,
        lanes=lanes.to(device),
        positions=torch.tensor(positions, dtype=torch.int32, device=device),
        columns=columns,
    )


def expected(done: Case) -> Tensor:
    """[T, H * D] float64 from the pool as the operation left it."""
    queries = done.heads * done.pool.width
    q = torch_lanes.prepared(done.first[:, :queries], done.query_norm, EPS, done.cos, done.sin, done.pool.width)
    if done.pool.int8:
        wide = kv_codec.decoded(*kv_codec.int8_codes(kv_codec.hadamard(q), narrow=False)).double()
    else:
        wide = q.double()
    gate = torch.sigmoid(done.second[:, :queries].double())
    out = torch.empty_like(gate)
    for t in range(done.first.shape[0]):
        lane, column = divmod(t, done.columns)
        seen = int(done.positions[lane]) + column + 1
        pages = done.tables[int(done.lanes[lane])][: -(-seen // PAGE)].long()
        keys, values = kv_codec.decoded_pages(done.pool, pages)
        keys = keys.transpose(0, 1).reshape(done.kv_heads, -1, done.pool.width)[:, :seen].double()
        values = values.transpose(0, 1).reshape(done.kv_heads, -1, done.pool.width)[:, :seen].double()
        grouped = wide[t].reshape(done.kv_heads, -1, done.pool.width)
        weights = torch.softmax(grouped @ keys.transpose(1, 2) / math.sqrt(done.pool.width), dim=-1)
        out[t] = (weights @ values).reshape(-1)
    return out * gate


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A prompt of one lane; `pool` holds nothing yet."""

    first: Tensor
    second: Tensor
    query_norm: Tensor
    key_norm: Tensor
    cos: Tensor
    sin: Tensor
    pool: Pool
    table: Tensor

    def run(self, route: Callable[..., None], cuts: Sequence[int], *more: object, spare: int = 4) -> Tensor:
        """[T, H * D] of all chunks between cuts; sums have room for `spare` units of all tokens."""
        tokens, pool = self.first.shape[0], self.pool
        queries = self.first.shape[1] - pool.kv_heads * pool.width
        out = torch.full((tokens, queries), math.nan, dtype=torch.bfloat16, device=self.first.device)
        nbytes = chunk_scratch_bytes(pool.kv_heads, pool.width, tokens)
        storage = torch.full((nbytes,), 255, dtype=torch.uint8, device=self.first.device)  # NaN in both types
        codec: Codec = "int8" if pool.int8 else "bf16"
        sums = torch.full((spare * 4 * (tokens + 1) * queries,), 255, dtype=torch.uint8, device=self.first.device)
        scratch = chunk_scratch(storage, sums, pool.kv_heads, pool.width, tokens, codec)
        for begin, end in pairwise((0, *cuts, tokens)):
            rows = slice(begin, end)
            route(
                self.first[rows], self.second[rows], self.query_norm, self.key_norm, EPS, self.cos[rows],
                self.sin[rows], pool, self.table, begin, scratch, out[rows], *more,
            )  # fmt: skip
        return out


def prompt(
    tokens: int, heads: int, kv_heads: int, codec: Codec, device: str = "cpu", seed: int = 0, width: int = 256
) -> Prompt:
    """As a case of one lane at position 0 with as many columns."""
    made = case((0,), tokens, heads, kv_heads, codec, device, seed, width)
    table = made.tables[int(made.lanes[0])]
    return Prompt(
        made.first, made.second, made.query_norm, made.key_norm, made.cos, made.sin, made.pool, table
    )  # fmt: skip


def deep_prompt(
    tokens: int, depth: int, heads: int, kv_heads: int, codec: Codec, device: str = "cpu", seed: int = 0
) -> Prompt:
    """As :func:`prompt`, with a table for `depth` positions before it."""
    made = prompt(tokens, heads, kv_heads, codec, device, seed)
    pages = -(-(depth + tokens) // PAGE)
    pool = empty_pool(pages + 3, kv_heads, 256, codec, device)
    poison(pool)
    order = torch.randperm(pages + 3, generator=torch.Generator().manual_seed(seed))[:pages]
    return replace(made, pool=pool, table=order.int().to(device))


def expected_prompt(done: Prompt) -> Tensor:
    """[T, H * D] float64 from the pool as the operation left it."""
    pool, tokens = done.pool, done.first.shape[0]
    queries = done.first.shape[1] - pool.kv_heads * pool.width
    q = torch_lanes.prepared(done.first[:, :queries], done.query_norm, EPS, done.cos, done.sin, pool.width)
    wide = (kv_codec.hadamard(q) if pool.int8 else q).double().transpose(0, 1)  # [H, T, D]
    pages = done.table[: -(-tokens // PAGE)].long()
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    out = []
    keys, values = (rows.transpose(0, 1).flatten(1, 2)[:, :tokens] for rows in kv_codec.decoded_pages(pool, pages))
    for head in range(wide.shape[0]):
        own = head // (wide.shape[0] // pool.kv_heads)
        scores = wide[head] @ keys[own].double().T / math.sqrt(pool.width)
        out.append(torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ values[own].double())
    return torch.cat(out, dim=-1) * torch.sigmoid(done.second[:, :queries].double())
