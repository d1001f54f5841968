"""Attention of a round and of a chunk at the 27B's shape: ``python -m ninfer.bench.kernels_attention [--json FILE]``.

Every launch has a layer of its own, as in a model, so that no cache of the device holds what it reads. One line per
shape: microseconds of a layer, bytes of keys and values it must read, and their share of a read ceiling.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ninfer.bench.linear import timed_s
from ninfer.kernels.kv_codec.pool import PAGE, Codec, Pool, empty_pool
from ninfer.kernels.low_bit_linear.buffers import columns_buffer
from ninfer.kernels.paged_attention import op, triton_launch
from ninfer.kernels.paged_attention.scratch import chunk_scratch, chunk_scratch_bytes, partial_bytes, round_scratch

HEADS, KV_HEADS, WIDTH, HALF, EPS = 24, 4, 256, 32, 1e-6
LAYERS = 16
ROUNDS = (
    (1, 1, 64), (1, 1, 512), (1, 1, 2000), (8, 1, 512), (1, 4, 1024), (1, 16, 1024), (8, 1, 1024), (1, 1, 8192),
    (1, 1, 32768), (8, 1, 16384), (4, 4, 16384), (1, 1, 131072), (1, 4, 131072), (1, 16, 131072),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """us: median of one layer; nbytes: of keys and values with their scales; share: of the ceiling."""

    what: str
    us: float
    nbytes: int
    share: float


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """us: median of one layer, all three kernels; tflops: of the scores and mixtures that causality leaves, over it."""

    what: str
    us: float
    tflops: float


def _pool(pages: int, codec: Codec, device: torch.device) -> Pool:
    pool = empty_pool(pages, KV_HEADS, WIDTH, codec, device)
    for plane in (pool.keys, pool.values):
        if codec == "int8":
            plane.random_(-127, 128)
        else:
            plane.normal_()
    for scales in (pool.key_scales, pool.value_scales):
        if scales is not None:
            scales.fill_(0.01)
    return pool


def round_row(lanes: int, columns: int, context: int, codec: Codec, ceiling: float, repeats: int) -> Row:
    device = torch.device("cuda")
    tokens, blocks = lanes * columns, -(-(context + columns) // PAGE)
    row_bytes = 2 * (WIDTH + 8) if codec == "int8" else 4 * WIDTH
    nbytes = lanes * context * KV_HEADS * row_bytes
    layers = max(1, min(LAYERS, int(48e9 // nbytes)))
    pools = [_pool(lanes * blocks, codec, device) for _ in range(layers)]
    tables = torch.randperm(lanes * blocks, device=device).reshape(lanes, blocks).int()
    inner = (HEADS + KV_HEADS) * WIDTH
    first, second = (torch.randn(tokens, inner, device=device).bfloat16() for _ in range(2))
    norm = torch.zeros(WIDTH, device=device)
    angles = torch.randn(tokens, HALF, device=device)
    cos, sin = torch.cos(angles), torch.sin(angles)
    slots = torch.arange(lanes, dtype=torch.int32, device=device)
    positions = torch.full((lanes,), context, dtype=torch.int32, device=device)
    programs = triton_launch.default_programs(device)
    scratch = round_scratch(
        lanes, columns, HEADS, KV_HEADS, WIDTH, context + columns, codec, programs, device
    )  # fmt: skip
    out = columns_buffer(HEADS * WIDTH, tokens, device)

    def work() -> None:
        for pool in pools:
            op.attention_round(
                first, second, norm, norm, EPS, cos, sin, pool, tables, slots, positions, columns, scratch, out
            )

    seconds = timed_s(work, device, repeats) / layers
    what = f"round {codec} {lanes} lanes {columns} columns {context} tokens"
    return Row(what, 1e6 * seconds, nbytes, nbytes / seconds / ceiling)


CHUNKS = (
    (0, 64), (32768, 64), (102400, 64), (102400, 128), (102400, 512), (0, 2048), (0, 8192), (14336, 2048), (8192, 8192),
    (129024, 2048), (122880, 8192),
)  # fmt: skip
MATRIX_BYTES = 34816 * 5120 * 2  # of the model's largest matrix, where sums of units lie between products


def chunk_row(begin: int, tokens: int, codec: Codec, repeats: int) -> ChunkRow:
    device = torch.device("cuda")
    blocks = -(-(begin + tokens) // PAGE)
    pool = _pool(blocks, codec, device)
    table = torch.randperm(blocks, device=device).int()
    inner = (HEADS + KV_HEADS) * WIDTH
    first, second = (torch.randn(tokens, inner, device=device).bfloat16() for _ in range(2))
    norm = torch.zeros(WIDTH, device=device)
    angles = torch.randn(tokens, HALF, device=device)
    cos, sin = torch.cos(angles), torch.sin(angles)
    nbytes = chunk_scratch_bytes(KV_HEADS, WIDTH, begin + tokens)
    storage = torch.empty(nbytes, dtype=torch.uint8, device=device)
    sums = torch.empty(
        max(MATRIX_BYTES, partial_bytes(tokens, HEADS * WIDTH, begin + tokens)), dtype=torch.uint8, device=device
    )
    scratch = chunk_scratch(storage, sums, KV_HEADS, WIDTH, begin + tokens, codec)
    out = torch.empty(tokens, HEADS * WIDTH, dtype=torch.bfloat16, device=device)

    def work() -> None:
        op.attention_chunk(first, second, norm, norm, EPS, cos, sin, pool, table, begin, scratch, out)

    seconds = timed_s(work, device, repeats)
    pairs = tokens * begin + tokens * (tokens + 1) // 2
    return ChunkRow(
        f"chunk {codec} {tokens} tokens from {begin}", 1e6 * seconds, 4 * WIDTH * HEADS * pairs / seconds / 1e12
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--ceiling-tbs", type=float, default=4.56, help="read ceiling of the device")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default="", help="measure only what contains this text")
    options = parser.parse_args()
    rows: list[Row | ChunkRow] = []
    codecs: tuple[Codec, ...] = ("int8", "bf16")
    for codec in codecs:
        for lanes, columns, context in ROUNDS:
            if options.only in f"round {codec}":
                row = round_row(lanes, columns, context, codec, options.ceiling_tbs * 1e12, options.repeats)
                print(f"{row.what:48}{row.us:10.2f} us{row.nbytes / 1e6:10.1f} MB{row.share:8.1%}", flush=True)
                rows.append(row)
        for begin, tokens in CHUNKS:
            if options.only in f"chunk {codec}":
                chunk = chunk_row(begin, tokens, codec, options.repeats)
                print(f"{chunk.what:48}{chunk.us:10.2f} us{chunk.tflops:10.1f} TFLOP/s", flush=True)
                rows.append(chunk)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
