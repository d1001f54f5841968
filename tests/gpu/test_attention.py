"""Attention of rounds and chunks on a device: against float64 over what the cache holds, and for equal bits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ninfer.kernels.kv_codec import op as kv_codec
from ninfer.kernels.kv_codec.pool import PAGE, Codec
from ninfer.kernels.low_bit_linear.buffers import columns_buffer, from_columns
from ninfer.kernels.paged_attention import op, torch_lanes, triton_launch
from ninfer.kernels.paged_attention.scratch import ChunkScratch, chunk_scratch, chunk_scratch_bytes, round_scratch
from tests.kernels.paged_attention.cases import (
    EPS,
    Case,
    Prompt,
    case,
    copied,
    deep_prompt,
    expected,
    expected_prompt,
    history,
    prompt,
    tolerance,
)
from tests.support.tolerance import assert_within

pytestmark = pytest.mark.gpu

CODECS = ("int8", "bf16")


def decoded(made: Case, programs: int | None = None) -> torch.Tensor:
    return made.run(op.attention_round, made.scratch(programs or triton_launch.default_programs(torch.device("cuda"))))


# Compiling takes most of the time: binaries differ by codec, by the group of query heads, and between one column, a few
# and many.


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("positions", "columns", "heads", "kv_heads"),
    [
        ((0,), 1, 24, 4),
        ((100, 63, 1023, 2040), 1, 24, 4),
        ((100, 63, 1023, 2040), 2, 24, 4),
        ((8190, 5), 4, 24, 4),
        ((700, 8192 + 512 * 17), 16, 24, 4),
        ((8190, 5), 1, 16, 2),
    ],
    ids=str,
)
def test_a_round(positions: tuple[int, ...], columns: int, heads: int, kv_heads: int, codec: Codec) -> None:
    made = case(positions, columns, heads, kv_heads, codec, "cuda")
    assert_within(tolerance(codec), decoded(made), expected(made))


@pytest.mark.parametrize("codec", CODECS)
def test_contexts_around_every_kind_of_border(codec: Codec) -> None:
    for end in (64, 128, 2048, 8192, 8704, 8192 + 512 * 16):
        made = case((end - 2, end - 1, end), 2, 6, 1, codec, "cuda", seed=end)
        assert_within(tolerance(codec), decoded(made), expected(made))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("columns", [2, 4, 16])
def test_a_token_knows_neither_lanes_nor_columns_nor_programs(columns: int, codec: Codec) -> None:
    """All lanes at once, each lane alone, each column alone, other numbers of programs: the same bits everywhere."""
    positions = (126, 1019, 0, 8189, 8192 + 512 * 16 - 1, 2047)
    made = case(positions, columns, 24, 4, codec, "cuda")
    fewer, single = made.copy(), made.copy()
    alone = {b: made.lane(b) for b in (1, 4)}
    whole = decoded(made)
    assert torch.equal(decoded(fewer, 7), whole)
    for b, lane in alone.items():
        assert torch.equal(decoded(lane), whole[columns * b : columns * (b + 1)])
    for column in range(columns):
        one = single.column(column)
        assert torch.equal(decoded(one), whole[column::columns])
        single = replace(single, pool=one.pool)
    for name in ("keys", "values", "key_scales", "value_scales"):
        plane, other = getattr(made.pool, name), getattr(single.pool, name)
        if plane is not None:
            assert torch.equal(plane.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("codec", CODECS)
def test_appended_rows_are_those_of_the_plain_codec(codec: Codec) -> None:
    """Codes may differ by one where a norm's last bit moved a value over a rounding border, which is rare."""
    made = case((500, 63), 4, 24, 4, codec, "cuda")
    plain = made.copy()
    decoded(made)
    inner = made.heads * 256
    rotated = torch_lanes.prepared(made.first[:, inner:], made.key_norm, EPS, made.cos, made.sin, 256)
    values = made.second[:, inner:].reshape(8, 4, 256)
    at = (made.positions.long()[:, None] + torch.arange(4, device="cuda")).reshape(-1)
    slots = made.lanes.long().repeat_interleave(4)
    pages = made.tables[slots, at // PAGE].long()
    kv_codec.store(rotated, values, pages, at % PAGE, plain.pool)
    assert torch.equal(made.pool.values[pages, :, at % PAGE], plain.pool.values[pages, :, at % PAGE])
    got, want = (pool.keys[pages, :, at % PAGE].float() for pool in (made.pool, plain.pool))
    if codec == "int8":
        assert float((got - want).abs().max()) <= 1
        assert float((got != want).float().mean()) < 0.01
    else:
        assert float((got != want).float().mean()) < 0.01
    # Nothing else was written.
    for pool in (made.pool, plain.pool):
        pool.keys[pages, :, at % PAGE] = 0
    assert torch.equal(made.pool.keys.view(torch.uint8), plain.pool.keys.view(torch.uint8))


def test_a_graph_follows_its_inputs() -> None:
    """Positions, lanes and tables change between replays of one captured round."""
    made = case((700, 90), 2, 24, 4, "int8", "cuda")
    other = case((90, 3000), 2, 24, 4, "int8", "cuda", seed=50)
    scratch = other.scratch(triton_launch.default_programs(torch.device("cuda")))
    want = {id(one): one.copy().run(op.attention_round, scratch).clone() for one in (made, other)}
    pages = other.pool.keys.shape[0]
    out = columns_buffer(24 * 256, 4, "cuda")
    names = ("first", "second", "query_norm", "key_norm", "cos", "sin", "tables", "lanes", "positions")
    inputs = replace(other.copy(), **{name: getattr(other, name).clone() for name in names})
    arguments = (
        inputs.first, inputs.second, inputs.query_norm, inputs.key_norm, EPS, inputs.cos, inputs.sin, inputs.pool,
        inputs.tables, inputs.lanes, inputs.positions, 2, scratch, out,
    )  # fmt: skip
    op.attention_round(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op.attention_round(*arguments)
    for one in (made, other, made):
        for name in ("first", "second", "query_norm", "key_norm", "cos", "sin", "lanes", "positions"):
            getattr(inputs, name).copy_(getattr(one, name))
        inputs.tables[:, : one.tables.shape[1]] = one.tables
        for name in ("keys", "values", "key_scales", "value_scales"):
            getattr(inputs.pool, name)[: min(pages, one.pool.keys.shape[0])] = getattr(one.pool, name)[:pages]
        graph.replay()
        assert torch.equal(from_columns(out, 4), want[id(one)])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("tokens", "heads", "kv_heads"), [(1, 24, 4), (700, 24, 4), (1100, 16, 2)], ids=str)
def test_a_chunk(tokens: int, heads: int, kv_heads: int, codec: Codec) -> None:
    made = prompt(tokens, heads, kv_heads, codec, "cuda")
    assert_within(tolerance(codec), made.run(op.attention_chunk, ()), expected_prompt(made))


@pytest.mark.parametrize("codec", CODECS)
def test_a_token_does_not_know_its_chunk(codec: Codec) -> None:
    made = prompt(4500, 24, 4, codec, "cuda")
    blank = replace(made, pool=copied(made.pool))
    want = made.run(op.attention_chunk, ())
    for cuts in (range(256, 4500, 256), range(2048, 4500, 2048), (64, 3200), (4480,)):
        other = replace(blank, pool=copied(blank.pool))
        assert torch.equal(other.run(op.attention_chunk, tuple(cuts)), want)
        for name in ("keys", "values", "key_scales", "value_scales"):
            plane, first = getattr(other.pool, name), getattr(made.pool, name)
            if plane is not None:
                assert torch.equal(plane.view(torch.uint8), first.view(torch.uint8))


def _history(made: Prompt, depth: int) -> ChunkScratch:
    """Random rows below `depth`, stored as the cache stores them, and scratch that holds NaN."""
    codec: Codec = "int8" if made.pool.int8 else "bf16"
    history(made.pool, made.table, depth, seed=7)
    heads, longest = made.first.shape[1] // 256 - 4, depth + made.first.shape[0]
    storage = torch.full((chunk_scratch_bytes(4, 256, longest),), 255, dtype=torch.uint8, device="cuda")
    sums = torch.full((14 * 4 * 512 * (heads * 258),), 255, dtype=torch.uint8, device="cuda")
    return chunk_scratch(storage, sums, 4, 256, longest, codec)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("depth", [0, 1000, 8130, 40_000, 40_900, 100_000])
def test_split_keys_give_the_bits_of_one_program(depth: int, codec: Codec) -> None:
    """Chunks of 64, 128 and 512 tokens behind a history: units of keys in programs of their own, against one program
    for all of them, and against a longer chunk that holds the same tokens."""
    made = deep_prompt(576, depth, 24, 4, codec, "cuda")
    scratch = _history(made, depth)
    device = torch.device("cuda")
    tile = triton_launch.device_tile(device)

    def chunk(begin: int, end: int, split_below: int) -> torch.Tensor:
        out = torch.full((end - begin, 24 * 256), math.nan, dtype=torch.bfloat16, device=device)
        scratch.partial.fill_(math.nan)
        rows = slice(begin, end)
        triton_launch.attention_chunk(
            made.first[rows], made.second[rows], made.query_norm, made.key_norm, EPS, made.cos[rows], made.sin[rows],
            made.pool, made.table, depth + begin, scratch, out, tile, split_below,
        )  # fmt: skip
        assert torch.isfinite(out).all()
        return out

    want = chunk(0, 576, 0)
    assert torch.equal(chunk(0, 512, 0), want[:512])
    for begin, end in ((0, 64), (0, 128), (0, 512), (64, 128), (64, 576), (512, 576), (512, 513)):
        for split_below in (0, 1 << 30, triton_launch.default_split(device)):
            assert torch.equal(chunk(begin, end, split_below), want[begin:end]), (begin, end, split_below)


@pytest.mark.parametrize("codec", CODECS)
def test_prefill_and_decode_store_the_same_bytes(codec: Codec) -> None:
    """A round of one lane's next tokens against the same tokens as the end of a chunk."""
    tokens = 200
    made = prompt(tokens, 24, 4, codec, "cuda")
    other = prompt(tokens, 24, 4, codec, "cuda")
    made.run(op.attention_chunk, ())
    scratch = round_scratch(1, 4, 24, 4, 256, tokens, codec, 132, "cuda")
    device = torch.device("cuda")
    slot = torch.zeros(1, dtype=torch.int32, device=device)
    out = columns_buffer(24 * 256, 4, device)
    for begin in range(0, tokens, 4):
        rows = slice(begin, begin + 4)
        op.attention_round(
            other.first[rows], other.second[rows], other.query_norm, other.key_norm, EPS, other.cos[rows],
            other.sin[rows], other.pool, other.table[None], slot, slot + begin, 4, scratch, out,
        )  # fmt: skip
    for name in ("keys", "values", "key_scales", "value_scales"):
        plane, first = getattr(other.pool, name), getattr(made.pool, name)
        if plane is not None:
            assert torch.equal(plane.view(torch.uint8), first.view(torch.uint8))
